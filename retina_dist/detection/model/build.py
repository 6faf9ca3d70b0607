"""The detector that settings describe, with its weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from retina_dist.detection.model.retinanet import RetinaNet, build_retinanet
from retina_dist.detection.model.weights import load_backbone_weights, load_weights, set_batch_norm_eps
from retina_dist.detection.settings import DetectorSettings, ModelConfig
from retina_dist.engine.checkpoint.store import located
from retina_dist.errors import ConfigError

logger = logging.getLogger(__name__)


def build_model(settings: ModelConfig, num_classes: int, categories: Sequence[str] | None = None) -> RetinaNet:
    """The detector with its weights, if any are named; it logs what was left out. `categories` are its labels' names."""
    arguments = asdict(settings)
    weights, backbone_weights = arguments.pop("weights"), arguments.pop("backbone_weights")
    eps = arguments.pop("norm_eps")
    model = build_retinanet(**arguments | {"num_classes": count_classes(settings, num_classes)})
    if weights:
        logger.info(load_weights(model, str(located(weights)), categories))
    elif backbone_weights:
        logger.info(load_backbone_weights(model, str(located(backbone_weights)), settings.backbone))
    if eps is not None:
        set_batch_norm_eps(model, eps)
    return model


def count_classes(settings: DetectorSettings, num_classes: int) -> int:
    """How many labels the model tells apart, of which the data has `num_classes`. Raises ConfigError for fewer."""
    stated = settings.num_classes
    if stated is not None and stated < num_classes:
        raise ConfigError(
            f"model.num_classes={stated} is less than the {num_classes} labels of the data; leave it out to follow the data."
        )
    return stated or num_classes
