"""COCO's box metrics, by pycocotools or a faster evaluator that gives the same numbers.

Ground truth is the annotation file as it is, never boxes that went through a transform.
Detections travel as rows [n, 7] of float64: image_id, x, y, width, height, score, category_id;
float64, because ids above 2^24 do not fit float32.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.files import read_bytes, write_json
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.readers.categories import Categories
from retina_dist.task.image_task import Evaluator

logger = logging.getLogger(__name__)

# Where each has its ground truth and its metrics, the fastest first; their numbers are equal
# to the last bit.
EVALUATORS = {
    "ultrafast-pycocotools": ("ultrafast_pycocotools", "ultrafast_pycocotools"),
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval"),
}

STATS = {
    "AP": "IoU .50:.95",
    "AP50": "IoU .50",
    "AP75": "IoU .75",
    "APs": "area below 32^2 px",
    "APm": "area 32^2 to 96^2 px",
    "APl": "area above 96^2 px",
    "AR1": "1 detection an image",
    "AR10": "10 detections",
    "AR100": "100 detections",
    "ARs": "area below 32^2 px",
    "ARm": "area 32^2 to 96^2 px",
    "ARl": "area above 96^2 px",
}
LOSSES = ("classification", "bbox_regression")
COLUMNS = 7
RESULT = ("image_id", "category_id", "bbox", "score")  # of results.json
# image ids, rows [n, 7], and the sums of the losses, of a batch
Part = tuple[list[int], np.ndarray, dict[str, Tensor]]
# indices into the evaluator's arrays
ALL_AREAS = 0
MAX_DETECTIONS = -1


@dataclass(frozen=True)
class CocoResult:
    """The twelve official numbers, -1 without ground truth, and the arrays behind them."""

    stats: dict[str, float]
    per_class: dict[str, float | None]  # AP of each class; None without ground truth
    # [10 IoU thresholds .50:.95, 101 recalls 0..1, K classes], all areas, 100 detections an image
    precision: np.ndarray
    # What was compared: the ground truth, the images in the order of their ids, and rows [n, 7]
    # of detections on them.
    coco: dict[str, Any] = field(repr=False)
    image_ids: list[int] = field(repr=False)
    rows: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and AP of each class, for JSON; None without ground truth."""
        content: dict[str, Any] = dict(self.stats)
        for name, value in self.stats.items():
            if value < 0:
                content[name] = None
        content["per_class_AP"] = self.per_class
        return content

    def precision_recall(self) -> dict[str, dict[str, list[float]]]:
        """Precision at the 101 recalls by IoU, of the mean and of each class with ground truth."""
        defined = np.array([ap is not None for ap in self.per_class.values()], bool)
        if not defined.any():
            return {}
        names = np.array(list(self.per_class), object)[defined].tolist()
        precision = self.precision[:, :, defined]
        views = {
            "IoU .50": precision[0],
            "IoU .75": precision[5],
            "Mean of IoU .50:.95": precision.mean(axis=0),
        }
        charts = {}
        for title, view in views.items():
            charts[title] = {"all classes": view.mean(axis=1).round(4).tolist()}
            charts[title].update(zip(names, view.T.round(4).tolist(), strict=True))
        return charts


def evaluate_rows(
    coco: dict[str, Any],
    rows: np.ndarray,
    *,
    image_ids: Sequence[int] | None = None,
    evaluator: str | None = None,
) -> CocoResult:
    """The metrics of detections against ground truth.

    Args:
        coco: the ground truth, a complete COCO dict.
        rows: the detections, [n, 7].
        image_ids: the images to count, by default all.
        evaluator: one of EVALUATORS, by default the fastest that is installed.
    """
    modules = EVALUATORS[evaluator or installed_evaluators()[0]]
    truth_module, metrics_module = map(import_module, modules)
    # The evaluators write marks into the annotations. An id of 0 means "no match" to them: such a
    # box is always missed.
    boxes = [{**entry, "id": i} for i, entry in enumerate(coco["annotations"], start=1)]
    rows = rows[np.isin(rows[:, 0], [image["id"] for image in coco["images"]])]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = truth_module.COCO()
        truth.dataset = {**coco, "annotations": boxes}
        truth.createIndex()
        if len(rows):
            detected = truth.loadRes(rows)
        else:
            detected = truth_module.COCO()
            detected.dataset = {**coco, "annotations": []}
            detected.createIndex()

        evaluation = metrics_module.COCOeval(truth, detected, "bbox")
        if image_ids is not None:
            evaluation.params.imgIds = sorted(image_ids)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()

    # [T, R, K]
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, ALL_AREAS, MAX_DETECTIONS]
    # by id, as the evaluators take them
    names = Categories.from_coco(coco["categories"]).distinct_names
    per_class: dict[str, float | None] = {}
    for k, name in enumerate(names):
        defined = precision[:, :, k][precision[:, :, k] > -1]
        per_class[name] = None
        if len(defined):
            per_class[name] = float(defined.mean())
    return CocoResult(
        stats=dict(zip(STATS, map(float, evaluation.stats), strict=False)),
        per_class=per_class,
        precision=precision,
        coco=coco,
        image_ids=list(map(int, evaluation.params.imgIds)),
        rows=rows,
    )


