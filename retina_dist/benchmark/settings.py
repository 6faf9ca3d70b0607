"""Settings of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from retina_dist.benchmark.communication import LEAVING_MS, VARIATION
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.settings import setting


@dataclass
class SyntheticBenchmarkConfig(DetectionRunConfig):
    """`python -m retina_dist.benchmark synthetic`: takes what a training takes; data.batch_size is that of one process."""

    num_warmup_batches: int = setting(10, "steps not timed", at_least=0)
    num_batches_per_iter: int = setting(10, "steps of a round", at_least=1)
    num_iters: int = setting(10, "rounds, each with its images a second", at_least=1)
    memory: bool = setting(False, "predict the peak memory of a step; a GPU's is measured")
    output: str | None = setting(None, "a JSON file")
    baseline: str | None = setting(None, "such a file of an earlier run")
    fail_under: float = setting(0.9, "exit with 1 when a ratio is less than this share of the earlier one", above=0)


@dataclass
class ScalingConfig(DetectionRunConfig):
    """`python -m retina_dist.benchmark scaling`: takes what a training takes; data.batch_size is that of one process."""

    processes: list[int] = setting([2], "beside one plain process, the base of the speed-up")
    launchers: list[str] = setting(["torchrun", "horovodrun", "mpirun"], "those that are there")
    steps: int = setting(8, at_least=1)
    warmup: int = setting(3, "steps not timed; memory settles in the first two", at_least=0)
    rounds: int = setting(3, at_least=1)
    num_images: int | None = setting(
        None, "of the epoch whose length is given; null: as many as the data has", at_least=1
    )
    output: str | None = setting(None, "a JSON file; the epoch lengths go beside it as .csv and .png")
    baseline: str | None = setting(None, "such a file of an earlier run")
    fail_under: float = setting(0.9, "exit with 1 when a ratio is less than this share of the earlier one", above=0)
    worker: str | None = setting(None, "set in the processes that it starts")


@dataclass
class StepConfig(DetectionRunConfig):
    """`python -m retina_dist.benchmark step`: model and optimizer as for a training; images are noise."""

    paths: list[str] = setting(
        ["torchvision", "fp32", "bf16"],
        "torchvision[-tf32|-fp16] is its loop; fp32[-compile], tf32, fp16, bf16[-compile] are ours; the first is the base",
    )
    batch_sizes: list[int] = setting([16])
    canvases: list[list[int]] = setting([[128, 128]], "height and width, multiples of 32")
    plot: str | None = setting(None, "a PNG file")
    shares: list[float] | None = setting(None, "of the images of each canvas, for a row of the mix; null: no such row")
    count_canvas: list[int] | None = setting([128, 160], "for the count of operators; null: none")
    num_classes: int = setting(91, at_least=1)
    boxes: int = setting(7, "of each image", at_least=0)
    steps: int = setting(4, at_least=1)
    warmup: int = setting(2, "steps not timed", at_least=0)
    rounds: int = setting(5, at_least=1)
    threads: int = setting(0, "0: torch's default", at_least=0)
    output: str | None = setting(None, "a JSON file")
    baseline: str | None = setting(None, "such a file of an earlier run")
    fail_under: float = setting(0.9, "exit with 1 when a ratio is less than this share of the earlier one", above=0)


@dataclass
class SuiteConfig:
    """`python -m retina_dist.benchmark suite`."""

    output_dir: str | None = setting(None, "a folder; null: suite_DEVICE_DATE in the current one")
    small: bool = setting(False, "tiny settings, on a CPU too")
    debug: bool = False


@dataclass
class DataBenchmarkConfig(DetectionRunConfig):
    """`python -m retina_dist.benchmark data`: takes the settings of a training."""

    num_images: int = setting(
        32, "read in each round; without data.root or data.train_annotations so many are made, 640 x 480", at_least=1
    )
    rounds: int = setting(5, at_least=1)
    workers: list[int] = setting([0, 1, 2])
    output: str | None = setting(None, "a JSON file")
    baseline: str | None = setting(None, "such a file of an earlier run")
    fail_under: float = setting(0.9, "exit with 1 when a ratio is less than this share of the earlier one", above=0)


@dataclass
class MachineConfig:
    """A machine that is not in the table of `retina_dist.benchmark.communication`, which explains the fields."""

    gpu: str = "GPU"
    gpus: int | None = None
    inside: float | None = setting(None, "GB/s, bus bandwidth of an all-reduce among its GPUs")
    inside_us: float | None = setting(None, "microseconds of a hop")
    outside: float | None = setting(None, "GB/s between machines, all network cards of one together")
    outside_us: float | None = None


@dataclass
class StorageConfig:
    """Reading and keeping the data; what is null is left out of the forecast."""

    image_kb: float | None = setting(None, "1e3 bytes of an image as stored; COCO's: 163", above=0, at_most=10**6)
    gb_s: float | None = setting(None, "GB/s that a machine reads; null: reading keeps up", above=0, at_most=10**6)
    cache_gb: float = setting(
        0.0,
        "stored images that a machine keeps and never drops (a local copy); a page cache smaller than the data keeps much "
        "less",
        at_least=0,
        at_most=10**6,
    )
    months: float = setting(1.0, "that the data is kept", at_least=0, at_most=10**6)
    price_gb_month: float | None = setting(
        None,
        "of a GB in Blob storage, in any currency: https://azure.microsoft.com/pricing/details/storage/blobs",
        at_least=0,
        at_most=10**6,
    )
    price_10k_reads: float | None = setting(
        None, "of 10,000 read operations, from the same page", at_least=0, at_most=10**6
    )


@dataclass
class ForecastBenchmarkConfig(DetectionRunConfig):
    """`python -m retina_dist.benchmark forecast`: a calculation; nothing is run but the counting of the model's gradients.

    Takes what a training takes, so that experiment=NAME gives a recipe's model, length and batch.
    """

    sku: list[str] = setting(["Standard_ND96amsr_A100_v4"], "kinds of machine, or custom")
    custom: MachineConfig = field(default_factory=MachineConfig)
    gpus: list[int] = setting([1, 2, 4, 8, 16, 32, 64, 128])
    step_ms: list[float] | None = setting(None, "a step of one such GPU, measured; one for each of sku")
    batch_size: int | None = setting(None, "images of it", at_least=1)
    measured: list[str] | None = setting(
        None,
        "instead of both: files of `benchmark step` or `scaling` (output=FILE) on such a GPU; with two batch_sizes they hold the "
        "fixed cost of a step too",
    )
    global_batch: int | None = setting(
        None, "images of a step on all GPUs together; null: each GPU takes as many as measured", at_least=1
    )
    fixed_ms: list[float] | None = setting(
        None, "of a step, whatever its images; null: as measured, else as of MLPerf's RetinaNet. Only with global_batch"
    )
    canvas: list[int] = setting([800, 1088], "height and width; only parts' shares depend on it")
    gradient_mb: float | None = setting(
        None, "1e6 bytes of gradients; null: of the model's trainable parameters", above=0
    )
    backward_share: float | None = setting(None, "of a step; null: by the model's operations", fraction=True)
    compression: str = setting("none", "gradients on the wire", choices=("none", "bf16", "fp16"))
    bucket_mb: float = setting(25.0, "gradients averaged together", above=0)
    overlap: bool = setting(True, "average gradients during the backward pass")
    allreduce: str = setting("auto", "auto: the faster one", choices=("auto", "ring", "hierarchical"))
    straggler_cv: float = setting(
        VARIATION, "deviation over mean of GPUs' step times; 0: all are always equally fast", at_least=0, at_most=1
    )
    leaving_ms: float = setting(LEAVING_MS, "of a step, once gradients leave the machine", at_least=0, at_most=10**6)
    epochs: int | None = setting(None, "null: trainer.max_duration", at_least=1)
    num_images: int | None = setting(
        None, "null: as many as the data has; COCO's train2017 where data=coco has no data.root", at_least=1
    )
    price: list[float] | None = setting(
        None, "of a machine for an hour, one for each of sku, in any currency; null: no cost"
    )
    low_priority_price: list[float] | None = setting(None, "the same for machines that may be taken away")
    mtbi_hours: float | None = setting(
        None, "mean time between interruptions of one machine; null: no interruptions", above=0, at_most=10**6
    )
    restart_minutes: float = setting(10.0, "from an interruption to the next step", at_least=0, at_most=10**6)
    checkpoint_s: float = setting(5.0, "that a checkpoint stops the training", above=0, at_most=10**6)
    storage: StorageConfig = field(default_factory=StorageConfig)
    published: bool = setting(False, "only hold the model against published results of MLPerf Training")
    newer: str | None = setting(
        None, "a folder with retinanet.csv and resnet50.csv of further rounds, as in retina_dist/benchmark/mlperf"
    )
    seed: bool = setting(False, "only compare with what was measured in 2018")
    table: str | None = setting(None, "a CSV file")
    plot: str | None = setting(None, "a PNG file")
    output: str | None = setting(None, "a JSON file")
    baseline: str | None = setting(None, "such a file of an earlier run")
    fail_under: float = setting(0.9, "exit with 1 when a ratio is less than this share of the earlier one", above=0)
