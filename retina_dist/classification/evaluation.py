"""Metrics of a checkpoint over its validation set, or over the validation set of another folder."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retina_dist.classification.artifacts import write_result
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.dataset import ClassificationDataModule
from retina_dist.classification.metrics import ClassificationEvaluator, ClassificationResult
from retina_dist.classification.samples import Samples, absent, read_samples, root_of
from retina_dist.classification.settings import ClassificationData
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.precision import autocast
from retina_dist.errors import ConfigError
from retina_dist.files import Url, parse_path
from retina_dist.reporting.console import configure_logging, heartbeat
from retina_dist.run_config import data_settings_of
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import apply_nccl
from retina_dist.strategies.select import make_strategy, strategy_of
from retina_dist.strategies.settings import StrategySettings

if TYPE_CHECKING:
    from retina_dist.evaluate import EvaluateConfig

logger = logging.getLogger(__name__)

DETECTIONS_OWN = ("results", "annotations", "images", "category_map", "box_format", "tile")


def evaluate(config: EvaluateConfig) -> ClassificationResult:
    """The metrics; with `output_dir` also metrics.json and confusion.png."""
    for key in DETECTIONS_OWN:
        if value := getattr(config, key):
            raise ConfigError(f"{key}={value} is for detection; for a classifier give root=FOLDER.")
    apply_nccl(asdict(config.nccl))
    with make_strategy(device=config.device) as strategy, heartbeat():
        classifier, data, val = strategy.run_collectively(lambda: _opened(config, strategy.device))
        data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
        result = _evaluated(classifier, data, val, strategy)
        if config.output_dir and strategy.is_main:
            write_result(result, Path(config.output_dir))
    return result


def evaluate_as_text(config: EvaluateConfig) -> str:
    """The metrics and the accuracy of each class, a line each; a dash where there is no image."""
    result = evaluate(config)

    def shown(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.4f}"

    width = max(22, *map(len, result.classes))
    lines = [f"{name.removeprefix('val/'):<{width + 2}}{shown(value)}" for name, value in result.metrics.items()]
    lines += ["", "accuracy of each class"]
    return "\n".join(lines + [f"  {name:<{width}}{shown(value)}" for name, value in result.per_class.items()])


def evaluate_on(
    classifier: TrainedClassifier, data: ClassificationData, settings: StrategySettings
) -> ClassificationResult:
    """The metrics over the validation set of `data`, in the classifier's precision; see `ClassifierTrainer.evaluate`."""
    with strategy_of(settings) as strategy, configure_logging(strategy.rank), heartbeat():
        val = strategy.run_collectively(lambda: _validation_set(data, classifier, "data.root"))
        with classifier.on(strategy.device):
            return _evaluated(classifier, data, val, strategy)


def _evaluated(
    classifier: TrainedClassifier, data: ClassificationData, val: Samples, strategy: DistributedStrategy
) -> ClassificationResult:
    if val.held_out:
        logger.info(f"evaluating on {val.describe()}")
    module = ClassificationDataModule(data, train=None, val=val, rank=strategy.rank, world_size=strategy.world_size)
    arithmetic = autocast(strategy.device, classifier.precision)
    evaluator = ClassificationEvaluator(classifier.classes, module.val_batches, len(val), strategy, arithmetic)
    evaluator(classifier.model)
    assert evaluator.last_result is not None
    return evaluator.last_result


def _opened(config: EvaluateConfig, device: torch.device) -> tuple[TrainedClassifier, ClassificationData, Samples]:
    """The classifier and the images to judge it on.

    A URL in a checkpoint is not followed, since its author would decide which server is asked, with this machine's credentials.
    """
    path = str(config.checkpoint)
    content = load_checkpoint(path)
    classifier = TrainedClassifier.from_content(content, path, device=device, precision=config.precision)
    data = replace(data_settings_of(content, ClassificationData, path), drawn=None, cache=None)
    if config.root is not None:
        data = replace(data, root=config.root)
    elif data.root is not None and isinstance(parse_path(data.root), Url):
        raise ConfigError(
            f"{path} has its data at a URL, data.root={data.root}, and such a URL is followed only where you give it: "
            f"root={data.root}."
        )
    return classifier, data, _validation_set(data, classifier, "root")


def _validation_set(data: ClassificationData, classifier: TrainedClassifier, key: str) -> Samples:
    root = root_of(data.root, data.name)
    val = read_samples(root, "val", classes=classifier.classes)
    if val is None and data.val_fraction and (train := read_samples(root, "train", classes=classifier.classes)):
        return train.split(data.val_fraction)[1]
    if val is None:
        raise ConfigError(absent(key, root, "val"))
    return val
