"""COCO's box metrics, by pycocotools or a faster evaluator that gives the same numbers.

Ground truth is the annotation file as it is, never boxes that went through a transform.
Detections travel as rows [n, 7] of float64: image_id, x, y, width, height, score, category_id;
float64, because ids above 2^24 do not fit float32.
"""

import contextlib
import hashlib
import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from retina_dist.base.arguments import Numbers, Suggests
from retina_dist.base.errors import DataError, set_status
from retina_dist.base.files import read_bytes, write_json
from retina_dist.data.parsing import reading
from retina_dist.detection.batch import Batch, Detections, joined, scaled
from retina_dist.detection.readers.categories import Categories, Entry
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
# Ends the error about an id that the ground truth lacks: what a result may hold in its place.
OR_NAMES = {
    "image": ", or as image_id the name of the image's file without its ending (predict writes the "
    "names of its ids into images.json)",
    "category": "",
}
# indices into the evaluator's arrays
ALL_AREAS = 0
LAST = -1  # the most detections

MAX_DETECTIONS = 100  # of a class on an image, which COCO counts


@dataclass(frozen=True)
class CocoResult(Suggests):
    """The twelve official numbers, -1 without ground truth, and the arrays behind them."""

    stats: dict[str, float]
    per_class: dict[str, float | None]  # AP of each class; None without ground truth
    # [10 IoU thresholds .50:.95, 101 recalls 0..1, K classes], all areas, 100 detections an image
    precision: np.ndarray
    # What was compared: the ground truth, the images in the order of their ids, and rows [n, 7]
    # of detections on them.
    coco: Entry = field(repr=False)
    image_ids: list[int] = field(repr=False)
    rows: np.ndarray = field(repr=False)
    max_detections: int = MAX_DETECTIONS  # of a class on an image, in hits, misses and errors
    beyond: dict[str, float | None] = field(default_factory=dict)  # AP and AR with that many

    def __post_init__(self) -> None:
        vars(self).update(stats=Numbers(self.stats), per_class=Numbers(self.per_class))

    def to_dict(self) -> Entry:
        """Numbers and AP of each class, for JSON; None without ground truth."""
        return {
            **{name: None if value < 0 else value for name, value in self.stats.items()},
            **self.beyond,
            "per_class_AP": self.per_class,
        }

    def precision_recall(self) -> dict[str, dict[str, list[float]]]:
        """Precision at the 101 recalls by IoU, of the mean and of each class with ground truth."""
        names = [name for name, ap in self.per_class.items() if ap is not None]
        if not names:
            return {}
        precision = self.precision[:, :, [ap is not None for ap in self.per_class.values()]]
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
    coco: Entry,
    rows: np.ndarray,
    *,
    image_ids: Sequence[int] | None = None,
    evaluator: str | None = None,
    max_detections: int = MAX_DETECTIONS,
) -> CocoResult:
    """The metrics of detections against ground truth.

    Args:
        coco: the ground truth, a complete COCO dict.
        rows: the detections, [n, 7].
        image_ids: the images to count, by default all.
        evaluator: one of EVALUATORS, by default the fastest that is installed.
        max_detections: of a class on an image, in `beyond` and in analyses.
    """
    truth_module, metrics_module = map(
        import_module, EVALUATORS[evaluator or installed_evaluators()[0]]
    )
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
            detected.dataset = coco | {"annotations": []}
            detected.createIndex()

        evaluation = metrics_module.COCOeval(truth, detected, "bbox")
        if image_ids is not None:
            evaluation.params.imgIds = sorted(image_ids)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()

    # [T, R, K]
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, ALL_AREAS, LAST]
    # by id, as the evaluators take them
    names = Categories.from_coco(coco["categories"]).distinct_names
    per_class = {name: _mean(precision[:, :, k]) for k, name in enumerate(names)}
    return CocoResult(
        stats=dict(zip(STATS, map(float, evaluation.stats), strict=False)),
        per_class=per_class,
        precision=precision,
        coco=coco,
        image_ids=list(map(int, evaluation.params.imgIds)),
        rows=rows,
        max_detections=max_detections,
        beyond=_beyond(evaluation, max_detections),
    )


