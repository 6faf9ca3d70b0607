"""COCO metrics of a checkpoint, over its validation set or another, or of a results json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import parse_path, write_json
from retina_dist.data.images import MAX_PIXELS
from retina_dist.detection.analysis import analyse
from retina_dist.detection.coco_metrics import (
    STATS,
    CocoResult,
    evaluate_rows,
    read_results,
    write_results,
)
from retina_dist.detection.detector import Detector
from retina_dist.detection.pictures import write_report_details
from retina_dist.detection.plausibility import implausible_boxes
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.model.weights import is_torchvision_name
from retina_dist.reporting.analysis import lines_of
from retina_dist.reporting.intervals import Resampled
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy
from retina_dist.task.predictor import data_of_checkpoint
from retina_dist.tracking.console import heartbeat

if TYPE_CHECKING:
    from retina_dist.evaluate import EvaluateConfig
    from retina_dist.predict import PredictConfig
    from retina_dist.serving.settings import ServeConfig


def evaluate(config: EvaluateConfig) -> tuple[CocoResult, str]:
    """The metrics and, on the main rank, a table of them and of errors; every rank calls it.

    With `output_dir` also metrics.json, what `analysis_of` writes and, of a checkpoint, results.json.
    """
    if (config.checkpoint is None) == (config.results is None):
        raise ConfigError(
            "give either checkpoint=FILE.pt or results=FILE.json with annotations=FILE.json."
        )
    if config.images and not config.annotations:
        raise ConfigError(
            f"images={config.images} needs annotations=FILE.json; give both, or root=FOLDER."
        )
    if config.root and (config.images or config.results):
        raise ConfigError(f"root={config.root} has no effect with images or results; leave it out.")
    folder = Path(config.output_dir) if config.output_dir and detect_launch().rank == 0 else None
    if config.results:
        max_pixels, (result, annotations) = MAX_PIXELS, _of_results(config)
    else:
        with make_strategy(device=config.device) as strategy, heartbeat():
            detector, data, annotations = strategy.run_collectively(
                lambda: _opened(config, strategy.device)
            )
            data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
            result = detector.evaluator_of(annotations, data, strategy).evaluate(detector.model)
            max_pixels = data.max_pixels
        if folder:
            write_results(result.rows, folder / "results.json")
    if detect_launch().rank:
        return result, ""
    analysis, resampled = analyse(result, folder)
    if folder:
        write_json(folder / "metrics.json", result.to_dict())
        write_report_details(result, annotations, folder, max_pixels)
    return result, "\n".join([format_table(result, resampled), *lines_of(analysis)])


def format_table(result: CocoResult, resampled: Resampled) -> str:
    """The twelve numbers and AP of each class, a line each, APs with their 95 % intervals; a dash without ground truth."""
    bars = {name: str(resampled.interval(name)) for name in resampled.values}
    lines = [
        f"{n:<7}{STATS[n]:<27}{_number(value)}   {bars.get(f'coco/{n}', '')}"
        for n, value in result.stats.items()
    ]
    width = max((len(name) for name in result.per_class), default=0)
    lines += ["", "AP of each class"]
    lines += [
        f"  {n:<{width}}  {_number(ap)}   {bars[f'coco/AP/{n}']}"
        for n, ap in result.per_class.items()
    ]
    lines[0] = f"{lines[0]}   95 % interval"
    return "\n".join(line.rstrip() for line in lines)


def _of_results(config: EvaluateConfig) -> tuple[CocoResult, Annotations]:
    if config.annotations is None:
        raise ConfigError("results=… needs annotations=FILE.json, the ground truth it is for.")
    truth = parse_path(str(config.annotations))
    images = parse_path(config.images) if config.images else truth.parent
    annotations = load_annotations(
        truth, images, missing_images="ignore", box_format=config.box_format
    )
    if problem := implausible_boxes(annotations, "the ground truth"):
        raise DataError(f"{truth}: {'; '.join(problem).replace('data.box_format', 'box_format')}.")
    rows = read_results(Path(str(config.results)), annotations.coco)
    return evaluate_rows(annotations.coco, rows), annotations


def predictor_of(
    config: EvaluateConfig | PredictConfig | ServeConfig, device: str | torch.device
) -> Detector:
    """The detector of `config.checkpoint`."""
    how: dict[str, Any] = {"precision": config.precision, "model": config.outside_model}
    detector = Detector.from_checkpoint(str(config.checkpoint), device=device, **how)
    return detector.tiled(config.tile, config.tile_overlap) if config.tile else detector


def _opened(
    config: EvaluateConfig, device: torch.device
) -> tuple[Detector, DetectionData, Annotations]:
    path, detector = str(config.checkpoint), predictor_of(config, device)
    places = {
        "root": config.root,
        "val_annotations": config.annotations,
        "val_images": config.images,
    }
    if is_torchvision_name(path):
        data = DetectionData(name="coco").with_values(**places)
    else:
        data = data_of_checkpoint(detector.record, DetectionData, path, **places)
    if config.annotations:
        data = replace(data, format="coco", box_format=config.box_format)
    return detector, data, detector.val_of(data)


def _number(value: float | None) -> str:
    return "-" if value is None or value < 0 else f"{value:.4f}"
