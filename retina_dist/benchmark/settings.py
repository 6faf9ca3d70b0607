"""Settings of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.settings import setting


@dataclass
class BenchmarkConfig(DetectionRunConfig):
    """The setting that every benchmark adds to those of a training."""

    output: str | None = setting(None, "a JSON file", writes="file")


@dataclass
class StepConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark step`: model and optimizer as for a training; images are noise."""

    paths: list[str] = setting(
        ["torchvision", "fp32", "bf16"],
        "torchvision[-tf32|-fp16] is torchvision's loop; fp32, tf32, fp16, bf16, fp32-compile, bf16-compile are ours; "
        "the first is the base",
    )
    batch_sizes: list[int] = setting([16])
    canvases: list[list[int]] = setting([[128, 128]], "height and width, multiples of 32")
    num_classes: int = setting(91, at_least=1)
    boxes: int = setting(7, "boxes in each image", at_least=0)
    steps: int = setting(4, at_least=1)
    warmup: int = setting(2, "steps not timed", at_least=0)
    rounds: int = setting(5, at_least=1)


@dataclass
class DataBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark data`: takes the settings of a training."""

    num_images: int = setting(
        32, "read in each round; without data.root or data.train_annotations so many are made, 640 x 480", at_least=1
    )
    rounds: int = setting(5, at_least=1)
    workers: list[int] = setting([0, 1, 2])


@dataclass
class SyntheticBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark synthetic`: data.batch_size counts for one process."""

    num_warmup_batches: int = setting(10, "steps not timed", at_least=0)
    num_batches_per_iter: int = setting(10, "steps of a round", at_least=1)
    num_iters: int = setting(10, "rounds", at_least=1)


@dataclass
class ScalingConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark scaling`: data.batch_size counts for one process."""

    processes: list[int] = setting([2], "compared with one plain process")
    launchers: list[str] = setting(["torchrun", "horovodrun", "mpirun"], "those that are installed are used")
    steps: int = setting(8, at_least=1)
    warmup: int = setting(3, "steps not timed; memory settles in the first two", at_least=0)
    rounds: int = setting(3, at_least=1)
    num_images: int | None = setting(None, "images of an epoch; null: those of the data", at_least=1)
    worker: str | None = setting(None, "set in the processes that it starts")
