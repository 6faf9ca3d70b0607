"""The typed schema of every setting, and what stops a wrong one at once.

Layer 4. `conf/` holds the values; a key that is not here, or a value of another type, is refused by name. Defaults that
every experiment shares stand here, once.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from retina_dist.errors import ConfigError, UserError
from retina_dist.reporting.voice import tell
from retina_dist.strategies.launch import detect_launch

# Optional[...] and list[...] of plain types, not unions: what omegaconf's structured configs understand.


@dataclass
class ShapesConfig:
    """The drawn data set; see `retina_dist.data.synthetic`."""

    num_train: int = 800
    num_val: int = 160
    image_size: int = 128
    seed: int = 0


@dataclass
class DataConfig:
    """Where the pictures are and how they become batches."""

    name: str = MISSING
    format: str = "coco"  # coco | csv | voc
    root: str | None = None  # folder in COCO layout (csv: train.csv, val.csv, classes.csv; voc: a VOC2007-like folder)
    train_annotations: str | None = None  # explicit files, instead of or beside root
    train_images: str | None = None
    val_annotations: str | None = None
    val_images: str | None = None
    classes: str | None = None  # csv only: name,index
    shapes: ShapesConfig | None = None  # draw this data set into root if it is not there
    label_mapping: str = "contiguous"  # contiguous | category_id (label = COCO id, as in torchvision's COCO weights)
    keep_empty_images: bool = True
    missing_images: str = "error"  # error | skip: files that the annotations name and that are not there
    bad_images: str = "error"  # error | skip: files that cannot be decoded
    max_pixels: int = 178_956_970  # a file whose header claims more is bad and never decoded

    batch_size: int = 16  # images of one optimizer step, over all processes and accumulated micro-batches
    val_batch_size: int = 8
    num_workers: int = 2
    resize: str = "auto"  # workers | device (flips and resizes too) | auto: device where that is a GPU
    cache: str | None = (
        None  # a folder for decoded pictures, written as they are first read; 0.9 MB a picture of 640 x 480
    )
    shuffle: bool = True
    min_sizes: list[int] = field(default_factory=lambda: [800])  # shorter side in px; one is drawn for each step
    val_min_size: int | None = None  # null: the largest of min_sizes
    max_size: int = 1333  # longer side at most, px
    num_buckets: int = 6  # static canvases for each of min_sizes

    hflip: float = 0.5  # probabilities
    vflip: float = 0.0
    photometric: float = 0.0
    iou_crop: float = 0.0
    scale_jitter: list[float] | None = None  # factors [low, high] on the resize, e.g. [0.8, 1.25]


@dataclass
class ModelConfig:
    """Arguments of `retina_dist.model.retinanet.build_retinanet`, and weights."""

    num_classes: int | None = None  # null: as many as the data has
    backbone: str = "resnet50"  # resnet18 | resnet34 | resnet50 | resnet101
    variant: str = "v1"  # v1 | v2: torchvision's two RetinaNets
    fpn_channels: int = 256
    trainable_layers: int = 5  # ResNet stages that train, counted from the last; 5 is all
    batch_norm: str = "live"  # frozen | live | sync
    batch_norm_eps: float = 1e-5
    anchor_sizes: list[list[int]] = field(
        default_factory=lambda: [[32, 40, 50], [64, 80, 101], [128, 161, 203], [256, 322, 406], [512, 645, 812]]
    )
    aspect_ratios: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0])
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    detections_per_image: int = 300
    topk_candidates: int = 1000
    foreground_iou: float = 0.5
    background_iou: float = 0.4
    focal_alpha: float = 0.25
    focal_gamma: float = 2.0
    box_loss: str | None = None  # l1 | smooth_l1 | giou; null: the variant's own
    smooth_l1_beta: float = 1 / 9
    loss_path: str = "batched"  # batched | torchvision (the slow reference)
    weights: str | None = None  # whole detector: a file or e.g. RetinaNet_ResNet50_FPN_Weights.COCO_V1
    backbone_weights: str | None = None  # classifier: a file or e.g. ResNet50_Weights.IMAGENET1K_V1


@dataclass
class OptimizerConfig:
    """Arguments of `retina_dist.optim.optimizer`."""

    name: str = "sgd"  # sgd | adamw | adam
    lr: float = MISSING
    lr_rule: str = (
        "none"  # none | linear | sqrt: scale lr by batch_size / lr_reference_batch | adasum: by one participant's
    )
    lr_reference_batch: int = 16
    momentum: float = 0.9
    nesterov: bool = False
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    norm_weight_decay: float | None = None  # null: as weight_decay
    bias_weight_decay: float | None = None
    backbone_lr_scale: float = 1.0


@dataclass
class ScheduleConfig:
    """Arguments of `retina_dist.optim.schedule.Schedule`; durations as 16epochs, 1000steps or 5000images."""

    name: str = "cosine"  # multistep | cosine | constant
    warmup: str = "0steps"
    warmup_factor: float = 0.001
    milestones: list[str] = field(default_factory=list)
    gamma: float = 0.1
    final_factor: float = 0.0


@dataclass
class TrainerConfig:
    """Length, rhythm and numerics; durations as 12epochs, 1000steps or 5000images."""

    length: str = MISSING
    stop_after: str | None = None  # end early with a checkpoint, to go on with resume=
    validate_every: str = "1epoch"
    checkpoint_every: str = "1epoch"
    log_every: int = 10  # steps
    accumulate: int = 1  # micro-batches of one optimizer step on each process
    precision: str = "fp32"  # fp32 | bf16 | fp16
    clip: float | None = None
    clip_kind: str = "global_norm"  # global_norm | tensor_norm | value
    ema_decay: float | None = None  # e.g. 0.999; validation and best then use the average
    channels_last: bool = False
    compile: bool = False  # torch.compile; the first steps of each canvas take minutes
    cuda_graphs: bool = (
        False  # replay forward and backward pass instead of launching each kernel; pays with small batches
    )
    deterministic: bool = False  # only operations that give the same bits each time; slower on GPUs
    num_threads: int | None = None  # torch threads of this process; null: torch's own choice
    monitor: str = "coco/AP"
    monitor_mode: str = "max"  # max | min
    patience: int | None = None  # stop after so many validations without a better monitor
    scheduled_events: str | None = None  # Azure: http://169.254.169.254, to stop in time when the machine is taken away
    max_nonfinite_steps: int = 5  # steps in a row with an infinite or NaN loss or gradient that are skipped
    check_replicas_every: str = "1epoch"  # compare all ranks' weights and optimizer bit by bit; 0steps: never
    checkpoint_dir: str | None = None  # a folder or a URL such as az://container/run; null: the run's checkpoints/
    keep_last: int = 1  # checkpoints kept
    keep_top: int = 1
    fast_dev_run: bool = False  # two steps, two validation batches: does everything run?
    overfit_batches: int = 0  # train and validate on so many batches of train images, unaugmented


@dataclass
class StrategyConfig:
    """How processes work together: arguments of `retina_dist.strategies.select.make_strategy`."""

    name: str = "auto"  # auto (by the launcher) | single | ddp | horovod
    device: str = "auto"  # auto | cpu | cuda (the GPU of the local rank) | cuda:N
    compression: str = "none"  # none | bf16 | fp16: gradients on the wire
    fp16_scale: float | None = (
        None  # factor on gradients before fp16; null: 1024, or 1 with precision=fp16, which scales the loss
    )
    timeout_s: float = 600.0  # a collective that some rank has not joined by then ends the job
    bucket_mb: float = 25.0  # ddp: gradients averaged together
    static_graph: bool = False  # ddp: every step uses the same parameters
    fusion_mb: float = 32.0  # horovod: gradients sent together at most
    cycle_time_ms: float | None = None  # horovod: how often it looks for work; null: its own 1 ms
    hierarchical: bool = False  # horovod: sum within each host first; pays on slow Ethernet
    reduction: str = "average"  # average | adasum (horovod over MPI)
    commit_every: int = 10  # horovod elastic: steps between the points, in memory, that survivors go back to


@dataclass
class LoggingConfig:
    """What a run writes beside its checkpoints."""

    tensorboard: bool = True
    plots: bool = True
    rank_files: bool = False  # each rank's words and metrics in logs/rank_N.log


@dataclass
class TrainConfig:
    """`python -m retina_dist.train`."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    seed: int = 0
    output_dir: str | None = None  # null: runs/NAME, runs/NAME-2, ...
    resume: str | None = None  # null | auto (the run in output_dir, or the newest runs/NAME) | a checkpoint file
    launcher: str | None = None  # with --multirun: start each job by itself, by such as "horovodrun -np 2"
    dry_run: bool = False  # print the plan and stop
    debug: bool = False  # show tracebacks


