"""Metrics of a classifier's checkpoint over its validation set or another."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ConfigError
from retina_dist.base.files import write_json
from retina_dist.base.settings import defaults_of
from retina_dist.classification.analysis import analyse
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.metrics import ClassificationResult
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.reporting.analysis import lines_of
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.pictures import write_details
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy
from retina_dist.task.predictor import LIMITS, data_of_checkpoint
from retina_dist.task.settings import DetectionLimits, EvaluateConfig, PredictorConfig
from retina_dist.task.temperature import calibrate

# Settings of commands that only a detector has.
OF_DETECTORS = {
    "format",
    "results",
    "annotations",
    "images",
    "box_format",
    "tile",
    "max_detections",
    *LIMITS,
}


def evaluate(config: EvaluateConfig) -> str:
    """Metrics and accuracies with 95 % intervals, a line each, on the main rank.

    Their files and report.html go to `output_dir`. Every rank calls it.
    """
    with make_strategy(device=config.device) as strategy, heartbeat():
        classifier, data, val = strategy.run_collectively(lambda: opened(config, strategy.device))
        data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
        evaluator = classifier.evaluator_of(val, data, strategy)
        result = evaluator.evaluate(classifier.model)
    if detect_launch().rank:
        return ""

    folder = Path(config.output_dir) if config.output_dir else None
    analysis, resampled = analyse(result, val.names, folder, evaluator.times)
    if folder:
        write_json(folder / "metrics.json", result.to_dict())
        write_details(folder, partial(val.read_image, max_pixels=data.max_pixels))
    lines = [format_table(result, resampled), *lines_of(analysis)]
    lines += calibrate(classifier, analysis, resampled.images, data.val_split, config.calibrate)
    return "\n".join(lines)


def opened(
    config: EvaluateConfig, device: torch.device
) -> tuple[TrainedClassifier, ClassificationData, Samples]:
    """The classifier of `config.checkpoint`, and the images to evaluate it on."""
    classifier = predictor_of(config, device)
    data = data_of_checkpoint(
        classifier.record, ClassificationData, config.checkpoint, root=config.root
    ).of_split(config.split)
    return classifier, data, classifier.val_of(data)


def format_table(result: ClassificationResult, resampled: Resampled) -> str:
    """The metrics and the accuracy of each class, a line each, with their 95 % intervals.

    A dash stands for an undefined one.
    """
    width = max(22, *map(len, result.classes))

    def line(title: str, value: float | None, name: str) -> str:
        number, interval = "-", ""
        if value is not None and math.isfinite(value):
            number = f"{value:.4f}"
            if name in resampled.values:
                interval = f"   {resampled.interval(name)}"
        return f"{title:<{width + 2}}{number}{interval}".rstrip()

    lines = [line(name.removeprefix("val/"), x, name) for name, x in result.metrics.items()]
    lines[0] += "   95 % interval"
    lines += ["", "accuracy of each class"]
    for name, value in result.per_class.items():
        lines.append(line(f"  {name}", value, f"val/top1/{name}"))
    return "\n".join(lines)


def refuse_settings_of_detectors(config: DetectionLimits) -> None:
    """Raise ConfigError for a setting that only a detector has."""
    for key, default in defaults_of(config).items():
        value = getattr(config, key)
        if key in OF_DETECTORS and value != default:
            raise ConfigError(
                f"{key}={value} is for detection, and a classifier has no boxes; leave it out."
            )


def predictor_of(config: PredictorConfig, device: str | torch.device) -> TrainedClassifier:
    """The classifier of `config.checkpoint`.

    Raises ConfigError for a setting that only a detector has.
    """
    refuse_settings_of_detectors(config)
    return TrainedClassifier.from_checkpoint(
        str(config.checkpoint), device=device, precision=config.precision
    )