def _beyond(evaluation: Any, max_detections: int) -> dict[str, float | None]:
    """AP and AR with more detections than COCO counts; nothing for as many."""
    if max_detections == MAX_DETECTIONS:
        return {}
    evaluation.params.maxDets = [1, 10, max_detections]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.evaluate()
        evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, ALL_AREAS, LAST]
    recall = np.asarray(evaluation.eval["recall"])[:, :, ALL_AREAS, LAST]
    return {f"AP@{max_detections}": _mean(precision), f"AR@{max_detections}": _mean(recall)}


def _mean(values: np.ndarray) -> float | None:
    """The mean of those that are defined, above -1."""
    defined = values[values > -1]
    return float(defined.mean()) if len(defined) else None


def detections_to_rows(
    detections: Sequence[Detections], image_ids: list[int], categories: Categories
) -> np.ndarray:
    """Rows [n, 7] of some images' detections, with category ids in place of labels.

    Labels without a category, and boxes without an area, are left out.
    """
    if not detections:
        return np.zeros((0, COLUMNS))
    columns = [column.double() for column in joined(detections)]  # bf16 has no label 257
    # one copy from the device for all
    values = torch.column_stack(columns).cpu().numpy()

    category = np.array(categories.ids)[values[:, 5].astype(np.int64)]
    image = np.repeat(image_ids, [len(each["scores"]) for each in detections])
    size = values[:, 2:4] - values[:, :2]
    rows = np.column_stack((image, values[:, :2], size, values[:, 4], category))
    return rows[(category >= 0) & (size > 0).all(axis=1)]


def write_results(rows: np.ndarray, path: Path) -> None:
    """COCO's results json, with every digit: judged again, it gives the same numbers."""
    entries = []
    for image_id, *box, score, category_id in rows.tolist():
        entries.append(
            dict(zip(RESULT, (int(image_id), int(category_id), box, score), strict=True))
        )
    write_json(path, entries, indent=None)


def read_results(path: Path, coco: Entry) -> np.ndarray:
    """Rows [n, 7] of a COCO results json for the ground truth `coco`.

    An `image_id` that is a text is the name of an image's file, perhaps without its ending, as
    ultralytics writes it. The numbers that `predict` gave are those of the images.json beside the
    file, if that holds its SHA-256.

    Raises:
        DataError: the file cannot be read, or an entry of it is wrong; names both.
    """
    with reading(path, "COCO results", "give a json", missing="check its path"):
        content = read_bytes(path)
        entries = json.loads(content)
    if not isinstance(entries, list):
        raise DataError(
            f"{path} holds no list; COCO results are [{{image_id, category_id, bbox, score}}, …]."
        )

    known = {
        "image": {each["id"] for each in coco["images"]},
        "category": {each["id"] for each in coco["categories"]},
    }
    id_of = _ids_by_stem(coco)
    id_of |= _ids_of_predict(path, content, id_of)
    rows = np.zeros((len(entries), COLUMNS))
    for i, entry in enumerate(entries):
        try:
            entry["image_id"] = id_of.get(entry["image_id"], entry["image_id"])
            x, y, width, height = entry["bbox"]
            row = (entry["image_id"], x, y, width, height, entry["score"], entry["category_id"])
            # json lets NaN and Infinity pass; null and text are a TypeError here
            if not math.isfinite(sum(row)):
                raise ValueError("not finite")
            rows[i] = row
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path}: entry {i} is {entry!s:.120}; "
                "give the numbers image_id, category_id, bbox, score."
            ) from error
        for what, ids in known.items():
            number = entry[f"{what}_id"]
            if number not in ids:
                raise DataError(
                    f"{path}: entry {i} is of {what} {number}, which the ground truth lacks; "
                    f"give its ids, such as {sorted(ids)[:5]}{OR_NAMES[what]}."
                )
    if rows[:, 5].max(initial=0) > 1:
        logger.warning(
            f"{path} has scores up to {rows[:, 5].max():g}; "
            "divide percents by 100, for the calibration and thresholds."
        )
    if not entries:
        logger.warning(f"{path} has no detection, so no object is found.")
    return rows


def _ids_by_stem(coco: Entry) -> dict[object, int]:
    """The id of each image by its file's name, with and without ending; {} where two have one."""
    ids: dict[object, int] = {Path(each["file_name"]).stem: each["id"] for each in coco["images"]}
    if len(ids) < len(coco["images"]):
        return {}
    return ids | {each["file_name"]: each["id"] for each in coco["images"]}