@dataclass
class DoctorConfig(TrainConfig):
    """`python -m retina_dist.doctor`: takes whatever a training takes, and looks at `data` and `model`."""

    images: str = "decode"  # decode | header (opened and compared, not decoded) | none (only the annotations)
    output: str | None = None  # a JSON file


@dataclass
class ParityConfig(TrainConfig):
    """`python -m retina_dist.parity`: takes whatever a training takes."""

    processes: list[int] = field(default_factory=lambda: [1, 2, 4])
    launchers: list[str] = field(
        default_factory=lambda: ["torchrun", "horovodrun", "mpirun"]
    )  # those that are installed
    dtypes: list[str] = field(default_factory=lambda: ["fp64", "fp32"])
    steps: int = 3
    output: str | None = None  # a JSON file
    worker: str | None = None  # set in the processes that it starts


@dataclass
class ScalingConfig(TrainConfig):
    """`python -m retina_dist.benchmark scaling`: takes what a training takes; data.batch_size is that of one process."""

    processes: list[int] = field(default_factory=lambda: [2])  # beside one plain process, the base of the speed-up
    launchers: list[str] = field(default_factory=lambda: ["torchrun", "horovodrun", "mpirun"])  # those that are there
    steps: int = 8
    warmup: int = 3  # steps not timed; memory settles in the first two
    rounds: int = 3
    num_images: int | None = None  # of the epoch whose length is given; null: as many as the data has
    output: str | None = None  # a JSON file; the epoch lengths go beside it as .csv and .png
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one
    worker: str | None = None  # set in the processes that it starts


