"""The detector that settings describe, with its weights.

And what a model from outside the package is.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn
from torchvision.models import get_model_weights

from retina_dist.base.errors import ConfigError
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.model.retinanet import RetinaNet, build_retinanet
from retina_dist.detection.model.weights import (
    load_backbone_weights,
    load_weights,
    set_batch_norm_eps,
)
from retina_dist.detection.settings import DetectorSettings, ModelConfig
from retina_dist.engine.checkpoint.store import located
from retina_dist.model.weights import find_weights, is_torchvision_name

logger = logging.getLogger(__name__)


def build_model(
    settings: ModelConfig, num_classes: int, categories: Sequence[str] | None = None
) -> RetinaNet:
    """The detector with its weights, if any are named; it logs what was left out.

    `categories` are its labels' names.
    """
    arguments = asdict(settings)
    arguments["num_classes"] = count_classes(settings, num_classes)
    model = build_retinanet(**arguments)
    source = weights_of(settings)
    if source and settings.weights:
        logger.info(load_weights(model, str(located(source)), categories))
    elif source:
        logger.info(load_backbone_weights(model, str(located(source)), settings.backbone))
    if settings.norm_eps is not None:
        set_batch_norm_eps(model, settings.norm_eps)
    return model


def weights_of(settings: ModelConfig) -> str | None:
    """The file, URL or torchvision's full name that `weights`, else `backbone_weights`, means.
    Nothing is read.

    Raises ConfigError for a name that torchvision lacks or of another network, CheckpointError for
    a file that does not exist.
    """
    if settings.weights:
        source = settings.weights
        if _is_short(source):
            variant = "_V2" if settings.variant == "v2" else ""
            source = f"RetinaNet_ResNet50_FPN{variant}_Weights.{source}"
    elif settings.backbone_weights:
        source = _backbone_source(settings.backbone_weights, settings.backbone)
    else:
        return None
    if "://" not in source:
        find_weights(str(located(source)))
    is_resnet50 = settings.weights and is_torchvision_name(source)
    if is_resnet50 and settings.backbone != "resnet50":
        raise ConfigError(
            f"model.weights={source} is for model.backbone=resnet50, not {settings.backbone}; give "
            "model.weights=null, and model.backbone_weights=DEFAULT for a pretrained backbone."
        )
    return source


def _is_short(source: str) -> bool:
    """Whether it is a name such as COCO_V1 or DEFAULT."""
    return re.fullmatch("[A-Z0-9_]+", source) is not None


def _backbone_source(source: str, backbone: str) -> str:
    """As `weights_of`, for a classifier."""
    known = get_model_weights(backbone)
    if _is_short(source):
        source = f"{known.__name__}.{source}"
    full_names = [f"{known.__name__}.{name}" for name in known.__members__]
    if is_torchvision_name(source) and source not in full_names:
        names = ", ".join(known.__members__)
        raise ConfigError(
            f"model.backbone_weights={source} is not for {backbone}; use one of {names}."
        )
    return source


def count_classes(settings: DetectorSettings, num_classes: int) -> int:
    """Labels of the model for data with `num_classes`.

    Raises ConfigError if the settings give fewer.
    """
    stated = settings.num_classes
    if stated is not None and stated < num_classes:
        raise ConfigError(
            f"model.num_classes={stated} is less than the {num_classes} of the data; leave it out."
        )
    return stated or num_classes


class DetectionModel(nn.Module, ABC):
    """Base of a model that an entry of the group `model` names.

    Its `settings` are a class below `DetectorSettings`.
    """

    settings: Any = DetectorSettings

    def __init__(self, settings: Any, num_classes: int) -> None:
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
