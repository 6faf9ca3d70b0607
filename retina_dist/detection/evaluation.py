"""COCO metrics of a checkpoint, over its validation set or another, or of a results json."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retina_dist.data.images import MAX_PIXELS
from retina_dist.detection.analysis import analyse
from retina_dist.detection.coco_metrics import (
    CocoEvaluator,
    CocoResult,
    evaluate_rows,
    read_results,
    write_results,
)
from retina_dist.detection.data.dataset import CocoDataModule, DetectionDataset
from retina_dist.detection.data.transforms import EvalTransform
from retina_dist.detection.detector import Detector
from retina_dist.detection.pictures import write_report_details
from retina_dist.detection.readers.coco import Annotations, load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import data_of_checkpoint, describe_split, implausible_boxes, read_split
from retina_dist.detection.tiles import TiledDetector, TiledEvaluator
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.precision import autocast
from retina_dist.errors import ConfigError, DataError
from retina_dist.files import parse_path, write_json
from retina_dist.model.weights import is_torchvision_name
from retina_dist.reporting.analysis import lines_of
from retina_dist.reporting.console import configure_logging, heartbeat
from retina_dist.reporting.intervals import Resampled
from retina_dist.run_config import data_settings_of
from retina_dist.settings import validate
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy, strategy_of
from retina_dist.strategies.settings import StrategySettings

if TYPE_CHECKING:
    from retina_dist.evaluate import EvaluateConfig

logger = logging.getLogger(__name__)

TITLES = {
    "AP": "AP     IoU .50:.95",
    "AP50": "AP50   IoU .50",
    "AP75": "AP75   IoU .75",
    "APs": "APs    area below 32^2 px",
    "APm": "APm    area 32^2 to 96^2 px",
    "APl": "APl    area above 96^2 px",
    "AR1": "AR1    1 detection an image",
    "AR10": "AR10   10 detections",
    "AR100": "AR100  100 detections",
    "ARs": "ARs    area below 32^2 px",
    "ARm": "ARm    area 32^2 to 96^2 px",
    "ARl": "ARl    area above 96^2 px",
}


def evaluate(config: EvaluateConfig) -> CocoResult:
    """The metrics, see `evaluate_with_table`."""
    return evaluate_with_table(config)[0]


def evaluate_with_table(config: EvaluateConfig) -> tuple[CocoResult, str]:
    """The metrics and, on the main rank, a table of them and of errors; every rank calls it.

    With `output_dir` also metrics.json, what `write_analysis` writes and, of a checkpoint, results.json.
    """
    if (config.checkpoint is None) == (config.results is None):
        raise ConfigError("give either checkpoint=FILE.pt or results=FILE.json with annotations=FILE.json.")
    if config.images and not config.annotations:
        raise ConfigError(f"images={config.images} needs annotations=FILE.json; give both, or root=FOLDER.")
    folder = Path(config.output_dir) if config.output_dir and detect_launch().rank == 0 else None
    if config.results:
        max_pixels, (result, annotations) = MAX_PIXELS, _of_results(config)
    else:
        with make_strategy(device=config.device) as strategy, heartbeat():
            detector, data, annotations = strategy.run_collectively(lambda: _opened(config, strategy.device))
            data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
            result, max_pixels = evaluate_split(detector, annotations, data, strategy), data.max_pixels
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
    lines = [f"{TITLES[n]:<34}{_number(value)}   {bars.get(f'coco/{n}', '')}" for n, value in result.stats.items()]
    width = max((len(name) for name in result.per_class), default=0)
    lines += ["", "AP of each class"]
    lines += [f"  {n:<{width}}  {_number(ap)}   {bars[f'coco/AP/{n}']}" for n, ap in result.per_class.items()]
    lines[0] = f"{lines[0]}   95 % interval"
    return "\n".join(line.rstrip() for line in lines)


def _of_results(config: EvaluateConfig) -> tuple[CocoResult, Annotations]:
    if config.annotations is None:
        raise ConfigError("results=… needs annotations=FILE.json, the ground truth it is for.")
    truth = parse_path(str(config.annotations))
    images = parse_path(config.images) if config.images else truth.parent
    annotations = load_annotations(truth, images, missing_images="ignore", box_format=config.box_format)
    read_as = DetectionData(name="truth", box_format=config.box_format)
    if problem := implausible_boxes(annotations, "the ground truth", read_as):
        raise DataError(f"{truth}: {'; '.join(problem).replace('data.box_format', 'box_format')}.")
    rows = read_results(Path(str(config.results)), annotations.coco)
    return evaluate_rows(annotations.coco, rows), annotations


def evaluate_on(detector: Detector, data: DetectionData, settings: StrategySettings) -> CocoResult:
    """The metrics over the validation set of `data`; see `Detector.evaluate`."""
    with strategy_of(settings) as strategy, configure_logging(strategy.rank), heartbeat():
        annotations = strategy.run_collectively(lambda: _validation_set(data, detector))
        with detector.on(strategy.device):
            return evaluate_split(detector, annotations, data, strategy)


def _validation_set(data: DetectionData, detector: Detector) -> Annotations:
    validate(data, "data.")
    annotations = read_split(data, "val", detector.categories)
    if annotations is None:
        raise ConfigError(
            "data names no validation set; give root=FOLDER or val_annotations=FILE, of datasets val=DATASET."
        )
    return annotations


def evaluate_split(
    detector: Detector, annotations: Annotations, data: DetectionData, strategy: DistributedStrategy
) -> CocoResult:
    """Metrics of `detector`, on the strategy's device, over images read as `data` says. On every rank."""
    evaluator = evaluator_of(detector, annotations, data, strategy)
    evaluator(detector.model)
    assert evaluator.last_result is not None
    return evaluator.last_result