@dataclass
class EvalBenchmarkConfig:
    """`python -m retina_dist.benchmark eval`."""

    num_images: int = 5000  # the metric; as many of all as in COCO's validation set
    num_boxes: int = 36_000
    num_detections: int = 500_000
    num_classes: int = 80
    backends: list[str] = field(
        default_factory=lambda: ["ultrafast-pycocotools", "faster-coco-eval"]
    )  # compared with pycocotools, which takes most of the time; []: no metric
    batches: list[int] = field(default_factory=lambda: [1, 4, 8])  # the post-processing; []: none
    canvas: list[int] = field(default_factory=lambda: [800, 1088])  # height and width in px
    device: str = "auto"  # of the post-processing
    rounds: int = 3
    num_threads: int = 1
    seed: int = 0
    output: str | None = None  # a JSON file
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one
    debug: bool = False


@dataclass
class StepConfig(TrainConfig):
    """`python -m retina_dist.benchmark step`: model and optimizer as for a training; images are noise."""

    # torchvision[-tf32|-fp16] is its loop; fp32[-compile], tf32, fp16, bf16[-compile][-graph] are ours; the first is the base
    paths: list[str] = field(default_factory=lambda: ["torchvision", "fp32", "bf16"])
    batch_sizes: list[int] = field(default_factory=lambda: [16])
    canvases: list[list[int]] = field(default_factory=lambda: [[128, 128]])  # height and width, multiples of 32
    plot: str | None = None  # a PNG file
    shares: list[float] | None = None  # of the images of each canvas, for a row of the mix; null: no such row
    count_canvas: list[int] | None = field(default_factory=lambda: [128, 160])  # for the count of operators; null: none
    num_classes: int = 91
    boxes: int = 7  # of each image
    steps: int = 4
    warmup: int = 2  # steps not timed
    rounds: int = 5
    threads: int = 0  # 0: torch's default
    output: str | None = None  # a JSON file
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one


@dataclass
class DataBenchmarkConfig(TrainConfig):
    """`python -m retina_dist.benchmark data`: takes whatever a training takes."""

    pictures: int = 32  # read in each round; without data.root or data.train_annotations so many are made, 640 x 480
    rounds: int = 5
    workers: list[int] = field(default_factory=lambda: [0, 1, 2])
    output: str | None = None  # a JSON file
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one


@dataclass
class MachineConfig:
    """A machine that is not in the table of `retina_dist.benchmark.communication`, which explains the fields."""

    gpu: str = "GPU"
    gpus: int | None = None
    inside: float | None = None  # GB/s, bus bandwidth of an all-reduce among its GPUs
    inside_us: float | None = None  # microseconds of a hop
    outside: float | None = None  # GB/s between machines, all network cards of one together
    outside_us: float | None = None


@dataclass
class ModelBenchmarkConfig:
    """`python -m retina_dist.benchmark model`: a calculation; nothing is run but the counting of the model's gradients."""

    model: ModelConfig = field(default_factory=ModelConfig)
    sku: list[str] = field(default_factory=lambda: ["Standard_ND96amsr_A100_v4"])  # kinds of machine, or custom
    custom: MachineConfig = field(default_factory=MachineConfig)
    gpus: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64, 128])
    step_ms: list[float] | None = None  # a step of one such GPU, measured; one for each of sku
    batch_size: int | None = None  # images of it
    measured: list[str] | None = None  # instead of both: files that `benchmark step output=FILE` wrote on one such GPU
    canvas: list[int] = field(default_factory=lambda: [800, 1088])  # height and width; only parts' shares depend on it
    gradient_mb: float | None = None  # 1e6 bytes of gradients; null: of the model's trainable parameters
    backward_share: float | None = None  # of a step; null: by the model's operations
    compression: str = "none"  # none | bf16 | fp16: gradients on the wire
    bucket_mb: float = 25.0  # gradients averaged together
    overlap: bool = True  # average while the backward pass goes on
    allreduce: str = "auto"  # auto (the faster) | ring | hierarchical
    straggler_cv: float = 0.0  # deviation over mean of GPUs' step times; 0: all are always equally fast
    epochs: int = 12
    num_images: int = 117_266  # train2017 without its images that have no object
    price_per_gpu_hour: list[float] | None = None  # one for each of sku, in any currency; null: no cost is given
    price_per_vm_hour: list[float] | None = None  # or that of a whole machine
    seed: bool = False  # only compare with what was measured in 2018
    table: str | None = None  # a CSV file
    plot: str | None = None  # a PNG file
    output: str | None = None  # a JSON file
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one
    debug: bool = False


