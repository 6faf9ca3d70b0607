"""COCO metrics of a checkpoint, over its validation set or another, or of a results json."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import parse_path, write_json
from retina_dist.data.images import MAX_PIXELS
from retina_dist.detection.analysis import analyse
from retina_dist.detection.coco_metrics import (
    MAX_DETECTIONS,
    STATS,
    CocoResult,
    evaluate_rows,
    read_results,
    write_results,
)
from retina_dist.detection.detector import Detector
from retina_dist.detection.pictures import write_report_details
from retina_dist.detection.readers.annotations import Annotations, BoxForm, sizes_of
from retina_dist.detection.readers.ground_truth import places_in
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.model.weights import is_torchvision_name
from retina_dist.reporting.analysis import lines_of
from retina_dist.reporting.intervals import Resampled
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy
from retina_dist.task.predictor import data_of_checkpoint
from retina_dist.task.settings import EvaluateConfig, PredictorConfig
from retina_dist.task.temperature import calibrate

logger = logging.getLogger(__name__)


def evaluate(config: EvaluateConfig) -> tuple[CocoResult, str]:
    """The metrics and, on the main rank, a table of them and of errors; every rank calls it.

    With `output_dir` also metrics.json, what `analysis_of` writes and, of a checkpoint,
    results.json.
    """
    _check(config)
    is_main = detect_launch().rank == 0
    folder = Path(config.output_dir) if config.output_dir and is_main else None
    detector = None
    max_pixels = MAX_PIXELS
    times = {}
    if config.results:
        result, annotations = _of_results(config)
    else:
        with make_strategy(device=config.device) as strategy, heartbeat():
            detector, data, annotations = strategy.run_collectively(
                lambda: opened(config, strategy.device)
            )
            data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
            evaluator = detector.evaluator_of(annotations, data, strategy)
            result = evaluator.evaluate(detector.model)
            times = evaluator.times
            if is_main and config.max_detections:
                result = evaluate_rows(
                    result.coco,
                    result.rows,
                    image_ids=result.image_ids,
                    max_detections=config.max_detections,
                )
            max_pixels = data.max_pixels
        if folder:
            write_results(result.rows, folder / "results.json")

    if not is_main:
        return result, ""
    analysis, resampled = analyse(result, folder, times)
    if folder:
        write_json(folder / "metrics.json", result.to_dict())
        write_report_details(result, annotations, folder, max_pixels)
    lines = [format_table(result, resampled), *lines_of(analysis)]
    if detector:
        split = config.annotations or data.val_split
        lines += calibrate(detector, analysis, resampled.images, split, config.calibrate)
    return result, "\n".join(lines).rstrip("\n")


def _check(config: EvaluateConfig) -> None:
    _check_calibrate(config)
    if (config.checkpoint is None) == (config.results is None):
        raise ConfigError(
            "give either checkpoint=FILE.pt or results=FILE.json with annotations=FILE.json."
        )
    if config.images and not config.annotations:
        raise ConfigError(
            f"images={config.images} needs annotations=FILE.json; give both, or root=FOLDER."
        )
    if config.split and (config.results or config.annotations):
        raise ConfigError(
            f"split={config.split} is of a folder, not of annotations; give root=FOLDER instead."
        )
    if config.results and set(config.limits()) != {None}:
        raise ConfigError(
            "score_threshold, nms_threshold and detections_per_image limit a checkpoint's "
            f"detector; leave them out for results={config.results}."
        )
    if config.root and (config.images or config.results):
        raise ConfigError(f"root={config.root} has no effect with images or results; leave it out.")


def _check_calibrate(config: EvaluateConfig) -> None:
    if config.calibrate and (config.results or is_torchvision_name(str(config.checkpoint))):
        raise ConfigError("calibrate=true writes into a checkpoint; give that of a run.")


def format_table(result: CocoResult, resampled: Resampled) -> str:
    """The twelve numbers and AP of each class, a line each; a dash without ground truth.

    APs have their 95 % intervals, or the reason why there is none.
    """
    lines = [f"{'':<43}95 % interval"]
    for name, value in result.stats.items():
        line = f"{name:<7}{STATS[name]:<27}{_number(value)}"
        if f"coco/{name}" in resampled.values:
            line += f"   {resampled.interval(f'coco/{name}')}"
        lines.append(line.rstrip())
    for name, mean in result.beyond.items():
        lines.append(f"{name:<7}{'IoU .50:.95, not official':<27}{_number(mean)}")
    lines += ["", "AP of each class"]
    width = max(map(len, result.per_class), default=0)
    for name, ap in result.per_class.items():
        interval = resampled.interval(f"coco/AP/{name}")
        lines.append(f"  {name:<{width}}  {_number(ap)}   {interval}".rstrip())
    if any(resampled.interval(name).leaves_out_value for name in resampled.values):
        lines += ["", "Few images overestimate AP; the intervals lie around the corrected values."]
    return "\n".join(lines)


def _of_results(config: EvaluateConfig) -> tuple[CocoResult, Annotations]:
    if config.annotations is None:
        raise ConfigError("results=… needs annotations=FILE.json, the ground truth it is for.")
    truth = parse_path(str(config.annotations))
    images = parse_path(config.images) if config.images else truth.parent
    annotations = load_annotations(
        truth, images, missing_images="ignore", box_format=config.box_format
    )
    problem = BoxForm(annotations).fault("the ground truth")
    if problem:
        raise DataError(f"{truth}: {'; '.join(problem).replace('data.box_format', 'box_format')}.")
    coco = annotations.coco
    rows = read_results(Path(str(config.results)), coco)
    image_ids = rows[:, 0].astype(np.int64)
    crowd = np.zeros(len(rows), bool)
    places = places_in(np.array(annotations.image_ids, dtype=np.int64), image_ids)
    found = replace(annotations.truth, boxes=rows[:, 1:5], image_rows=places, crowd=crowd)
    sizes = sizes_of(annotations.records)[places]
    # results have one form, whatever that of the ground truth
    misread = BoxForm(replace(annotations, truth=found, sizes=sizes, box_format=None)).misread()
    if misread:
        raise DataError(
            f"{config.results}: {misread[0]}; write each bbox as x, y, width, height in pixels."
        )
    limit = config.max_detections or MAX_DETECTIONS
    result = evaluate_rows(coco, rows, max_detections=limit)
    if result.stats["AP50"] < 0.01:
        logger.warning(
            f"{config.results} hits almost no object; check that "
            f"its image_id and category_id are those of {truth}."
        )
    return result, annotations


def predictor_of(config: PredictorConfig, device: str | torch.device) -> Detector:
    """The detector of `config.checkpoint`."""
    detector = Detector.from_checkpoint(
        str(config.checkpoint),
        device=device,
        precision=config.precision,
        model=config.outside_model,
    ).set_limits(*config.limits())
    if not config.tile:
        return detector
    if config.tile_overlap is None:
        return detector.tiled(config.tile)
    return detector.tiled(config.tile, config.tile_overlap)


def opened(
    config: EvaluateConfig, device: torch.device
) -> tuple[Detector, DetectionData, Annotations]:
    """The detector of `config.checkpoint`, and the images to evaluate it on."""
    path = str(config.checkpoint)
    detector = predictor_of(config, device)
    places = dict(root=config.root, val_annotations=config.annotations, val_images=config.images)
    if is_torchvision_name(path):
        data = DetectionData(name="coco").with_values(**places)
    else:
        data = data_of_checkpoint(detector.record, DetectionData, path, **places)
    data = data.of_split(config.split)
    if config.annotations:
        data = replace(
            data,
            format="coco",
            box_format=config.box_format,
            columns=None,  # as is the next, of the training's files
            voc_offset=None,
        )
    return detector, data, detector.val_of(data)


def _number(value: float | None) -> str:
    if value is None or value < 0:
        return "-"
    return f"{value:.4f}"