def evaluator_of(
    detector: Detector, annotations: Annotations, data: DetectionData, strategy: DistributedStrategy
) -> CocoEvaluator:
    """What evaluates `detector`, on the strategy's device, over images read as `data` says."""
    if annotations.held_out:
        logger.info(f"evaluating on {describe_split(annotations)}")
    how: dict[str, Any] = {
        "annotations_coco": annotations.coco,
        "categories": annotations.categories,
        "strategy": strategy,
        "autocast": autocast(strategy.device, detector.precision),
    }
    if isinstance(detector, TiledDetector):
        reading: dict[str, Any] = {"on_bad_image": data.bad_images, "max_pixels": data.max_pixels}
        dataset = DetectionDataset(annotations, EvalTransform(max_size=detector.max_size), **reading)
        return TiledEvaluator(detector, dataset, **how)
    module = CocoDataModule(
        data.with_values(min_sizes=[detector.min_size], val_min_size=None, max_size=detector.max_size, cache=None),
        train=None,
        val=annotations,
        rank=strategy.rank,
        world_size=strategy.world_size,
        device=strategy.device,
    )
    return CocoEvaluator(batches=module.val_batches, **how)


def _opened(config: EvaluateConfig, device: torch.device) -> tuple[Detector, DetectionData, Annotations]:
    """The detector and the images to judge it on."""
    path = str(config.checkpoint)
    if is_torchvision_name(path):
        detector = Detector.from_torchvision(path, device=device, precision=config.precision)
        data = DetectionData(name="coco")
    else:
        content = load_checkpoint(path)
        detector = Detector.from_content(
            content, path, device=device, precision=config.precision, model=config.outside_model
        )
        data = data_settings_of(content, DetectionData, path)
    if config.annotations:
        if config.images and config.root:
            raise ConfigError(f"root={config.root} has no effect with annotations and images; leave it out.")
        data = replace(data, format="coco", shapes=None, root=config.root, box_format=config.box_format)
        data = replace(data, val_annotations=config.annotations, val_images=config.images)
    else:
        data = data_of_checkpoint(data, config.root, path)
    if config.tile:
        detector = detector.tiled(config.tile, config.tile_overlap)
    annotations = read_split(data, "val", detector.categories)
    if annotations is None:
        raise ConfigError(
            f"{path} names no validation set; give annotations=FILE.json and images=FOLDER, or root=FOLDER."
        )
    return detector, data, annotations


def _number(value: float | None) -> str:
    return "-" if value is None or value < 0 else f"{value:.4f}"