def detections_to_rows(
    detections: Sequence[Detections], image_ids: list[int], categories: Categories
) -> np.ndarray:
    """Rows [n, 7] of some images' detections, with category ids in place of labels.

    Labels without a category, and boxes without an area, are left out.
    """
    if not detections:
        return np.zeros((0, COLUMNS))
    boxes = torch.cat([each["boxes"] for each in detections])
    scores = torch.cat([each["scores"] for each in detections])
    labels = torch.cat([each["labels"] for each in detections])
    # one copy from the device for all
    values = torch.column_stack((boxes.double(), scores.double(), labels.double())).cpu().numpy()

    category = np.array(categories.ids, dtype=np.float64)[values[:, 5].astype(np.int64)]
    counts = [len(each["scores"]) for each in detections]
    image = np.repeat(np.array(image_ids, dtype=np.float64), counts)
    size = values[:, 2:4] - values[:, :2]
    rows = np.column_stack((image, values[:, :2], size, values[:, 4], category))
    return rows[(category >= 0) & (size > 0).all(axis=1)]


def write_results(rows: np.ndarray, path: Path) -> None:
    """COCO's results json, with every digit: judged again, it gives the same numbers."""
    entries = []
    for image_id, x, y, width, height, score, category_id in rows.tolist():
        values = (int(image_id), int(category_id), [x, y, width, height], score)
        entries.append(dict(zip(RESULT, values, strict=True)))
    write_json(path, entries, indent=None)


def read_results(path: Path, coco: dict[str, Any]) -> np.ndarray:
    """Rows [n, 7] of a COCO results json for the ground truth `coco`.

    Raises:
        DataError: the file cannot be read, or an entry of it is wrong; names both.
    """
    try:
        entries = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: a number of 5000 digits
        raise DataError(f"{path} cannot be read as COCO results ({error}); give a json.") from error
    if not isinstance(entries, list):
        raise DataError(
            f"{path} holds no list; COCO results are [{{image_id, category_id, bbox, score}}, …]."
        )

    known = {}
    for what, key in (("image", "images"), ("category", "categories")):
        known[what] = {entry["id"] for entry in coco[key]}
    rows = np.zeros((len(entries), COLUMNS))
    for i, entry in enumerate(entries):
        try:
            x, y, width, height = entry["bbox"]
            row = (entry["image_id"], x, y, width, height, entry["score"], entry["category_id"])
            # json lets NaN and Infinity pass; null and text are a TypeError here
            if not math.isfinite(sum(row)):
                raise ValueError("not finite")
            rows[i] = row
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path}: entry {i} is {entry!s:.120}; give image_id, category_id, bbox, score."
            ) from error
        for what, ids in known.items():
            number = entry[f"{what}_id"]
            if number not in ids:
                raise DataError(
                    f"{path}: entry {i} is of {what} {number}, which the ground truth lacks."
                )
    return rows