@dataclass
class EvaluateConfig:
    """`python -m retina_dist.evaluate`."""

    checkpoint: str | None = None  # a run's .pt file ...
    results: str | None = None  # ... or a COCO results json
    annotations: str | None = None  # null: the checkpoint's validation set
    images: str | None = None
    output_dir: str | None = None
    backend: str = (
        "auto"  # auto (the fastest that is installed) | ultrafast-pycocotools | faster-coco-eval | pycocotools
    )
    device: str = "auto"
    precision: str = "fp32"
    batch_size: int = 8
    num_workers: int = 2
    debug: bool = False


@dataclass
class PredictConfig:
    """`python -m retina_dist.predict`."""

    checkpoint: str = MISSING
    input: str = MISSING  # file, folder or glob
    output_dir: str = "predictions"
    score_threshold: float = 0.3
    max_pixels: int = 178_956_970  # a file whose header claims more is left out
    device: str = "auto"
    precision: str = "fp32"
    debug: bool = False


@dataclass
class ReplayConfig:
    """`python -m retina_dist.replay`."""

    event: str = MISSING  # a nonfinite_STEP.json
    device: str = "auto"
    debug: bool = False


@dataclass
class ConvertConfig:
    """`python -m retina_dist.convert`."""

    format: str = MISSING  # csv | voc
    annotations: str = MISSING  # csv: the annotations file; voc: the VOC folder
    classes: str | None = None  # csv: the classes file
    split: str = "train"  # voc: name of the list in ImageSets/Main
    output: str = MISSING  # COCO json to write
    debug: bool = False


CHOICES = {
    "data.format": ("coco", "csv", "voc"),
    "data.label_mapping": ("contiguous", "category_id"),
    "data.missing_images": ("error", "skip"),
    "data.bad_images": ("error", "skip"),
    "data.resize": ("auto", "workers", "device"),
    "model.variant": ("v1", "v2"),
    "model.batch_norm": ("frozen", "live", "sync"),
    "model.box_loss": (None, "l1", "smooth_l1", "giou"),
    "model.loss_path": ("batched", "torchvision"),
    "optimizer.name": ("sgd", "adamw", "adam"),
    "optimizer.lr_rule": ("none", "linear", "sqrt", "adasum"),
    "schedule.name": ("multistep", "cosine", "constant"),
    "trainer.precision": ("fp32", "bf16", "fp16"),
    "trainer.clip_kind": ("global_norm", "tensor_norm", "value"),
    "trainer.monitor_mode": ("max", "min"),
    "strategy.name": ("auto", "single", "ddp", "horovod"),
    "strategy.compression": ("none", "bf16", "fp16"),
    "strategy.reduction": ("average", "adasum"),
    "compression": ("none", "bf16", "fp16"),
    "backend": ("auto", "ultrafast-pycocotools", "faster-coco-eval", "pycocotools"),
    "precision": ("fp32", "bf16", "fp16"),
    "format": ("csv", "voc"),
}

AT_LEAST = {
    "seed": 0,
    "data.batch_size": 1,
    "data.val_batch_size": 1,
    "data.num_workers": 0,
    "data.val_min_size": 1,
    "data.max_size": 32,
    "data.num_buckets": 1,
    "data.max_pixels": 1,
    "model.num_classes": 1,
    "model.fpn_channels": 1,
    "model.batch_norm_eps": 0,
    "model.detections_per_image": 1,
    "model.topk_candidates": 1,
    "model.focal_gamma": 0,
    "model.smooth_l1_beta": 0,
    "optimizer.lr": 0,
    "optimizer.lr_reference_batch": 1,
    "optimizer.eps": 0,
    "optimizer.weight_decay": 0,
    "optimizer.norm_weight_decay": 0,
    "optimizer.bias_weight_decay": 0,
    "optimizer.backbone_lr_scale": 0,
    "trainer.log_every": 1,
    "trainer.accumulate": 1,
    "trainer.overfit_batches": 0,
    "trainer.keep_last": 1,
    "trainer.keep_top": 0,
    "trainer.patience": 1,
    "trainer.max_nonfinite_steps": 0,
    "trainer.num_threads": 1,
    "strategy.timeout_s": 1,
    "strategy.fusion_mb": 0,
    "strategy.cycle_time_ms": 0,
    "strategy.commit_every": 1,
    "pictures": 1,
    "rounds": 1,
    "batch_size": 1,
    "num_workers": 0,
    "max_pixels": 1,
    "num_images": 1,
    "epochs": 1,
    "straggler_cv": 0,
    "num_threads": 1,
    "num_boxes": 0,
    "num_detections": 0,
    "num_classes": 1,
}

