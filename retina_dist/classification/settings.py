"""Settings of classification's data and model."""

from dataclasses import dataclass, field

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import setting
from retina_dist.config.run_config import NORMS_FROZEN, ModelSettings, RunConfig, norm_for
from retina_dist.data.settings import ImageDataSettings


@dataclass
class DrawnClassesConfig:
    """The drawn data set; see `retina_dist.classification.drawn`."""

    num_train: int = setting(900, at_least=6, at_most=10**7)
    num_val: int = setting(240, at_least=6, at_most=10**7)
    image_size: int = setting(48, "px", at_least=16, at_most=10**4)
    seed: int = setting(0, at_least=0)


@dataclass
class SyntheticClassesConfig:
    """Random images of data.image_size with random classes; see `classification.drawn`."""

    num_classes: int = setting(1000, at_least=2, at_most=10**6)
    num_images: int = setting(800, "in an epoch", at_least=1, at_most=10**7)


@dataclass
class ClassificationData(ImageDataSettings):
    """Where the images are and how they become batches."""

    root: str | None = setting(
        None,
        "path or URL of train/CLASS/* and val/CLASS/*, of CLASS/*, "
        "of train.csv and val.csv (file,label), or of shards",
    )
    drawn: DrawnClassesConfig | None = setting(
        None, "draw this data set into root if it is not there"
    )
    synthetic: SyntheticClassesConfig | None = setting(
        None, "train on random images made on the device, unvalidated"
    )
    val_batch_size: int = setting(64, "images of one process", at_least=1, at_most=10**5)
    balanced: bool = setting(False, "draw each class equally often; an epoch keeps its length")
    image_size: int = setting(224, "side of the training crop, px", at_least=8, at_most=10**4)
    val_image_size: int | None = setting(
        None, "side of validation's crop; null: image_size", at_least=8, at_most=10**4
    )
    val_resize: int | None = setting(
        None, "shorter side before that crop; null: 8/7 of it", at_least=8, at_most=10**4
    )
    crop_scale: list[float] = setting(
        [0.08, 1.0],
        "area of a random crop, as a share of the image's",
        remedy="write data.crop_scale=[0.08,1]",
    )
    augment: str | None = setting(None, choices=(None, "randaugment", "trivialaugment"))
    erasing: float = setting(0.0, "probability of random erasing", fraction=True)
    mixup: float = setting(0.0, "alpha of the Beta distribution; 0: off", at_least=0, at_most=100)
    cutmix: float = setting(
        0.0, "alpha; with mixup too, each image draws one of the two", at_least=0, at_most=100
    )

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        super().check()
        if self.balanced and self.class_weights == "auto":
            raise ConfigError(
                "data.class_weights=auto has no effect beside data.balanced, which draws each "
                "class equally often; leave one out."
            )
        scale = self.crop_scale
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
            raise ConfigError(
                f"data.crop_scale={scale} is not two rising shares up to 1, such as [0.08,1]."
            )
        if self.val_resize is not None and self.val_resize < self.val_size:
            raise ConfigError(
                f"data.val_resize={self.val_resize} is below the crop of {self.val_size} px; "
                "raise it."
            )

    @property
    def val_size(self) -> int:
        """Side of the central crop of validation, px."""
        return self.val_image_size or self.image_size

    @property
    def val_short_side(self) -> int:
        """Shorter side before that crop, px."""
        return self.val_resize or round(self.val_size * 8 / 7)


@dataclass
class ClassifierConfig(ModelSettings):
    """A classifier of torchvision, its weights and its loss."""

    architecture: str = setting(
        "resnet50",
        "torchvision's name, such as efficientnet_b0, convnext_tiny, vit_b_16; "
        "resnet10, resnet10_half",
    )
    weights: str | None = setting(
        None, "file, URL or e.g. ResNet50_Weights.IMAGENET1K_V2; the head if classes agree"
    )
    norm: str | None = setting(
        None,
        "of batch norms, where the model has any; null: frozen_bn with weights, else bn",
        choices=(None, "frozen_bn", "bn", "sync_bn"),
    )
    zero_gamma: bool = setting(
        False, "ResNets: residual branches begin at zero (Goyal et al. 2017, section 5.1)"
    )
    label_smoothing: float = setting(0.0, at_least=0, below=1)

    def __post_init__(self) -> None:
        """Settle the norm here, so that checkpoints and resumes have it without the weights."""
        self.norm = norm_for(self.norm, self.weights)

    def describe(self) -> str:
        """The network and its weights."""
        weights = self.weights or "none, from scratch"
        if self.weights and self.norm == "frozen_bn":
            weights += NORMS_FROZEN
        return f"{self.architecture}; weights: {weights}"


@dataclass
class ClassificationSettings:
    """The sections of the task `classification`."""

    data: ClassificationData = field(default_factory=ClassificationData)
    model: ClassifierConfig = field(default_factory=ClassifierConfig)


@dataclass
class ClassificationRunConfig(ClassificationSettings, RunConfig):  # type: ignore[misc]
    """The settings of a classifier's training."""
