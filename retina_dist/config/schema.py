"""Every setting with its type, its default and its comment, and what stops a wrong value.

Layer 4. `conf/` holds the values of the experiments; defaults that all share stand here, once.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from omegaconf import MISSING

from retina_dist.errors import ConfigError

# Optional[...] and list[...] of plain types, not unions: what omegaconf's structured configs understand.


@dataclass
class ShapesConfig:
    """The drawn data set; see `retina_dist.detection.data.shapes`."""

    num_train: int = 800
    num_val: int = 160
    image_size: int = 128
    seed: int = 0


@dataclass
class DataConfig:
    """Where the images are and how they become batches."""

    name: str = MISSING
    format: str = "coco"  # coco | csv | voc | shards
    # folder in COCO layout (csv: train.csv, val.csv, classes.csv; voc: a VOC2007-like folder; shards: what retina_dist.shards
    # wrote), a path or a URL such as az://container/coco; so are the next five
    root: str | None = None
    train_annotations: str | None = None  # explicit files, instead of or beside root
    train_images: str | None = None
    val_annotations: str | None = None
    val_images: str | None = None
    classes: str | None = None  # csv only: name,index
    shapes: ShapesConfig | None = None  # draw this data set into root if it is not there
    label_mapping: str = "contiguous"  # contiguous | category_id (label = COCO id, as in torchvision's COCO weights)
    # [THEIRS, OURS]: a category name (or id) of the validation file, on resume of both files, and the label's name that it is taken
    # for, where names differ; OURS=null leaves a category out
    category_map: list[list[str | None]] = field(default_factory=list)
    keep_empty_images: bool = True
    missing_images: str = "error"  # error | skip: files that the annotations name and that are not there
    bad_images: str = "error"  # error | skip: files that cannot be decoded
    max_pixels: int = 178_956_970  # a file whose header claims more is bad and never decoded

    batch_size: int = 16  # images of one optimizer step, over all processes and accumulated micro-batches
    val_batch_size: int = 8
    num_workers: int = 2
    resize: str = "auto"  # workers | device (flips and resizes too) | auto: device where that is a GPU
    cache: str | None = (
        None  # a folder for decoded images, written as they are first read; 0.9 MB an image of 640 x 480
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
    """Arguments of `retina_dist.detection.model.retinanet.build_retinanet`, and weights."""

    num_classes: int | None = None  # null: as many as the data has
    backbone: str = "resnet50"  # resnet18 | resnet34 | resnet50 | resnet101
    variant: str = "v1"  # v1 | v2: torchvision's two RetinaNets
    fpn_channels: int = 256
    trainable_layers: int = 5  # ResNet stages that train, counted from the last; 5 is all
    norm: str = "bn"  # frozen_bn | bn | sync_bn
    norm_eps: float | None = None  # null: that of the weights where they tell it (COCO_V1: 0), else 1e-5
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
    loss_impl: str = "batched"  # batched | torchvision (the slow reference)
    weights: str | None = None  # whole detector: a file, a URL or e.g. RetinaNet_ResNet50_FPN_Weights.COCO_V1
    backbone_weights: str | None = None  # classifier: a file, a URL or e.g. ResNet50_Weights.IMAGENET1K_V1


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

    max_duration: str = MISSING
    stop_after: str | None = None  # end early with a checkpoint, to go on with resume=
    validate_every: str = "1epoch"
    checkpoint_every: str = "1epoch"
    checkpoint_minutes: float | None = None  # and after so many minutes without one
    log_every: int = 10  # steps
    accumulate: int = 1  # micro-batches of one optimizer step on each process
    precision: str = "fp32"  # fp32 | tf32 (on a GPU, products and convolutions round to TF32) | bf16 | fp16
    gradient_clip: float | None = None
    gradient_clip_algorithm: str = "global_norm"  # global_norm | tensor_norm | value
    ema_decay: float | None = None  # e.g. 0.999; validation and best then use the average
    channels_last: bool = False
    compile: bool = False  # torch.compile; the first steps of each canvas take minutes
    cuda_graphs: bool = (
        False  # replay forward and backward pass instead of launching each kernel; pays with small batches
    )
    deterministic: bool = False  # only operations that give the same bits each time; slower on GPUs
    num_threads: int | None = None  # torch threads of this process; null: torch's own choice
    monitor: str = "coco/AP"
    monitor_mode: str | None = None  # max | min; null: min for a loss, else max
    patience: int | None = None  # stop after so many validations without a better monitor
    scheduled_events: str | None = None  # Azure: http://169.254.169.254, to stop in time when the machine is taken away
    max_nonfinite_steps: int = 5  # steps in a row with an infinite or NaN loss or gradient that are skipped
    check_replicas_every: str = "1epoch"  # compare the ranks' weights, optimizer and modules bit by bit; 0steps: never
    checkpoint_dir: str | None = None  # a folder or a URL such as az://container/run; null: the run's checkpoints/
    keep_last: int = 1  # checkpoints kept
    save_top_k: int = 1
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
    static_graph: bool = False  # ddp: every step uses the same parameters; not with trainer.accumulate above 1
    fusion_mb: float = 32.0  # horovod: gradients sent together at most
    cycle_time_ms: float | None = None  # horovod: how often it looks for work; null: its own 1 ms
    hierarchical: bool = False  # horovod: sum within each host first; pays on slow Ethernet
    reduction: str = "average"  # average | adasum (horovod over MPI)
    commit_every: int = 10  # horovod elastic: steps between the points, in memory, that survivors go back to


@dataclass
class NcclConfig:
    """NCCL's environment variables, set where you have not set them yourself; null: left alone. See `strategies/nccl.py`."""

    name: str = "none"
    socket_ifname: str | None = None  # NCCL_SOCKET_IFNAME: network interfaces that begin so; =NAME for one exactly
    ib_disable: bool | None = None  # NCCL_IB_DISABLE: TCP even where there is InfiniBand
    ib_pci_relaxed_ordering: int | None = None  # NCCL_IB_PCI_RELAXED_ORDERING: 0 off | 1 on | 2 where it can be had
    topo_file: str | None = None  # NCCL_TOPO_FILE: what the machine is like inside; left out where the file is missing
    debug: str | None = None  # NCCL_DEBUG: WARN | INFO | TRACE


