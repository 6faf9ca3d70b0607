"""Settings of detection's data and model."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of, names
from retina_dist.base.settings import setting
from retina_dist.config.run_config import NORMS_FROZEN, ModelSettings, RunConfig, norm_for
from retina_dist.data.settings import ImageDataSettings
from retina_dist.detection.model.box_losses import BOX_LOSSES

ANNOTATION_SETTINGS = ("train_annotations", "val_annotations")
IMAGE_SETTINGS = ("train_images", "val_images")
# that a data format may not read
FILE_SETTINGS = (
    "classes", "columns", "voc_offset", "box_format", *ANNOTATION_SETTINGS, *IMAGE_SETTINGS
)  # fmt: skip

MAX_PARAMETERS = 10**9  # of pyramid and heads; 4 GB, and three times that in training
MAX_ANCHORS = 1000  # of one cell; nine are usual


@dataclass
class ShapesConfig:
    """The drawn data set; see `retina_dist.detection.data.synthetic`."""

    num_train: int = setting(800, at_least=1, at_most=10**7)
    num_val: int = setting(160, at_least=1, at_most=10**7)
    image_size: int = setting(128, at_least=32, at_most=10**4)
    seed: int = setting(0, at_least=0)


@dataclass
class SyntheticConfig:
    """Random images and boxes; see `retina_dist.detection.data.synthetic`."""

    canvas: list[int] = setting(
        [128, 128],
        "height and width in px, multiples of 32",
        remedy="write data.synthetic.canvas=[800,1088]",
    )
    num_boxes: int = setting(7, "in each image", at_least=0, at_most=10**4)
    num_classes: int = setting(91, at_least=1, at_most=20_000)
    num_images: int = setting(800, "in an epoch", at_least=1, at_most=10**7)

    def check(self) -> None:
        """Raise ConfigError for a canvas that the feature pyramid cannot have."""
        if len(self.canvas) != 2 or any(side < 32 or side % 32 for side in self.canvas):
            raise ConfigError(
                f"data.synthetic.canvas={self.canvas} needs two multiples of 32, "
                "such as [800,1088]."
            )


@dataclass
class DetectionData(ImageDataSettings):
    """Where the images are and how they become batches."""

    family: ClassVar[str] = "reader"

    format: str = setting(
        "auto",
        "auto: recognised by the files in root, see docs/data.md",
        choices=partial(names, "reader"),
    )
    root: str | None = setting(
        None,
        "the data set's folder, a path or a URL such as az://container/coco",
        remedy="write one folder, and merge several into it",
    )
    train_annotations: str | None = setting(
        None,
        "a file, instead of or beside root, as are the next three",
        remedy="write one file, and merge several into it",
    )
    train_images: str | None = setting(None, remedy="write one folder, and merge several into it")
    val_annotations: str | None = setting(None, remedy="write one file, and merge several into it")
    val_images: str | None = setting(None, remedy="write one folder, and merge several into it")
    classes: str | None = setting(
        None,
        "csv without a header: name,index",
        remedy="write data.classes=FILE.csv; to train on some classes, remove the boxes of others",
    )
    columns: list[str] | None = setting(
        None, "csv: names of its columns, as [file:photo,class:kind,x1:lo]"
    )
    voc_offset: int | None = setting(
        None, "voc: what corners count from; null: as <database> says", choices=(None, 0, 1)
    )
    shapes: ShapesConfig | None = setting(None, "draw this data set into root if it is not there")
    synthetic: SyntheticConfig | None = setting(
        None, "random images made on the device; no files, no validation"
    )
    box_format: str | None = setting(
        None,
        "null: xywh; for a torch Dataset xyxy",
        choices=(None, "xywh", "xyxy", "xywh_shares"),
    )
    keep_empty_images: bool = True
    missing_images: str = setting(
        "error", "files that the annotations name", choices=("error", "skip")
    )
    repeat_threshold: float | None = setting(
        None, "repeat images of classes rarer than this share (LVIS: 0.001)", above=0, at_most=1
    )
    min_sizes: list[int] = setting(
        [800], "shorter side in px; one is drawn for each step", at_least=32
    )
    val_min_size: int | None = setting(None, "null: the largest of min_sizes", at_least=1)
    max_size: int = setting(
        1333,
        "longer side at most, px",
        at_least=32,
        at_most=10**5,
        remedy="write the longer side, as 1333, and data.min_sizes=[800] for the shorter",
    )
    num_buckets: int = setting(
        6, "static canvases for each of min_sizes", at_least=1, at_most=10**4
    )
    photometric: float = setting(0.0, "probability", fraction=True)
    scale_jitter: list[float] | None = setting(
        None,
        "factors [low, high] on the resize, e.g. [0.8, 1.25]",
        remedy="write data.scale_jitter=[0.8,1.25]",
    )

    def reader(self) -> Any:
        """The `AnnotationReader` of the data set, as these settings want it read."""
        return class_of(self)(self)

    def files_of(self, split: str) -> tuple[str | None, str | None]:
        """The annotations and the folder of the images that the settings name for a split."""
        named = vars(self)
        return named.get(f"{split}_annotations"), named.get(f"{split}_images")

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        super().check()
        val = self.val_min_size
        for given, size in (
            (f"min_sizes={self.min_sizes}", min(self.min_sizes)),
            (f"val_min_size={val}", val),
        ):
            if size is not None and size > self.max_size:
                raise ConfigError(f"data.{given} is above data.max_size={self.max_size}; raise it.")
        factors = self.scale_jitter
        if factors is not None and not (
            len(factors) == 2 and 0.01 <= factors[0] <= factors[1] <= 100
        ):
            raise ConfigError(
                f"data.scale_jitter={factors} needs two rising factors from 0.01 to 100."
            )
        reader = class_of(self)
        for key in FILE_SETTINGS:
            value = getattr(self, key)
            if value is not None and key not in reader.file_settings:
                raise ConfigError(
                    f"data.{key}={value} has no effect on data.format={self.format}; leave it out."
                )
        if self.shapes is not None and self.train_annotations:
            raise ConfigError(
                f"data.train_annotations={self.train_annotations} is not of the drawn shapes; "
                "add data=auto, or leave it out."
            )


@dataclass
class DetectorSettings(ModelSettings):
    """Settings of every detection model; a class from outside the package extends them."""

    family: ClassVar[str] = "detector"

    # readers.categories.MAX_LABELS
    num_classes: int | None = setting(
        None,
        "null: as many as the data has",
        at_least=1,
        at_most=20_000,
        remedy="give a number, and a network by its name, as model.backbone=resnet50",
    )

    def describe(self) -> str:
        """The model in a few words, for the log."""
        return class_of(self).__name__


@dataclass
class ModelConfig(DetectorSettings):
    """Arguments of `retina_dist.detection.model.retinanet.build_retinanet`, and weights."""

    backbone: str = setting(
        "resnet50",
        "torchvision's ResNet, ConvNeXt, EfficientNet, MobileNet, RegNet or Swin; "
        "resnet10, resnet10_half",
        remedy="give its name, such as resnet50, or docs/extending.md shows your own model",
    )
    variant: str = setting("v1", "torchvision's two RetinaNets", choices=("v1", "v2"))
    fpn_channels: int = setting(
        256, "variant v2: a multiple of 32 from 64", at_least=1, at_most=4096
    )
    head_convs: int = setting(
        4, "convolutions of each head before its last; torchvision's have 4", at_least=1, at_most=4
    )
    trainable_layers: int = setting(
        5, "stages that train, counted from the last; 5 is all", at_least=0, at_most=5
    )
    activation_checkpointing: bool = setting(
        False, "compute the body twice: less memory, more time"
    )
    norm: str | None = setting(
        None,
        "null: frozen_bn with pretrained weights, else bn",
        choices=(None, "frozen_bn", "bn", "sync_bn"),
    )
    norm_eps: float | None = setting(
        None, "null: the weights' (COCO_V1: 0), else 1e-5", fraction=True
    )
    anchor_sizes: list[list[int]] = setting(
        [[32, 40, 50], [64, 80, 101], [128, 161, 203], [256, 322, 406], [512, 645, 812]],
        at_least=1,
        at_most=10**5,
        remedy="give each of the five levels its own brackets: "
        "write model.anchor_sizes=[[32],[64],[128],[256],[512]]",
    )
    aspect_ratios: list[float] = setting(
        [0.5, 1.0, 2.0], "height by width", at_least=0.001, at_most=1000
    )
    score_threshold: float = setting(0.05, at_least=0, below=1)
    nms: str = setting(
        "hard",
        "matrix: overlaps with better objects lower the score; give model.nms_threshold=0.8 too",
        choices=("hard", "matrix"),
    )
    nms_threshold: float = setting(0.5, fraction=True)
    detections_per_image: int = setting(300, at_least=1, at_most=10**5)
    topk_candidates: int = setting(1000, at_least=1, at_most=10**6)
    foreground_iou: float = setting(0.5, above=0, at_most=1)
    background_iou: float = setting(0.4, fraction=True)
    focal_alpha: float = setting(0.25, above=0, below=1)
    focal_gamma: float = setting(2.0, at_least=0, at_most=100)
    box_loss: str | None = setting(None, "null: the variant's own", choices=(None, *BOX_LOSSES))
    smooth_l1_beta: float = setting(1 / 9, at_least=0, at_most=10**6)
    weights: str | None = setting(
        None, "whole detector: torchvision's COCO_V1 or DEFAULT, a run folder, file or URL"
    )
    backbone_weights: str | None = setting(
        None, "torchvision's IMAGENET1K_V1 or DEFAULT, a run folder, file or URL"
    )
    add_classes: bool = setting(
        False, "the detector of weights=RUN, with its settings, learns the data's new classes alone"
    )
    known_classes: list[list[str]] | None = setting(
        None, "what add_classes keeps, in the groups that were learnt together; it is set by that"
    )

    def __post_init__(self) -> None:
        """Settle what the weights decide, so that checkpoints and resumes have it without them."""
        if self.add_classes and self.known_classes is None:
            from retina_dist.detection.model.added_classes import known_network

            vars(self).update(known_network(self.weights), add_classes=True)
        self.norm = norm_for(self.norm, self.weights or self.backbone_weights)

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        if self.background_iou > self.foreground_iou:
            raise ConfigError(
                f"model.background_iou={self.background_iou} is above model.foreground_iou; "
                "swap them."
            )
        if len(set(map(len, self.anchor_sizes))) != 1:
            raise ConfigError(
                f"model.anchor_sizes={self.anchor_sizes} needs equally many sizes on each level."
            )
        self.check_size(self.num_classes or 1)
        if self.known_classes and not self.add_classes:
            raise ConfigError(
                f"model.known_classes={self.known_classes} comes from model.add_classes=true; "
                "give that and model.weights=RUN."
            )
        if self.weights and self.backbone_weights:
            raise ConfigError(
                f"model.backbone_weights={self.backbone_weights} is not read beside "
                f"model.weights={self.weights}, which has a backbone; give model.weights=null, or "
                "leave model.backbone_weights out."
            )

    def describe(self) -> str:
        """The variant, its parts and its weights."""
        weights = self.weights or "none, from scratch"
        if self.backbone_weights and not self.weights:
            weights = f"body {self.backbone_weights}"
        elif not self.weights and self.trainable_layers < 5:
            weights += "; model.trainable_layers keeps random ones: give model.backbone_weights"
        if self.norm == "frozen_bn" and (self.weights or self.backbone_weights):
            weights += NORMS_FROZEN
        if self.known_classes:
            weights += "; learns its new classes, all else stays as it is"
        network = f"RetinaNet {self.variant}, {self.backbone}, pyramid of {self.fpn_channels}"
        return f"{network}; weights: {weights}"

    @property
    def anchors_per_cell(self) -> int:
        """Anchors at each position of a feature map."""
        return len(self.anchor_sizes[0]) * len(self.aspect_ratios)

    def check_size(self, num_classes: int) -> None:
        """Raise ConfigError for a pyramid and heads that cannot be built, or are absurdly large."""
        channels = self.fpn_channels
        if self.variant == "v2" and (channels % 32 or channels < 64):
            raise ConfigError(
                f"model.fpn_channels={channels} does not fit variant v2; "
                "use 64 or a larger multiple of 32."
            )
        if len(self.anchor_sizes) != 5:
            raise ConfigError(
                f"model.anchor_sizes has {len(self.anchor_sizes)} levels; "
                "RetinaNet has five, P3 to P7: write [[32],[64],[128],[256],[512]]."
            )
        anchors = self.anchors_per_cell
        if anchors > MAX_ANCHORS:
            raise ConfigError(
                f"model.anchor_sizes and aspect_ratios make {anchors} anchors a cell; "
                f"{MAX_ANCHORS} are the most."
            )
        # five convolutions of 3 x 3 in the pyramid, eight in the heads, and the heads' last two
        parameters = 9 * channels * (13 * channels + anchors * (num_classes + 4))
        if parameters > MAX_PARAMETERS:
            raise ConfigError(
                f"model.fpn_channels={channels} with num_classes={num_classes} and {anchors} "
                f"anchors a cell makes {parameters / 1e9:.1f} billion parameters, "
                "above 1 billion; lower one."
            )


@dataclass
class DetectionSettings:
    """The sections of the task `detection`."""

    data: DetectionData = field(default_factory=DetectionData)
    model: ModelConfig = field(default_factory=ModelConfig)


@dataclass
class DetectionRunConfig(DetectionSettings, RunConfig):  # type: ignore[misc]
    """The settings of a detector's training."""
