"""COCO's box metrics, by pycocotools or a faster evaluator that gives the same numbers.

Ground truth is the annotation file as it is, never boxes that went through a transform. Detections travel as rows
[n, 7] of float64: image_id, x, y, width, height, score, category_id; float64, because ids above 2^24 do not fit float32.
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

# Where each has its ground truth and its metrics, the fastest first; their numbers are equal to the last bit.
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
Part = tuple[
    list[int], np.ndarray, dict[str, Tensor]
]  # image ids, rows [n, 7], sums of the losses of a batch
ALL_AREAS, MOST_DETECTIONS = 0, -1  # indices into the evaluator's arrays


@dataclass(frozen=True)
class CocoResult:
    """The twelve official numbers, -1 without ground truth, and the arrays that they were computed from."""

    stats: dict[str, float]
    per_class: dict[str, float | None]  # AP of each class; None without ground truth
    # [10 IoU thresholds .50:.95, 101 recalls 0..1, K classes], all areas, 100 detections an image
    precision: np.ndarray
    # What was compared: the ground truth, the images in the order of their ids, and rows [n, 7] of detections on them.
    coco: dict[str, Any] = field(repr=False)
    image_ids: list[int] = field(repr=False)
    rows: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and AP of each class, for JSON; None without ground truth."""
        stats = {name: value if value >= 0 else None for name, value in self.stats.items()}
        return {**stats, "per_class_AP": self.per_class}

    def precision_recall(self) -> dict[str, dict[str, list[float]]]:
        """Precision at the 101 recalls: at IoU .50, .75 and as mean over .50:.95, the mean and each class with ground truth."""
        known = [k for k, ap in enumerate(self.per_class.values()) if ap is not None]
        names = ["all classes", *(name for name, ap in self.per_class.items() if ap is not None)]
        precision = self.precision[:, :, known]
        views = {
            "IoU .50": precision[0],
            "IoU .75": precision[5],
            "Mean of IoU .50:.95": precision.mean(axis=0),
        }
        lines = {
            title: np.vstack([view.mean(axis=1), view.T]).round(4)
            for title, view in views.items()
            if known
        }
        return {
            title: dict(zip(names, line.tolist(), strict=True)) for title, line in lines.items()
        }


def evaluate_rows(
    coco: dict[str, Any],
    rows: np.ndarray,
    *,
    image_ids: Sequence[int] | None = None,
    evaluator: str | None = None,
) -> CocoResult:
    """The metrics of detection `rows` [n, 7] against the ground truth `coco` (a complete COCO dict) on `image_ids`, by default all.

    `evaluator` is one of EVALUATORS, by default the fastest that is installed.
    """
    truth_module, metrics_module = map(
        import_module, EVALUATORS[evaluator or installed_evaluators()[0]]
    )
    with contextlib.redirect_stdout(io.StringIO()):
        truth, detected = truth_module.COCO(), truth_module.COCO()
        # The evaluators write marks into the annotations. An id of 0 means "no match" to them: such a box is always missed.
        boxes = [{**entry, "id": i} for i, entry in enumerate(coco["annotations"], start=1)]
        truth.dataset, detected.dataset = (
            {**coco, "annotations": boxes},
            {**coco, "annotations": []},
        )
        truth.createIndex(), detected.createIndex()
        rows = rows[np.isin(rows[:, 0], [image["id"] for image in coco["images"]])]
        if len(rows):
            detected = truth.loadRes(rows)
        evaluation = metrics_module.COCOeval(truth, detected, "bbox")
        if image_ids is not None:
            evaluation.params.imgIds = sorted(image_ids)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = np.asarray(evaluation.eval["precision"])[
        :, :, :, ALL_AREAS, MOST_DETECTIONS
    ]  # [T, R, K]
    names = Categories.from_coco(
        coco["categories"]
    ).distinct_names  # by id, as the evaluators take them
    defined = {name: precision[:, :, k][precision[:, :, k] > -1] for k, name in enumerate(names)}
    return CocoResult(
        stats=dict(zip(STATS, map(float, evaluation.stats), strict=False)),
        per_class={
            name: float(values.mean()) if len(values) else None for name, values in defined.items()
        },
        precision=precision,
        coco=coco,
        image_ids=[int(i) for i in evaluation.params.imgIds],
        rows=rows,
    )


def detections_to_rows(
    detections: Sequence[Detections], image_ids: list[int], categories: Categories
) -> np.ndarray:
    """Rows [n, 7] of some images' detections, with category ids in place of labels; labels without a category are left out."""
    if not detections:
        return np.zeros((0, COLUMNS))
    columns = zip(*((each["boxes"], each["scores"], each["labels"]) for each in detections))
    boxes, scores, labels = (torch.cat(column).double() for column in columns)
    values = (
        torch.column_stack((boxes, scores, labels)).cpu().numpy()
    )  # one copy from the device for all
    category = np.array(categories.ids, dtype=np.float64)[values[:, 5].astype(np.int64)]
    image = np.repeat(
        np.array(image_ids, dtype=np.float64), [len(each["scores"]) for each in detections]
    )
    size = values[:, 2:4] - values[:, :2]
    rows = np.column_stack((image, values[:, :2], size, values[:, 4], category))
    return rows[category >= 0]