@dataclass
class LoggingConfig:
    """What a run writes beside its checkpoints."""

    tensorboard: bool = True
    plots: bool = True
    per_rank_logs: bool = False  # each rank's words and metrics in logs/rank_N.log
    mlflow: str = "auto"  # auto (where a server is named and mlflow can be imported) | true | false
    mlflow_uri: str | None = None  # the tracking server; null: MLFLOW_TRACKING_URI
    mlflow_checkpoint: bool = False  # upload best.pt at the end
    mlflow_parent: str | None = None  # id of the run that this one is a child of; a sweep gives it to its jobs
    experiment: str | None = None  # of MLflow; null: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID or retina_dist
    run_name: str | None = None  # in MLflow; null: that of the run folder

    def __post_init__(self) -> None:
        self.mlflow = self.mlflow.lower()  # mlflow=true arrives as "True"


@dataclass
class TrainConfig:
    """`python -m retina_dist.train`."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
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
class ShardsConfig(TrainConfig):
    """`python -m retina_dist.shards`: takes whatever a training takes, and writes what `data` names."""

    output: str = MISSING  # a folder or a URL
    shard_mb: int = (
        256  # MiB; a shard is the part that is written again after an interruption, and no larger request is made of it
    )
    verify: bool = False  # read everything back and compare


@dataclass
class ParityConfig(TrainConfig):
    """`python -m retina_dist.parity`: takes whatever a training takes."""

    processes: list[int] = field(default_factory=lambda: [2])
    launchers: list[str] = field(
        default_factory=lambda: ["torchrun", "horovodrun", "mpirun"]
    )  # those that are installed
    dtypes: list[str] = field(default_factory=lambda: ["fp64"])  # fp64 | fp32
    steps: int = 2  # a whole one and a short one; the third begins the second epoch
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

    num_images: int = 32  # read in each round; without data.root or data.train_annotations so many are made, 640 x 480
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
class ModelBenchmarkConfig(TrainConfig):
    """`python -m retina_dist.benchmark model`: a calculation; nothing is run but the counting of the model's gradients.

    Takes what a training takes, so that experiment=NAME gives a recipe's model, length and batch.
    """

    sku: list[str] = field(default_factory=lambda: ["Standard_ND96amsr_A100_v4"])  # kinds of machine, or custom
    custom: MachineConfig = field(default_factory=MachineConfig)
    gpus: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64, 128])
    step_ms: list[float] | None = None  # a step of one such GPU, measured; one for each of sku
    batch_size: int | None = None  # images of it
    measured: list[str] | None = (
        None  # instead of both: files of `benchmark step` or `scaling` (output=FILE) on such a GPU
    )
    canvas: list[int] = field(default_factory=lambda: [800, 1088])  # height and width; only parts' shares depend on it
    gradient_mb: float | None = None  # 1e6 bytes of gradients; null: of the model's trainable parameters
    backward_share: float | None = None  # of a step; null: by the model's operations
    compression: str = "none"  # none | bf16 | fp16: gradients on the wire
    bucket_mb: float = 25.0  # gradients averaged together
    overlap: bool = True  # average while the backward pass goes on
    allreduce: str = "auto"  # auto (the faster) | ring | hierarchical
    straggler_cv: float = 0.0  # deviation over mean of GPUs' step times; 0: all are always equally fast
    epochs: int | None = None  # null: trainer.max_duration
    num_images: int | None = None  # null: as many as the data has; COCO's train2017 where data=coco has no data.root
    price: list[float] | None = None  # of a machine for an hour, one for each of sku, in any currency; null: no cost
    low_priority_price: list[float] | None = None  # the same for machines that may be taken away
    seed: bool = False  # only compare with what was measured in 2018
    table: str | None = None  # a CSV file
    plot: str | None = None  # a PNG file
    output: str | None = None  # a JSON file
    baseline: str | None = None  # such a file of an earlier run
    fail_under: float = 0.9  # exit with 1 when a ratio is less than this share of the earlier one


@dataclass
class EvaluateConfig:
    """`python -m retina_dist.evaluate`."""

    checkpoint: str | None = None  # a run's .pt file ...
    results: str | None = None  # ... or a COCO results json
    annotations: str | None = None  # null: the checkpoint's validation set
    images: str | None = None
    root: str | None = None  # data.root again, where that of the checkpoint is behind a URL or was moved
    category_map: list[list[str | None]] = field(default_factory=list)  # as data.category_map, of `annotations`
    output_dir: str | None = None
    nccl: NcclConfig = field(default_factory=NcclConfig)
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
class ServeConfig:
    """`python -m retina_dist.serve`."""

    checkpoint: str = MISSING
    host: str = "127.0.0.1"  # 0.0.0.0: all of this machine's addresses
    port: int = 8080  # 0: any that is free
    api_key: str | None = (
        None  # what /score wants as `Authorization: Bearer KEY`; $RETINA_DIST_API_KEY, which ps does not show
    )
    score_threshold: float = 0.0  # beside the checkpoint's own
    max_body_mb: float = 20.0  # 1e6 bytes of a request
    max_pixels: int = 50_000_000  # an image whose header claims more is refused
    max_images: int = 16  # of a request
    max_request_pixels: int = 100_000_000  # of a request's images together
    max_queue: int = 64  # images taken and not yet answered; more are refused with 429
    max_batch: int | None = None  # images of one canvas in one pass; null: 8 on a GPU, 1 on a CPU
    wait_ms: float = 5.0  # how long an image waits for others at most
    prepare_threads: int = 2  # that read bodies, decode and resize; requests take turns
    max_connections: int = 256  # with more, the one that has waited longest for its client is closed
    receive_s: float = 30.0  # for a request to arrive, and for an answer to be taken; then the connection is closed
    shutdown_s: int = 30  # after SIGTERM, for the requests under way; the rest is answered with 503
    device: str = "auto"
    precision: str = "fp32"
    debug: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in SERVE_RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name}={value} is out of range; give {least:g} to {most:g}.")
        if self.max_request_pixels < self.max_pixels:
            raise ConfigError(
                f"max_request_pixels={self.max_request_pixels} refuses images that max_pixels={self.max_pixels} allows; raise it, "
                "or lower max_pixels."
            )
        if self.max_connections <= self.max_queue:
            raise ConfigError(
                f"max_connections={self.max_connections} leaves none for health checks beside max_queue={self.max_queue} requests; "
                "give more."
            )
        if self.api_key == "":
            raise ConfigError("api_key is empty; give a key, or null for a server that asks for none.")


# What can be meant; infinity and NaN cannot.
SERVE_RANGES = {
    "port": (0, 65_535),
    "score_threshold": (0, 1),
    "max_body_mb": (0.001, 2000),
    "max_pixels": (1, 10**9),
    "max_images": (1, 10_000),
    "max_request_pixels": (1, 10**11),
    "max_queue": (1, 10_000),
    "max_batch": (1, 1024),
    "wait_ms": (0, 10_000),
    "prepare_threads": (1, 256),
    "max_connections": (2, 100_000),
    "receive_s": (0.1, 3600),
    "shutdown_s": (0, 86_400),
}


@dataclass
class ExportConfig:
    """`python -m retina_dist.export`."""

    checkpoint: str = MISSING
    output: str = MISSING  # FILE.onnx, FILE.pt2 (torch.export), or FILE.pt (a state_dict for torchvision's own class)
    size: list[int] | None = None  # height and width in px of the only input taken; null: any
    images: str | None = None  # a file, folder or glob to compare on; null: drawn shapes
    num_images: int = 3  # compared
    box_tolerance: float = 0.1  # px; a larger difference to the PyTorch detector is an error, and nothing is written
    score_tolerance: float = 1e-3
    debug: bool = False


@dataclass
class ReplayConfig:
    """`python -m retina_dist.replay`."""

    event: str = MISSING  # a nonfinite_STEP.json
    root: str | None = None  # data.root again, where that of the run is behind a URL or was moved
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
    "data.format": ("coco", "csv", "voc", "shards"),
    "data.label_mapping": ("contiguous", "category_id"),
    "data.missing_images": ("error", "skip"),
    "data.bad_images": ("error", "skip"),
    "data.resize": ("auto", "workers", "device"),
    "model.variant": ("v1", "v2"),
    "model.norm": ("frozen_bn", "bn", "sync_bn"),
    "model.box_loss": (None, "l1", "smooth_l1", "giou"),
    "model.loss_impl": ("batched", "torchvision"),
    "optimizer.name": ("sgd", "adamw", "adam"),
    "optimizer.lr_rule": ("none", "linear", "sqrt", "adasum"),
    "schedule.name": ("multistep", "cosine", "constant"),
    "trainer.precision": ("fp32", "tf32", "bf16", "fp16"),
    "trainer.gradient_clip_algorithm": ("global_norm", "tensor_norm", "value"),
    "trainer.monitor_mode": (None, "max", "min"),
    "strategy.name": ("auto", "single", "ddp", "horovod"),
    "strategy.compression": ("none", "bf16", "fp16"),
    "strategy.reduction": ("average", "adasum"),
    "nccl.ib_pci_relaxed_ordering": (None, 0, 1, 2),
    "nccl.debug": (None, "VERSION", "WARN", "INFO", "TRACE"),
    "logging.mlflow": ("auto", "true", "false"),
    "compression": ("none", "bf16", "fp16"),
    "allreduce": ("auto", "ring", "hierarchical"),
    "backend": ("auto", "ultrafast-pycocotools", "faster-coco-eval", "pycocotools"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "format": ("csv", "voc"),
}

AT_LEAST = {
    "seed": 0,
    "data.batch_size": 1,
    "data.val_batch_size": 1,
    "data.num_workers": 0,
    "data.val_min_size": 1,
    "data.shapes.num_train": 1,
    "data.shapes.num_val": 0,
    "data.shapes.image_size": 32,
    "data.shapes.seed": 0,
    "model.trainable_layers": 0,
    "data.max_size": 32,
    "data.num_buckets": 1,
    "data.max_pixels": 1,
    "model.num_classes": 1,
    "model.fpn_channels": 1,
    "model.norm_eps": 0,
    "model.detections_per_image": 1,
    "model.topk_candidates": 1,
    "model.focal_gamma": 0,
    "model.smooth_l1_beta": 0,
    "optimizer.lr_reference_batch": 1,
    "optimizer.weight_decay": 0,
    "optimizer.norm_weight_decay": 0,
    "optimizer.bias_weight_decay": 0,
    "optimizer.backbone_lr_scale": 0,
    "trainer.log_every": 1,
    "trainer.accumulate": 1,
    "trainer.overfit_batches": 0,
    "trainer.keep_last": 1,
    "trainer.save_top_k": 0,
    "trainer.patience": 1,
    "trainer.max_nonfinite_steps": 0,
    "trainer.num_threads": 1,
    "strategy.timeout_s": 1,
    "strategy.fusion_mb": 0,
    "strategy.cycle_time_ms": 0,
    "strategy.commit_every": 1,
    "steps": 1,
    "warmup": 0,
    "boxes": 0,
    "threads": 0,
    "rounds": 1,
    "shard_mb": 1,
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
    "port": 0,
    "max_queue": 1,
    "max_batch": 1,
    "max_body_mb": 0,
    "wait_ms": 0,
    "prepare_threads": 1,
    "max_connections": 1,
    "shutdown_s": 0,
    "box_tolerance": 0,
    "score_tolerance": 0,
}

ABOVE: dict[str, float] = {
    "optimizer.lr": 0,
    "optimizer.eps": 0,
    "trainer.gradient_clip": 0,
    "trainer.checkpoint_minutes": 0,
    "trainer.ema_decay": 0,
    "model.foreground_iou": 0,
    "model.focal_alpha": 0,
    "strategy.fp16_scale": 0,
    "strategy.bucket_mb": 0,
    "bucket_mb": 0,
    "gradient_mb": 0,
    "fail_under": 0,
}

BELOW = {
    "optimizer.momentum": 1,
    "trainer.ema_decay": 1,
    "model.focal_alpha": 1,
    "model.score_threshold": 1,
    "score_threshold": 1,
}

# Far beyond what anyone trains with, and near enough that what passes fits into memory and time.
AT_MOST = {
    "data.shapes.num_train": 10**7,
    "data.shapes.num_val": 10**7,
    "data.shapes.image_size": 10**4,
    "data.batch_size": 10**6,
    "data.val_batch_size": 10**5,
    "data.num_workers": 10**3,
    "data.max_size": 10**5,
    "data.num_buckets": 10**4,
    "model.num_classes": 20_000,  # data.categories.MAX_LABELS
    "model.fpn_channels": 4096,
    "model.trainable_layers": 5,
    "model.norm_eps": 1,
    "model.detections_per_image": 10**5,
    "model.topk_candidates": 10**6,
    "model.focal_gamma": 100,
    "model.smooth_l1_beta": 10**6,
    "optimizer.lr": 1e30,  # far above divergence, and still a float32
    "optimizer.lr_reference_batch": 10**6,
    "optimizer.eps": 1,
    "optimizer.weight_decay": 10**3,
    "optimizer.norm_weight_decay": 10**3,
    "optimizer.bias_weight_decay": 10**3,
    "optimizer.backbone_lr_scale": 10**4,
    "trainer.accumulate": 10**6,
    "trainer.gradient_clip": 10**9,
    "trainer.checkpoint_minutes": 10**6,
    "trainer.overfit_batches": 10**6,
    "trainer.num_threads": 10**4,
    "strategy.fp16_scale": 2**24,
    "strategy.timeout_s": 10**7,
    "strategy.bucket_mb": 10**6,
    "strategy.fusion_mb": 10**6,
    "strategy.cycle_time_ms": 10**6,
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
    for key, value in leaves(asdict(config)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} is no finite number.")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{key}={value} is too large; it must be below 2^63.")
        for name, kind in (("a control character", "Cc"), ("half a character", "Cs")):
            if isinstance(value, str) and any(unicodedata.category(c) == kind for c in value):
                raise ConfigError(f"{key}={value!r} has {name}; leave it out.")
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
    for key, limit in ABOVE.items():
        value = _get(config, key, None)
        if value is not None and value <= limit:
            off = f"; {key}=null turns it off" if key in ("trainer.gradient_clip", "trainer.ema_decay") else ""
            raise ConfigError(f"{key}={value} is too small; it must be above {limit}{off}.")
    for key, limit in BELOW.items():
        value = _get(config, key, None)
        if value is not None and value >= limit:
            raise ConfigError(f"{key}={value} is too large; it must be below {limit}.")
    for key, limit in AT_MOST.items():
        value = _get(config, key, None)
        if value is not None and value > limit:
            raise ConfigError(f"{key}={value} is too large; it must be at most {limit}.")
    for key in FRACTIONS:
        value = _get(config, key, None)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{key}={value} is not within 0 and 1.")
    if hasattr(config, "category_map"):
        _validate_category_map("category_map", config.category_map)
    if hasattr(config, "data"):
        _validate_data(config.data)
    if hasattr(config, "model"):
        _validate_model(config.model)
    if hasattr(config, "optimizer"):
        _validate_training(config.optimizer)
        _validate_schedule(config.schedule)
    if hasattr(config, "strategy"):
        _validate_strategy(config.strategy, _get(config, "trainer.accumulate", 1))


def validate_section(key: str, section: Any) -> None:
    """`validate` of one section, "data" or "model", as a checkpoint holds it. Raises ConfigError."""
    validate(make_dataclass("Section", [key])(section))


def _validate_data(data: DataConfig) -> None:
    if data.name in ("", ".", "..") or re.search(r"[/\\\0]", data.name):
        raise ConfigError(f"data.name={data.name} is no name for a folder below runs/.")
    _validate_category_map("data.category_map", data.category_map)
    if not data.min_sizes or min(data.min_sizes) < 1:
        raise ConfigError(f"data.min_sizes={data.min_sizes} needs at least one size in pixels, such as [800].")
    for key, size in (("min_sizes", min(data.min_sizes)), ("val_min_size", data.val_min_size)):
        if size is not None and size > data.max_size:
            raise ConfigError(
                f"data.{key}={getattr(data, key)} is above data.max_size={data.max_size}, the most for the longer side; raise "
                "data.max_size."
            )
    if data.format == "shards" and (data.train_images or data.val_images):
        raise ConfigError(
            f"data={data.name} has its images in data.root; leave out data.*_images, or write those into shards."
        )
    factors = data.scale_jitter
    if factors is not None and not (len(factors) == 2 and 0.01 <= factors[0] <= factors[1] <= 100):
        raise ConfigError(
            f"data.scale_jitter={factors} is not a pair of rising factors from 0.01 to 100, such as [0.8,1.25]."
        )


def _validate_category_map(key: str, pairs: list[list[str | None]]) -> None:
    if any(len(pair) != 2 or pair[0] is None for pair in pairs):
        raise ConfigError(f"{key}={pairs} is not a list of pairs, such as [[Dog,dog],[tree,null]].")


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
    if max(map(max, sizes)) > 10**5:
        raise ConfigError(f"model.anchor_sizes={sizes} is too large; a size is at most {10**5} pixels.")
    if not ratios or min(ratios) < 0.001 or max(ratios) > 1000:
        raise ConfigError(f"model.aspect_ratios={ratios} needs at least one ratio of height to width, such as [1.0].")


def _validate_training(optimizer: OptimizerConfig) -> None:
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise ConfigError(f"optimizer.betas={optimizer.betas} is not a pair of numbers from 0 to below 1.")
    if optimizer.nesterov and optimizer.momentum == 0:
        raise ConfigError("optimizer.nesterov=true needs a momentum; give optimizer.momentum=0.9.")


def _validate_schedule(schedule: ScheduleConfig) -> None:
    if schedule.milestones and schedule.name != "multistep":
        raise ConfigError(
            f"schedule.milestones={schedule.milestones} has no effect with schedule={schedule.name}; give schedule=multistep, "
            "or schedule.milestones=[]."
        )
    if schedule.name == "multistep" and not schedule.milestones:
        raise ConfigError(
            "schedule=multistep has no milestone to lower the rate at; give schedule.milestones=[16epochs,22epochs], or "
            "schedule=constant."
        )
    if schedule.name == "multistep" and not 0 < schedule.gamma < 1:
        raise ConfigError(f"schedule.gamma={schedule.gamma} does not lower the rate; it must be above 0 and below 1.")


def _validate_strategy(strategy: StrategyConfig, accumulate: int) -> None:
    if strategy.static_graph and accumulate > 1:  # https://github.com/pytorch/pytorch/pull/187732
        raise ConfigError(
            f"strategy.static_graph=true and trainer.accumulate={accumulate} do not go together, as torch would no longer "
            "average all gradients; give strategy.static_graph=false."
        )
    if strategy.reduction == "adasum" and strategy.compression != "none":
        raise ConfigError(
            f"strategy.compression={strategy.compression} is for averaged gradients; give strategy.compression=none with "
            "strategy.reduction=adasum."
        )


def category_names(pairs: list[list[str | None]]) -> dict[str, str | None]:
    """A category_map as what each name of theirs is taken for."""
    return {str(theirs): ours for theirs, ours in pairs}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no dictionary; the items of a list under the list's key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def _get(config: Any, key: str, default: Any) -> Any:
    for part in key.split("."):
        if config is None or not hasattr(config, part):
            return default
        config = getattr(config, part)
    return config