class CocoEvaluator(Evaluator[CocoResult]):
    """COCO metrics over `val` of a model with a method as `DetectionModel.evaluate`.

    An image that comes more than once counts once in the metrics, the first time on the lowest
    rank, and each time in the losses. The ground truth of an image that no rank could read is left
    out, with a warning.
    """

    metric_names = (
        *(f"coco/{name}" for name in STATS),
        "val/loss",
        *(f"val/loss_{name}" for name in LOSSES),
    )

    def update(self, model: Any, batch: Batch) -> Part:
        with self.autocast():
            losses, detections = model.evaluate(batch)
        image_ids = batch.image_ids.tolist()
        first: dict[int, Detections] = {}  # of an image that comes twice
        for image_id, found in zip(image_ids, detections, strict=True):
            first.setdefault(image_id, found)
        rows = detections_to_rows(list(first.values()), list(first), self.val.categories)
        return image_ids, rows, {name: x.float() * len(batch) for name, x in losses.items()}

    def compute(self, parts: list[Part]) -> tuple[CocoResult, dict[str, float]]:
        """`coco/AP` and the other eleven, NaN where undefined, and `val/loss` with its parts."""
        losses = self._mean_losses(parts)
        rows, image_ids = self._gathered(parts)
        if not image_ids:
            raise DataError(
                "no validation image could be read, so there is no metric.", collective=True
            )
        images = len(self.val.truth.images)
        missing = images - len(image_ids)
        if missing:
            logger.warning(f"{missing} of {images} validation images are left out of the metrics.")

        # Each rank computes from the same rows: no rank waits in a collective for another's long
        # work.
        set_status("computing the metrics")
        result = evaluate_rows(self.val.coco, rows, image_ids=image_ids if missing else None)
        metrics: dict[str, float] = {}
        for name, value in result.to_dict().items():
            if name in STATS:
                metrics[f"coco/{name}"] = math.nan if value is None else value
        return result, {**metrics, **losses}

    def detect(self, model: nn.Module) -> tuple[np.ndarray, list[int]]:
        """Rows [n, 7] of the detections, and the ascending ids of the images that were read."""
        return self._gathered(self.collect(model))

    def _gathered(self, parts: list[Part]) -> tuple[np.ndarray, list[int]]:
        """All ranks' rows by image, and the ascending ids of their images."""
        part_of: dict[int, int] = {}  # the first that has an image
        for number, (image_ids, _, _) in enumerate(parts):
            for image_id in image_ids:
                part_of.setdefault(image_id, number)

        rank = self.strategy.rank
        device = self.strategy.device
        ids = torch.tensor(list(part_of), dtype=torch.int64)
        pairs = torch.stack((ids, torch.full_like(ids, rank)), dim=1)
        gathered = self.strategy.all_gather(pairs.to(device)).tolist()
        rank_of = dict(reversed(gathered))  # the lowest that has an image

        own = [np.zeros((0, COLUMNS))]
        for number, (image_ids, rows, _) in enumerate(parts):
            kept = [i for i in image_ids if part_of[i] == number and rank_of[i] == rank]
            own.append(rows[np.isin(rows[:, 0], kept)])
        own_rows = torch.from_numpy(np.concatenate(own)).to(device)
        everyone = self.strategy.all_gather(own_rows).cpu().numpy()
        return everyone[np.argsort(everyone[:, 0], kind="stable")], sorted(rank_of)

    def _mean_losses(self, parts: list[Part]) -> dict[str, float]:
        """Means over all ranks' images.

        Outside inference mode, whose tensors Horovod cannot write to.
        """
        device = self.strategy.device
        images = 0
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=device))
        for image_ids, _, losses in parts:
            images += len(image_ids)
            for name, value in losses.items():
                sums[name] = sums[name] + value

        # A rank without images takes part too and knows no names.
        text = "\n".join([*sums, ""]).encode()
        known = self.strategy.all_gather(torch.tensor(list(text), dtype=torch.uint8, device=device))
        names = list(dict.fromkeys(bytes(known.tolist()).decode().splitlines()))
        if not names:
            return {}

        count = torch.tensor(float(images), device=device)
        values = torch.stack([*map(sums.__getitem__, names), count]).double()
        totals = self.strategy.all_reduce(values, "sum").tolist()
        means = {}
        for name, total in zip(names, totals[:-1], strict=True):
            means[f"val/loss_{name}"] = total / totals[-1]
        return {"val/loss": sum(means.values()), **means}


def installed_evaluators() -> list[str]:
    """Those that can be used here, the fastest first."""
    installed = []
    for name, (module, _) in EVALUATORS.items():
        if find_spec(module.split(".")[0]):
            installed.append(name)
    return installed
