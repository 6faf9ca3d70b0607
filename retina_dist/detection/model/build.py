"""What a detection model is, and how settings become one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.settings import DetectorSettings

SHAPE_DIVISOR = 32  # the ResNet's stride: padded shapes are multiples of it


class DetectionModel(nn.Module, ABC):
    """Base of the models, which are the family `detector` of `base.registry`.

    `settings` is the class's dataclass below `DetectorSettings`, then that of the instance.
    `loss_names` are the losses whose metrics a run knows before its first validation. The limits of
    its detections have torchvision's names.
    """

    settings: Any = DetectorSettings
    loss_names: ClassVar[Sequence[str]] = ()
    score_thresh: float = -math.inf
    nms_thresh: float = 0.5
    detections_per_img: int | None = None  # at most

    def __init__(self, settings: DetectorSettings, num_classes: int) -> None:
        super().__init__()
        self.settings = settings
        self.num_classes = num_classes

    def forward(self, batch: Batch) -> dict[str, Tensor] | list[Detections]:
        """In training mode the losses, else the detections of each image."""
        losses, detections = self.evaluate(batch)
        return losses if self.training else detections

    @abstractmethod
    def evaluate(self, batch: Batch) -> tuple[dict[str, Tensor], list[Detections]]:
        """The losses by name, means over the batch's real images, whose sum is trained, and each
        image's detections.

        The losses of an image must not depend on the other images of its batch.
        """

    def exportable(self) -> nn.Module:
        """What torch.export traces: an image [1, 3, h, w] uint8 RGB -> boxes [N, 4] xyxy in its px,
        scores [N], labels [N].

        They are what `evaluate` detects in the padded image. Raises ConfigError for a class that
        does not define it.
        """
        raise ConfigError(
            f"{type(self).__name__} has no method exportable; "
            "define it, as docs/extending.md shows."
        )

    @classmethod
    def check(cls, settings: Any, pretrained: bool) -> None:
        """Check the settings before the data is read.

        Raises UserError for settings that make no model and, if `pretrained`, for weights that
        cannot be found.
        """

    def load_pretrained(self, categories: Sequence[str] | None) -> None:
        """Load the weights that the settings name, on the main rank, which broadcasts them.

        `categories` are the names of the labels.
        """

    def arguments(self) -> dict[str, Any]:
        """Plain values for a checkpoint, of which the model is made again without its entry."""
        return {}

    def take(self, arguments: Mapping[str, object]) -> None:
        """Take from `arguments`, the main rank's or a checkpoint's, what no tensor carries."""


def check_labels(settings: DetectorSettings, num_classes: int) -> None:
    """Raise ConfigError for settings with fewer labels than the data has."""
    stated = settings.num_classes
    if stated is not None and stated < num_classes:
        raise ConfigError(
            f"model.num_classes={stated} is less than the {num_classes} of the data; leave it out."
        )


def build_model(
    settings: DetectorSettings,
    num_classes: int,
    categories: Sequence[str] | None = None,
    pretrained: bool = True,
) -> DetectionModel:
    """The detector of the settings for data with `num_classes`, with its weights if `pretrained`.

    `categories` are its labels' names. Raises ConfigError if the settings give fewer labels than
    the data has.
    """
    check_labels(settings, num_classes)
    stated = settings.num_classes
    model = class_of(settings)(settings, stated or num_classes)
    if pretrained:
        model.load_pretrained(categories)
    return model