FRACTIONS = (
    "data.hflip",
    "data.vflip",
    "data.photometric",
    "data.iou_crop",
    "model.score_threshold",
    "model.nms_threshold",
    "model.foreground_iou",
    "model.background_iou",
    "model.focal_alpha",
    "optimizer.momentum",
    "schedule.warmup_factor",
    "schedule.gamma",
    "schedule.final_factor",
    "trainer.ema_decay",
    "score_threshold",
    "backward_share",
)


def validate(config: Any) -> None:
    """Raise ConfigError for the first value that cannot be, by its key."""
    for key, value in _leaves(asdict(config)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} is no finite number.")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{key}={value} is too large; it must be below 2^63.")
    for key, allowed in CHOICES.items():
        value = _get(config, key, allowed[0])
        if value not in allowed:
            near = difflib.get_close_matches(str(value), [str(a) for a in allowed], 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"{key}={value} is not one of {', '.join(map(str, allowed))}{hint}")
    for key, least in AT_LEAST.items():
        value = _get(config, key, None)
        if value is not None and value < least:
            raise ConfigError(f"{key}={value} is too small; it must be at least {least}.")
    for key in FRACTIONS:
        value = _get(config, key, None)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{key}={value} is not within 0 and 1.")
    if hasattr(config, "data"):
        _validate_data(config.data)
    if hasattr(config, "model"):
        _validate_model(config.model)
    if hasattr(config, "optimizer"):
        _validate_training(config.optimizer, config.trainer)
    if hasattr(config, "strategy"):
        _validate_strategy(config.strategy)


def _validate_data(data: DataConfig) -> None:
    if data.name in ("", ".", "..") or re.search(r"[/\\\0]", data.name):
        raise ConfigError(f"data.name={data.name} is no name for a folder below runs/.")
    if not data.min_sizes or min(data.min_sizes) < 1:
        raise ConfigError(f"data.min_sizes={data.min_sizes} needs at least one size in pixels, such as [800].")
    factors = data.scale_jitter
    if factors is not None and not (len(factors) == 2 and 0 < factors[0] <= factors[1]):
        raise ConfigError(f"data.scale_jitter={factors} is not a pair of rising factors, such as [0.8,1.25].")


def _validate_model(model: ModelConfig) -> None:
    if model.background_iou > model.foreground_iou:
        raise ConfigError(
            f"model.background_iou={model.background_iou} is above model.foreground_iou={model.foreground_iou}; swap them."
        )
    sizes, ratios = model.anchor_sizes, model.aspect_ratios
    if not sizes or not sizes[0] or any(len(s) != len(sizes[0]) or min(s) < 1 for s in sizes):
        raise ConfigError(
            f"model.anchor_sizes={sizes} needs equally many sizes in pixels, at least one, on each level."
        )
    if not ratios or min(ratios) <= 0:
        raise ConfigError(f"model.aspect_ratios={ratios} needs at least one ratio of height to width, such as [1.0].")


def _validate_training(optimizer: OptimizerConfig, trainer: TrainerConfig) -> None:
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise ConfigError(f"optimizer.betas={optimizer.betas} is not a pair of numbers from 0 to below 1.")
    if optimizer.nesterov and optimizer.momentum == 0:
        raise ConfigError("optimizer.nesterov=true needs a momentum; give optimizer.momentum=0.9.")
    if trainer.clip is not None and trainer.clip <= 0:
        raise ConfigError(f"trainer.clip={trainer.clip} leaves no gradient; trainer.clip=null turns clipping off.")


def _validate_strategy(strategy: StrategyConfig) -> None:
    for key in ("fp16_scale", "bucket_mb"):
        value = getattr(strategy, key)
        if value is not None and value <= 0:
            raise ConfigError(f"strategy.{key}={value} is too small; it must be above 0.")
    if strategy.reduction == "adasum" and strategy.compression != "none":
        raise ConfigError(
            f"strategy.compression={strategy.compression} is for averaged gradients; give strategy.compression=none with "
            "strategy.reduction=adasum."
        )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no dictionary; the items of a list under the list's key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _get(config: Any, key: str, default: Any) -> Any:
    for part in key.split("."):
        if config is None or not hasattr(config, part):
            return default
        config = getattr(config, part)
    return config


