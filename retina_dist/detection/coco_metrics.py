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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.readers.categories import Categories
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.errors import DataError, doing
from retina_dist.files import read_bytes, write_json
from retina_dist.strategies.base import DistributedStrategy

logger = logging.getLogger(__name__)

# Where each has its ground truth and its metrics, the fastest first; their numbers are equal to the last bit.
EVALUATORS = {
    "ultrafast-pycocotools": ("ultrafast_pycocotools", "ultrafast_pycocotools"),
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval"),
}

STATS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
LOSSES = ("classification", "bbox_regression")
COLUMNS = 7
ALL_AREAS, MOST_DETECTIONS = 0, -1  # indices into the evaluator's arrays


@dataclass(frozen=True)
class CocoResult:
    """The twelve official numbers and what lies behind them; -1 where there is no ground truth."""

    stats: dict[str, float]
    per_class: dict[str, float | None]  # AP of each class; None without ground truth
    # [10 IoU thresholds .50:.95, 101 recalls 0..1, K classes], all areas, 100 detections an image
    precision: np.ndarray
    # What was compared: the ground truth, the images in the order of their ids, and rows [n, 7] of detections on them.
    coco: dict[str, Any] = field(repr=False)
    image_ids: list[int] = field(repr=False)
    rows: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and AP of each class, for JSON; None where there is no ground truth."""
        stats = {name: value if value >= 0 else None for name, value in self.stats.items()}
        return {**stats, "per_class_AP": self.per_class}

    def precision_recall(self) -> dict[str, dict[str, list[float]]]:
        """Precision at the 101 recalls: at IoU .50, .75 and as mean over .50:.95, the mean and each class with ground truth."""
        known = [k for k, ap in enumerate(self.per_class.values()) if ap is not None]
        names = [list(self.per_class)[k] for k in known]
        precision = self.precision[:, :, known]
        views = {"IoU .50": precision[0], "IoU .75": precision[5], "Mean of IoU .50:.95": precision.mean(axis=0)}
        lines = {title: np.column_stack([view.mean(axis=1), view]) for title, view in views.items() if known}
        return {
            title: dict(zip(["all classes", *names], view.T.round(4).tolist(), strict=True))
            for title, view in lines.items()
        }


def evaluate_rows(
    coco: dict[str, Any], rows: np.ndarray, *, image_ids: Sequence[int] | None = None, evaluator: str | None = None
) -> CocoResult:
    """The metrics of detection `rows` [n, 7] against the ground truth `coco` (a complete COCO dict).

    `image_ids` limits both to some images; the default is all images of the ground truth, detected in or not. `evaluator` is
    one of EVALUATORS, by default the fastest that is installed.
    """
    truth_module, metrics_module = map(import_module, EVALUATORS[evaluator or installed_evaluators()[0]])
    with contextlib.redirect_stdout(io.StringIO()):
        truth, detected = truth_module.COCO(), truth_module.COCO()
        # The evaluators write their own marks into the annotations; the caller's stay as they are. Ids are replaced,
        # because an id of 0 means "no match" to them: a box with it would always be missed.
        boxes = [{**entry, "id": i} for i, entry in enumerate(coco["annotations"], start=1)]
        truth.dataset, detected.dataset = {**coco, "annotations": boxes}, {**coco, "annotations": []}
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
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, ALL_AREAS, MOST_DETECTIONS]  # [T, R, K]
    names = _distinct_names(coco["categories"])
    return CocoResult(
        stats=dict(zip(STATS, map(float, evaluation.stats), strict=False)),
        per_class={names[c]: _class_ap(precision[:, :, k]) for k, c in enumerate(evaluation.params.catIds)},
        precision=precision,
        coco=coco,
        image_ids=[int(i) for i in evaluation.params.imgIds],
        rows=rows,
    )


def detections_to_rows(
    detections: Sequence[Detections], image_ids: Sequence[int], categories: Categories
) -> np.ndarray:
    """Rows [n, 7] of some images' detections; labels become category ids, corners become width and height.

    Labels without a category are left out.
    """
    if not detections:
        return np.zeros((0, COLUMNS))
    columns = zip(*((each["boxes"], each["scores"], each["labels"]) for each in detections))
    boxes, scores, labels = (torch.cat(column).double() for column in columns)
    values = torch.column_stack((boxes, scores, labels)).cpu().numpy()  # one copy from the device for all
    category = np.array(categories.ids, dtype=np.float64)[values[:, 5].astype(np.int64)]
    image = np.repeat(np.array(image_ids, dtype=np.float64), [len(each["scores"]) for each in detections])
    size = values[:, 2:4] - values[:, :2]
    rows = np.column_stack((image, values[:, :2], size, values[:, 4], category))
    return rows[category >= 0]


def write_results(rows: np.ndarray, path: Path) -> None:
    """COCO's results json; boxes to a hundredth of a pixel, scores to five digits, as COCO's own files."""
    results = [
        {
            "image_id": int(row[0]),
            "category_id": int(row[6]),
            "bbox": [round(v, 2) for v in row[1:5]],
            "score": round(row[5], 5),
        }
        for row in rows.tolist()
    ]
    write_json(path, results, indent=None)


def read_results(path: Path, coco: dict[str, Any]) -> np.ndarray:
    """Rows [n, 7] of a COCO results json for the ground truth `coco`. Raises DataError naming file and entry."""
    try:
        entries = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5000 digits is a mere ValueError
        raise DataError(f"{path} cannot be read as COCO results ({error}).") from error
    if not isinstance(entries, list):
        raise DataError(f"{path} holds no list; COCO results are [{{image_id, category_id, bbox, score}}, …].")
    known = {what: {e["id"] for e in coco[key]} for what, key in (("image", "images"), ("category", "categories"))}
    rows = np.zeros((len(entries), COLUMNS))
    for i, entry in enumerate(entries):
        try:
            x, y, width, height = entry["bbox"]
            row = (entry["image_id"], x, y, width, height, entry["score"], entry["category_id"])
            if not math.isfinite(sum(row)):  # json lets NaN and Infinity pass; null and text are a TypeError here
                raise ValueError("not finite")
            rows[i] = row
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path}: entry {i} is {str(entry)[:120]}, not image_id, category_id, bbox [x, y, width, height] and score."
            ) from error
        for what, ids in known.items():
            if entry[f"{what}_id"] not in ids:
                raise DataError(
                    f"{path}: entry {i} is of {what} {entry[f'{what}_id']}, which the ground truth does not have."
                )
    return rows


class CocoEvaluator:
    """Metrics of a model over a validation set that all ranks share out: call it with the model, on every rank.

    The model has `evaluate(batch) -> (losses, detections)`: scalars of any names, means over the batch, and one Detections an
    image. An image that comes more than once counts once in the metrics: the first time on a rank, and of several ranks on the
    lowest with a detection in it. In the losses it counts each time. The ground truth of an image that no rank could read is left
    out, with a warning.
    """

    metric_names = (*(f"coco/{name}" for name in STATS), "val/loss", *(f"val/loss_{name}" for name in LOSSES))

    def __init__(
        self,
        *,
        annotations_coco: dict[str, Any],
        categories: Categories,
        batches: Callable[[], Iterable[Batch]],
        strategy: DistributedStrategy,
        autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        best: BestMetric | None = None,
    ) -> None:
        self.coco, self.categories, self.batches, self.strategy = annotations_coco, categories, batches, strategy
        self.autocast, self.best = autocast, best
        self.last_result: CocoResult | None = None
        self.best_result: CocoResult | None = None  # by `best`

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """`coco/AP` and the other eleven, NaN where undefined, and `val/loss` with its parts; the same on every rank."""
        rows, image_ids, sums, images = self._run_in_eval_mode(model)
        losses = self._mean_losses(sums, images)  # outside inference mode, whose tensors Horovod cannot write to
        rows = self._gathered(rows)
        # Each rank computes from the same rows: no rank waits in a collective for another's long work.
        doing("computing the metrics")
        self.last_result = evaluate_rows(self.coco, rows, image_ids=self._read(image_ids))
        stats = self.last_result.stats.items()
        metrics = {**{f"coco/{name}": value if value >= 0 else math.nan for name, value in stats}, **losses}
        if self.best:
            before = self.best.value
            self.best.update(metrics)
            if self.best.value != before:
                self.best_result = self.last_result
        return metrics

    def detect(self, model: nn.Module) -> tuple[np.ndarray, list[int]]:
        """Rows [n, 7] of the detections, and the ascending ids of the images that were read, those without one too; no metrics."""
        rows, image_ids, _, _ = self._run_in_eval_mode(model)
        return self._gathered(rows), sorted(self._of_all_ranks(image_ids))

    def _run_in_eval_mode(self, model: nn.Module) -> tuple[np.ndarray, list[int], dict[str, Tensor], int]:
        was_training = model.training
        model.eval()
        found = self._run(model)
        model.train(was_training)
        return found

    @torch.inference_mode()
    def _run(self, model: Any) -> tuple[np.ndarray, list[int], dict[str, Tensor], int]:
        """This rank's rows, the ids of its images, the sums of their losses and their number; without communication."""
        device = self.strategy.device
        parts = [np.zeros((0, COLUMNS))]
        sums: dict[str, Tensor] = {}
        images = 0
        seen: set[int] = set()
        doing("validation, 0 images")
        for batch in self.batches():
            if batch.weight == 0:  # none of its images could be read
                continue
            with self.autocast():
                losses, detections = model.evaluate(batch.to(device, non_blocking=True))
            for name, value in losses.items():
                sums[name] = sums.get(name, torch.zeros((), device=device)) + value.float() * len(batch)
            images += len(batch)
            doing(f"validation, {images * self.strategy.world_size} images")
            fresh: dict[int, Detections] = {}
            for image_id, detected in zip(batch.image_ids.tolist(), detections, strict=True):
                if image_id not in seen:
                    fresh.setdefault(image_id, detected)
            seen.update(fresh)
            parts.append(detections_to_rows(list(fresh.values()), list(fresh), self.categories))
        return np.concatenate(parts), sorted(seen), sums, images

    def _read(self, image_ids: list[int]) -> list[int] | None:
        """The images that some rank has read, None for all. Raises DataError on every rank if there is none."""
        everyone = self._of_all_ranks(image_ids)
        if not everyone:
            raise DataError("no validation image could be read, so there is no metric.", collective=True)
        missing = len(self.coco["images"]) - len(everyone)
        if missing:
            logger.warning(f"{missing} of {len(self.coco['images'])} validation images are left out of the metrics.")
        return sorted(everyone) if missing else None

    def _of_all_ranks(self, image_ids: list[int]) -> set[int]:
        column = torch.tensor(image_ids, dtype=torch.int64, device=self.strategy.device)[:, None]
        return set(self.strategy.all_gather(column).flatten().tolist())

    def _mean_losses(self, sums: dict[str, Tensor], images: int) -> dict[str, float]:
        # A rank without images takes part too and knows no names.
        text = "".join(f"{name}\n" for name in sums).encode()
        known = self.strategy.all_gather(torch.tensor(list(text), dtype=torch.uint8, device=self.strategy.device))
        names = dict.fromkeys(bytes(known.tolist()).decode().splitlines())
        zero = torch.zeros((), device=self.strategy.device)
        stacked = torch.stack([*(sums.get(name, zero) for name in names), zero + images]).double()
        *totals, count = self.strategy.all_reduce(stacked, "sum").tolist()
        if not count:
            return {}
        means = {f"val/loss_{name}": total / count for name, total in zip(names, totals, strict=True)}
        return {"val/loss": sum(means.values()), **means}

    def _gathered(self, rows: np.ndarray) -> np.ndarray:
        """All ranks' rows by image; of an image that several ranks held, those of the first."""
        ranked = np.column_stack((rows, np.full(len(rows), self.strategy.rank, dtype=np.float64)))
        everyone = self.strategy.all_gather(torch.from_numpy(ranked).to(self.strategy.device)).cpu().numpy()
        everyone = everyone[np.argsort(everyone[:, 0], kind="stable")]  # of one image, still in the order of ranks
        _, first, image = np.unique(everyone[:, 0], return_index=True, return_inverse=True)
        ranks = everyone[:, COLUMNS]
        return everyone[ranks == ranks[first][image], :COLUMNS]


def installed_evaluators() -> list[str]:
    """Those that can be used here, the fastest first."""
    return [name for name, (module, _) in EVALUATORS.items() if find_spec(module.split(".")[0])]


def _distinct_names(entries: list[dict[str, Any]]) -> dict[int, str]:
    """Category id -> name, with the id added where two categories share a name."""
    times = Counter(entry["name"] for entry in entries)
    return {e["id"]: e["name"] if times[e["name"]] == 1 else f"{e['name']} ({e['id']})" for e in entries}


def _class_ap(precision: np.ndarray) -> float | None:
    """Mean of a class's [T, R] precision, None where it has no ground truth."""
    defined = precision[precision > -1]
    return float(defined.mean()) if len(defined) else None
