"""The settings of the commands, by name. Those of the benchmarks and the server are in their packages."""

from __future__ import annotations

from dataclasses import dataclass, field

from retina_dist.benchmark.settings import (
    DataBenchmarkConfig,
    ScalingConfig,
    StepConfig,
    SyntheticBenchmarkConfig,
)
from retina_dist.detection.settings import DetectionRunConfig, check_category_map
from retina_dist.serving.settings import ServeConfig
from retina_dist.settings import MISSING, setting
from retina_dist.strategies.settings import NcclConfig


@dataclass
class DoctorConfig(DetectionRunConfig):
    """`python -m retina_dist.doctor`: takes the settings of a training, and looks at `data` and `model`, or at the machines."""

    images: str = setting(
        "decode", "header: opened, not decoded; none: not opened", choices=("decode", "header", "none")
    )
    cluster: bool = setting(
        False, "check machines, network and equal data of every rank instead; under the launcher of the training"
    )
    expect_gb_s: float | None = setting(
        None, "cluster: least bus bandwidth of an all-reduce of 64 MB; less is an error", above=0
    )
    output: str | None = setting(None, "a JSON file")


@dataclass
class ShardsConfig(DetectionRunConfig):
    """`python -m retina_dist.shards`: takes the settings of a training, and writes what `data` names."""

    output: str = setting(MISSING, "a folder or a URL")
    shard_mb: int = setting(
        256, "MiB; an interrupted conversion rewrites at most one shard, and reads request at most one", at_least=1
    )
    verify: bool = setting(False, "read everything back and compare")


@dataclass
class ParityConfig(DetectionRunConfig):
    """`python -m retina_dist.parity`: takes the settings of a training."""

    processes: list[int] = setting([2])
    launchers: list[str] = setting(["torchrun", "horovodrun", "mpirun"], "those that are installed")
    dtypes: list[str] = setting(["fp64"], "fp64 | fp32")
    steps: int = setting(2, "a whole one and a short one; the third begins the second epoch", at_least=1)
    output: str | None = setting(None, "a JSON file")
    worker: str | None = setting(None, "set in the processes that it starts")


@dataclass
class EvaluateConfig:
    """`python -m retina_dist.evaluate`."""

    checkpoint: str | None = setting(None, "a run's .pt file ...")
    results: str | None = setting(None, "... or a COCO results json")
    annotations: str | None = setting(None, "null: the checkpoint's validation set")
    images: str | None = None
    root: str | None = setting(None, "data.root again, where that of the checkpoint is behind a URL or was moved")
    category_map: list[list[str | None]] = setting([], "as data.category_map, of `annotations`")
    output_dir: str | None = None
    nccl: NcclConfig = field(default_factory=NcclConfig)
    backend: str = setting(
        "auto",
        "auto: the fastest that is installed",
        choices=("auto", "ultrafast-pycocotools", "pycocotools"),
    )
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    batch_size: int = setting(8, at_least=1)
    num_workers: int = setting(2, at_least=0)
    debug: bool = False

    def check(self) -> None:
        """Raise ConfigError unless `category_map` is a list of pairs."""
        check_category_map("category_map", self.category_map)


@dataclass
class PredictConfig:
    """`python -m retina_dist.predict`."""

    checkpoint: str = MISSING
    input: str = setting(MISSING, "file, folder or glob")
    output_dir: str = "predictions"
    score_threshold: float = setting(0.3, below=1, fraction=True)
    max_pixels: int = setting(178_956_970, "a file whose header claims more is left out", at_least=1)
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    debug: bool = False


@dataclass
class ExportConfig:
    """`python -m retina_dist.export`."""

    checkpoint: str = MISSING
    output: str = setting(
        MISSING, "FILE.onnx, FILE.pt2 (torch.export), or FILE.pt (a state_dict for torchvision's own class)"
    )
    size: list[int] | None = setting(None, "height and width in px of the only input taken; null: any")
    images: str | None = setting(None, "a file, folder or glob of images to compare on; null: drawn shapes")
    num_images: int = setting(3, "compared", at_least=1)
    box_tolerance: float = setting(
        0.1, "px; a larger difference to the PyTorch detector is an error, and nothing is written", at_least=0
    )
    score_tolerance: float = setting(1e-3, at_least=0)
    debug: bool = False


@dataclass
class ConvertConfig:
    """`python -m retina_dist.convert`."""

    format: str = setting(MISSING, choices=("csv", "voc"))
    annotations: str = setting(MISSING, "csv: the annotations file; voc: the VOC folder")
    classes: str | None = setting(None, "csv: the classes file")
    split: str = setting("train", "voc: name of the list in ImageSets/Main")
    output: str = setting(MISSING, "COCO json to write")
    debug: bool = False


COMMANDS: dict[str, type] = {
    "train": DetectionRunConfig,
    "doctor": DoctorConfig,
    "shards": ShardsConfig,
    "parity": ParityConfig,
    "benchmark_step": StepConfig,
    "benchmark_synthetic": SyntheticBenchmarkConfig,
    "benchmark_scaling": ScalingConfig,
    "benchmark_data": DataBenchmarkConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "serve": ServeConfig,
    "export": ExportConfig,
    "convert": ConvertConfig,
}

# Of the last composition: with the settings of classes from outside the package.
ACTIVE = dict(COMMANDS)