def write_results(rows: np.ndarray, path: Path) -> None:
    """COCO's results json; boxes to a hundredth of a pixel, scores to five digits, as COCO's own files."""
    keys = ("image_id", "category_id", "bbox", "score")
    values = (
        (int(i), int(c), [round(x, 2) for x in box], round(score, 5))
        for i, *box, score, c in rows.tolist()
    )
    write_json(path, [dict(zip(keys, row, strict=True)) for row in values], indent=None)


def read_results(path: Path, coco: dict[str, Any]) -> np.ndarray:
    """Rows [n, 7] of a COCO results json for the ground truth `coco`. Raises DataError naming file and entry."""
    try:
        entries = json.loads(read_bytes(path))
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # a number of 5000 digits is a mere ValueError
        raise DataError(f"{path} cannot be read as COCO results ({error}).") from error
    if not isinstance(entries, list):
        raise DataError(
            f"{path} holds no list; COCO results are [{{image_id, category_id, bbox, score}}, …]."
        )
    known = {
        what: {e["id"] for e in coco[key]}
        for what, key in (("image", "images"), ("category", "categories"))
    }
    rows = np.zeros((len(entries), COLUMNS))
    for i, entry in enumerate(entries):
        try:
            x, y, width, height = entry["bbox"]
            row = (entry["image_id"], x, y, width, height, entry["score"], entry["category_id"])
            if not math.isfinite(
                sum(row)
            ):  # json lets NaN and Infinity pass; null and text are a TypeError here
                raise ValueError("not finite")
            rows[i] = row
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path}: entry {i} is {entry!s:.120}; give image_id, category_id, bbox, score."
            ) from error
        for what, ids in known.items():
            if entry[f"{what}_id"] not in ids:
                raise DataError(
                    f"{path}: entry {i} is of {what} {entry[f'{what}_id']}, which the ground truth lacks."
                )
    return rows


class CocoEvaluator(Evaluator[CocoResult]):
    """COCO metrics over the annotations `val` of a model with a method as `DetectionModel.evaluate`.

    An image that comes more than once counts once in the metrics, the first time on the lowest rank, and each time in the losses.
    The ground truth of an image that no rank could read is left out, with a warning.
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
        first = dict(
            zip(reversed(image_ids), reversed(detections), strict=True)
        )  # of an image that comes twice
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
        images = len(self.val.coco["images"])
        if missing := images - len(image_ids):
            logger.warning(f"{missing} of {images} validation images are left out of the metrics.")
        # Each rank computes from the same rows: no rank waits in a collective for another's long work.
        set_status("computing the metrics")
        result = evaluate_rows(self.val.coco, rows, image_ids=image_ids if missing else None)
        stats = {
            f"coco/{name}": value if value >= 0 else math.nan
            for name, value in result.stats.items()
        }
        return result, {**stats, **losses}

    def detect(self, model: nn.Module) -> tuple[np.ndarray, list[int]]:
        """Rows [n, 7] of the detections, and the ascending ids of the images that were read."""
        return self._gathered(self.collect(model))

    def _gathered(self, parts: list[Part]) -> tuple[np.ndarray, list[int]]:
        """All ranks' rows by image, and the ascending ids of their images."""
        part_of: dict[int, int] = {}  # the first that has an image
        for number, (image_ids, _, _) in enumerate(parts):
            for image_id in image_ids:
                part_of.setdefault(image_id, number)
        rank, device = self.strategy.rank, self.strategy.device
        pairs = torch.tensor([(image_id, rank) for image_id in part_of], dtype=torch.int64).reshape(
            -1, 2
        )
        rank_of = dict(
            reversed(self.strategy.all_gather(pairs.to(device)).tolist())
        )  # the lowest that has an image
        own = [np.zeros((0, COLUMNS))]
        for number, (image_ids, rows, _) in enumerate(parts):
            kept = [i for i in image_ids if part_of[i] == number and rank_of[i] == rank]
            own.append(rows[np.isin(rows[:, 0], kept)])
        everyone = (
            self.strategy.all_gather(torch.from_numpy(np.concatenate(own)).to(device)).cpu().numpy()
        )
        return everyone[np.argsort(everyone[:, 0], kind="stable")], sorted(rank_of)

    def _mean_losses(self, parts: list[Part]) -> dict[str, float]:
        """Means over all ranks' images, outside inference mode, whose tensors Horovod cannot write to."""
        device = self.strategy.device
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=device))
        for _, _, losses in parts:
            for name, value in losses.items():
                sums[name] = sums[name] + value
        # A rank without images takes part too and knows no names.
        text = "".join(f"{name}\n" for name in sums).encode()
        known = self.strategy.all_gather(torch.tensor(list(text), dtype=torch.uint8, device=device))
        names = dict.fromkeys(bytes(known.tolist()).decode().splitlines())
        images = torch.tensor(
            float(sum(len(image_ids) for image_ids, _, _ in parts)), device=device
        )
        values = torch.stack([*(sums[name] for name in names), images]).double()
        *totals, count = self.strategy.all_reduce(values, "sum").tolist()
        means = {
            f"val/loss_{name}": total / count for name, total in zip(names, totals, strict=True)
        }
        return {"val/loss": sum(means.values()), **means} if means else {}


def installed_evaluators() -> list[str]:
    """Those that can be used here, the fastest first."""
    return [name for name, (module, _) in EVALUATORS.items() if find_spec(module.split(".")[0])]