def config_dir() -> str:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


_SCHEMAS = {
    "train": TrainConfig,
    "doctor": DoctorConfig,
    "parity": ParityConfig,
    "benchmark_step": StepConfig,
    "benchmark_scaling": ScalingConfig,
    "benchmark_model": ModelBenchmarkConfig,
    "benchmark_data": DataBenchmarkConfig,
    "benchmark_eval": EvalBenchmarkConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "convert": ConvertConfig,
    "replay": ReplayConfig,
}


def register_schemas() -> None:
    """Make the schemas known to Hydra as `train_schema` and so on; the files of conf/ begin with them."""
    store = ConfigStore.instance()
    for name, schema in _SCHEMAS.items():
        store.store(name=f"{name}_schema", node=schema)


def load_config(name: str, overrides: list[str]) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object (e.g. TrainConfig), validated.

    For use as a library: `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    Raises ConfigError.
    """
    register_schemas()
    with _explained(name), initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose(name, overrides)
    return to_object(composed, name)


def to_object(composed: Any, name: str) -> Any:
    """The dataclass instance of a composed config, validated. Raises ConfigError."""
    known = _settings(_SCHEMAS[name])
    with _explained(name):
        for key, _ in _leaves(OmegaConf.to_container(composed)):
            if key not in known:  # Hydra lets +KEY=VALUE add anything
                raise ConfigError(_unknown(name, key))
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
        config = OmegaConf.to_object(composed)
    validate(config)
    return config


def train_config_of(content: dict[str, Any]) -> TrainConfig:
    """The settings that a checkpoint holds; those that it is too old for have their defaults. Raises ConfigError."""
    try:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), content))
    except OmegaConfBaseException as error:
        raise ConfigError(f"the checkpoint's settings are not those of this version ({error}).") from error
    assert isinstance(found, TrainConfig)
    return found


@dataclass(frozen=True)
class SweepJob:
    """One combination of a sweep's values; `swept` has those that the sweep varies, as text, by key."""

    name: str  # of the schema
    overrides: tuple[str, ...]
    swept: dict[str, str]

    def load(self) -> Any:
        """The typed settings. Raises ConfigError, the same on every process of a job."""
        return load_config(self.name, list(self.overrides))


def entry_point(
    name: str, sweep: Callable[[list[SweepJob], Callable[[Any], Any]], int] | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a `main()` of a function of a typed config: Hydra's command line, our errors.

    A UserError is printed as one line and the process exits with 2; with `debug=true` the traceback is shown too.
    With --multirun, `sweep` gets the jobs of Hydra's product and the function, and its answer is the exit code. Without a
    `sweep`, or when another of Hydra's sweepers or launchers is asked for, Hydra calls the function for each job itself.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=config_dir(), config_name=name)
        def run(composed: Any) -> Any:
            with reported_errors(debug=bool(composed.get("debug"))):
                return function(to_object(composed, name))

        def main() -> None:
            register_schemas()
            debug = "debug=true" in sys.argv[1:]
            with reported_errors(debug, same_everywhere=True):
                jobs = _check_overrides(name, sys.argv[1:])
            if sweep is None or not jobs or _asks_for_a_plugin(sys.argv[1:]):
                run()
                return
            with reported_errors(debug):
                raise SystemExit(sweep(jobs, function))

        return main

    return decorate


def _asks_for_a_plugin(arguments: list[str]) -> bool:
    return any(a.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher=")) for a in arguments)


@contextmanager
def reported_errors(debug: bool = False, same_everywhere: bool = False) -> Iterator[None]:
    """Print a UserError as one line and exit with 2 (1 if another process was lost), anything else with its rank.

    Of a job's processes, which may all have the same error, only the one that should speaks; `same_everywhere` says that an
    error comes of the command line, so that it is the first.
    """
    try:
        launch = detect_launch()
    except ConfigError as error:
        tell(f"error: {error}", sys.stderr)
        raise SystemExit(2) from None
    label = f"[rank {launch.rank}] " if launch.world_size > 1 else ""
    try:
        yield
    except UserError as error:
        if debug:
            tell(_labelled(traceback.format_exc(), label), sys.stderr)
        if launch.rank == error.speaker or not (error.everywhere or same_everywhere):
            tell(f"{label if launch.rank else ''}{error.label}{error}", sys.stderr)
        elif error.everywhere:
            time.sleep(1.0)  # the one that speaks goes first: launchers end the others as soon as one has gone
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if launch.rank == 0:
            tell("interrupted", sys.stderr)
        raise SystemExit(130) from None
    except Exception:
        if not label:
            raise
        tell(_labelled(traceback.format_exc(), label), sys.stderr)
        raise SystemExit(1) from None


def _labelled(text: str, label: str) -> str:
    return "\n".join(label + line for line in text.rstrip().splitlines())


# Hydra's options that take the next argument as their value.
FLAGS_WITH_VALUE = (
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
)


# Of what can be said to Hydra itself, what decides which jobs there are and what they are.
HYDRAS_OWN = ("hydra.searchpath", "hydra.sweeper.", "hydra.mode")


def _check_overrides(name: str, arguments: list[str]) -> list[SweepJob]:
    """Compose once before Hydra does, so that a wrong override ends in our sentence and exit code.

    Returns the jobs of a sweep, none without --multirun. A sweep passes when one of its jobs can be composed.
    """
    if any(a in ("--help", "-h", "--hydra-help", "--version", "--info", "-i") for a in arguments):
        return []
    search = [arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("--config-dir", "-cd")]
    search += [a.split("=", 1)[1] for a in arguments if a.startswith("--config-dir=")]
    for folder in search:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder} is no folder.")
    pairs = zip(arguments, ["", *arguments], strict=False)
    values = [a for a, before in pairs if not a.startswith("-") and before not in FLAGS_WITH_VALUE]
    values = [v for v in values if v.startswith(HYDRAS_OWN) or not v.startswith("hydra.")]
    if search:
        values.append(f"hydra.searchpath=[{','.join('file://' + str(Path(s).resolve()) for s in search)}]")
    looking = any(a in ("--cfg", "-c") for a in arguments)  # a configuration may be looked at unfinished
    multirun = any(a in ("--multirun", "-m") for a in arguments)
    with _explained(name), initialize_config_dir(config_dir(), version_base="1.3"):
        jobs = [] if looking else _jobs_of(name, values, multirun)
        composed = None if jobs else compose(name, values)
    if jobs:
        _check_a_job(jobs)
    elif not looking:
        to_object(composed, name)
    return jobs


def _jobs_of(name: str, values: list[str], multirun: bool) -> list[SweepJob]:
    """Hydra's product of all values, those that a file gives as hydra.sweeper.params included; none without a sweep."""
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    parsed = parser.parse_overrides(values)
    multirun = multirun or "hydra.mode=MULTIRUN" in values
    settings = _hydra_settings(name, BasicSweeper.split_arguments(parsed, None)[0] if multirun else [values])
    if not multirun and settings.mode != RunMode.MULTIRUN:
        return []
    params = [f"{key}={value}" for key, value in (settings.sweeper.get("params") or {}).items()]
    said = [o for o in parsed if not o.get_key_element().startswith(("hydra.sweeper.", "hydra.mode"))]
    overrides = {o.get_key_element(): o for o in [*parser.parse_overrides(params), *said]}  # the command line wins
    jobs = BasicSweeper.split_arguments(list(overrides.values()), None)[0]
    swept = [key for key, override in overrides.items() if override.is_sweep_override()]
    return [SweepJob(name, tuple(job), _texts(job, swept)) for job in jobs]


def _hydra_settings(name: str, jobs: list[list[str]]) -> Any:
    """What the command line and the files say to Hydra itself, by the first job that can be composed."""
    first = None
    for job in jobs:
        try:
            return compose(name, job, return_hydra_config=True).hydra
        except (HydraException, OmegaConfBaseException) as error:
            first = first or error
    assert first, "there is a job"
    raise first


def _texts(job: list[str], keys: list[str]) -> dict[str, str]:
    values = dict(override.split("=", 1) for override in job if "=" in override)
    return {key.lstrip("+"): values[key] for key in keys}


def _check_a_job(jobs: list[SweepJob]) -> None:
    """Raise the first job's ConfigError when every job has one."""
    first = None
    for job in jobs:
        try:
            job.load()
            return
        except ConfigError as error:
            first = first or error
    assert first, "a sweep has jobs"
    raise first


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what Hydra and omegaconf raise into a ConfigError that names the key, the value and the nearest valid key."""
    try:
        yield
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} cannot be read as KEY=VALUE; quote the whole argument for the shell if the value has "
            "spaces, commas or brackets."
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(name, error)) from error
    except OverflowError as error:  # a whole number of 400 digits where any number may stand
        key = re.search(r"full_key: (\S+)", str(error))
        raise ConfigError(f"{key[1] if key else 'a value'} is too large for a number.") from error
    except RecursionError as error:
        raise ConfigError("a value is nested too deeply; no setting is more than a list of lists.") from error
    except OSError as error:  # a name that is too long for any file, for one
        raise ConfigError(
            f"a file of the configuration cannot be read ({error.strerror}); check the names of data, model and the like."
        ) from error
    except AssertionError as error:  # omegaconf's answer to a key below a node that is null
        raise ConfigError(
            "a key below data.shapes, such as data.shapes.num_train=…, can be set with data=shapes only."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of the configuration is no YAML: {' '.join(str(error).split())}.") from error
    except UserError:
        raise
    except ValueError as error:  # Hydra's answer to model=3 or model=null
        raise ConfigError(f"groups such as data and model take a name, as in model=retinanet_r50 ({error}).") from error


def _sentence(name: str, error: Exception) -> str:
    """What Hydra or omegaconf found, with the key, the value and what would be right."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, value = str(error.missing_cfg_file).rpartition("/")
        near = difflib.get_close_matches(value, error.options, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        return f"{group}={value} does not exist; {hint} are {', '.join(error.options)}."
    known = _settings(_SCHEMAS[name])
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", str(error)):
        key, value = several.groups()
        one = f"[{value}]" if get_origin(known.get(key)) is list else f"'{value}'"
        return (
            f'{key}={value} is more than one value; write "{key}={one}" if one is meant, or add --multirun for a run '
            "with each."
        )
    cause, key = _cause(error)
    file = re.match(r"In '([^']+)'", str(error))
    where = f"{file[1]}.yaml: " if file else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and key:
        asked = re.match(r"Could not override '([^']+)'", str(error))
        return where + _unknown(name, asked[1] if asked and asked[1] not in known else key)
    if given := re.match(r"Error merging override \+*([^=]+)=(.*)", str(error)):
        if given[1] not in known:
            return _unknown(name, given[1])
        if not is_dataclass(_plain(known[given[1]])):
            return _wrong_type(given[1], given[2], _plain(known[given[1]]))
    if file and isinstance(cause, ValidationError) and key in known:
        return f"{where}{key} is not {_in_words(_plain(known[key]))}."
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return where + (f"{key}: " if key else "") + f"{reason.rstrip('.')}."


def _cause(error: BaseException) -> tuple[BaseException, str]:
    """The first exception of a chain, and the setting it was about, "" if none of them says."""
    key = getattr(error, "full_key", None) or ""
    while inner := error.__cause__ or error.__context__:
        error, key = inner, getattr(inner, "full_key", None) or key
    return error, re.sub(r"\[.*", "", key)


def _wrong_type(key: str, value: str, hint: Any) -> str:
    missing = str(hint).count("list[") - (len(value) - len(value.lstrip("[")))  # brackets left out
    remedy = f"; write {key}={'[' * missing}{value}{']' * missing}." if missing > 0 and value != "null" else "."
    return f"{key}={value} is not {_in_words(hint)}{remedy}"


def _unknown(name: str, key: str) -> str:
    """That there is no such setting, and which one may be meant: one that ends alike, else one spelled alike."""
    settings = _settings(_SCHEMAS[name])
    known = [k for k in settings if not key.startswith(f"{k}.") or not is_dataclass(_plain(settings[k]))]
    ends = [k.rpartition(".")[2] for k in known]
    end = key.rpartition(".")[2]
    alike = difflib.get_close_matches(key, known, 1, 0.6) or [
        known[ends.index(e)] for e in difflib.get_close_matches(end, ends, 1, 0.7)
    ]
    near = [k for k, e in zip(known, ends, strict=True) if e == end] or alike
    command = f"python -m retina_dist.{name.replace('_', ' ')} --cfg job"
    hint = f"did you mean {' or '.join(near)}?" if near else f"see the keys with {command}."
    return f"{key} is not a setting; {hint}"


def _settings(schema: type, prefix: str = "") -> dict[str, Any]:
    """Each dotted key of a schema and its type, sections included."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(schema).items():
        found[prefix + name] = hint
        if is_dataclass(section := _plain(hint)):
            found |= _settings(section, f"{prefix}{name}.")  # type: ignore[arg-type]
    return found


def _plain(hint: Any) -> Any:
    """X of `X | None`, else the type itself."""
    return next(a for a in get_args(hint) if a is not type(None)) if type(None) in get_args(hint) else hint


WORDS = {int: "whole number", float: "number", str: "text", bool: "switch; write true or false"}


def _in_words(hint: Any, plural: bool = False) -> str:
    """A type as people call it, such as "a list of whole numbers"."""
    noun, rest = WORDS.get(hint, "list"), ""
    if get_origin(hint) is list:
        rest = f" of {_in_words(get_args(hint)[0], plural=True)}"
    return f"{noun}s{rest}" if plural else f"a {noun}{rest}"