def _ids_of_predict(path: Path, results: bytes, by_stem: dict[object, int]) -> dict[object, int]:
    """The id in the ground truth of each image, by the number that `predict` gave it.

    {} where no images.json of `predict` is beside the results, or one of another file, which is
    warned of. Raises DataError for an image without ground truth.
    """
    digest = ""
    names = {}
    with contextlib.suppress(KeyError, TypeError, ValueError, OSError):
        listed = json.loads(read_bytes(path.with_name("images.json")))
        digest = listed["info"]["results_sha256"]
        names = {each["id"]: Path(each["file_name"]).stem for each in listed["images"]}
    if not digest or not by_stem:
        return {}
    if digest != hashlib.sha256(results).hexdigest():
        logger.warning(
            f"{path} is not the file that the images.json beside it was written for; each image_id "
            "is taken for one of the ground truth."
        )
        return {}
    for number in {entry["image_id"] for entry in json.loads(results)}:
        if names[number] not in by_stem:
            raise DataError(
                f"{path}: the ground truth has no image {names[number]}, as images.json names "
                f"image {number}; predict on the images of the ground truth alone."
            )
    return {number: by_stem[name] for number, name in names.items() if name in by_stem}


class Part(NamedTuple):
    """What was evaluated of a batch, a rank, or of all ranks.

    Args:
        image_ids: of the images, each once.
        rows: their detections, [n, 7].
        losses: sums over `num_images`, by name.
        num_images: how often an image was seen.
    """

    image_ids: list[int]
    rows: np.ndarray
    losses: dict[str, Any]
    num_images: int


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
            found["scores"] = scaled(found["scores"], self.temperature)
            first.setdefault(image_id, found)
        rows = detections_to_rows(list(first.values()), list(first), self.val.categories)
        sums = {name: loss.float() * len(batch) for name, loss in losses.items()}
        return Part(list(first), rows, sums, len(image_ids))

    def compute(self, parts: list[Part]) -> tuple[CocoResult, dict[str, float]]:
        """`coco/AP` and the other eleven, NaN where undefined, and `val/loss` with its parts."""
        image_ids, rows, losses, num_images = self._gathered(parts)
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
        metrics = {}
        for name, value in result.stats.items():
            metrics[f"coco/{name}"] = math.nan if value < 0 else value
        if losses:
            means = {f"val/loss_{name}": total / num_images for name, total in losses.items()}
            metrics |= {"val/loss": sum(means.values()), **means}
        return result, metrics

    def detect(self, model: nn.Module) -> tuple[np.ndarray, list[int]]:
        """Rows [n, 7] of the detections, and the ascending ids of the images that were read."""
        found = self._gathered(self.collect(model))
        return found.rows, found.image_ids

    def _gathered(self, parts: list[Part]) -> Part:
        """All ranks' parts as one: ascending image ids, and rows by image."""
        if not self.fixed_order:
            parts = [_merged(parts)]
        plain = []
        for part in parts:
            losses = {name: float(total) for name, total in part.losses.items()}
            plain.append((part.image_ids, torch.from_numpy(part.rows), losses, part.num_images))
        ranks = []
        for image_ids, rows, losses, num_images in chain(*self.strategy.gather_objects(plain)):
            ranks.append(Part(image_ids, rows.numpy(), losses, num_images))
        if self.fixed_order:
            ranks.sort(key=itemgetter(0))  # by the images of a batch
        all_ranks = _merged(ranks)
        by_image = np.argsort(all_ranks.rows[:, 0], kind="stable")
        return all_ranks._replace(
            image_ids=sorted(all_ranks.image_ids), rows=all_ranks.rows[by_image]
        )


def _merged(parts: Sequence[Part]) -> Part:
    """One part of several. The detections of an image are those of the first part that has it; its
    losses are added each time.
    """
    seen: set[int] = set()
    kept = [np.zeros((0, COLUMNS))]
    losses: dict[str, object] = {}
    for part in parts:
        new = set(part.image_ids) - seen
        seen |= new
        kept.append(part.rows[np.isin(part.rows[:, 0], list(new))])
        for name, total in part.losses.items():
            losses[name] = losses.get(name, 0) + total
    num_images = sum(part.num_images for part in parts)
    return Part(list(seen), np.concatenate(kept), losses, num_images)


def installed_evaluators() -> list[str]:
    """Those that can be used here, the fastest first."""
    return [name for name, modules in EVALUATORS.items() if find_spec(modules[0].split(".")[0])]
