"""What a detector gets wrong: classes taken for others, kinds of errors, the threshold to use, the worst images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.detection.ap_intervals import ALL, rankings, resample
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.reporting.analysis import analysis_of, calibration_of, can_analyse, confusion_of
from retina_dist.reporting.intervals import Ranking, Resampled

# TIDE's names, Bolya et al. 2020, https://arxiv.org/abs/2008.08115.
ERRORS = {
    "Cls": "classification",
    "Loc": "localization",
    "Both": "both",
    "Dupe": "duplicate",
    "Bkg": "background",
    "Miss": "missed",
    "FP": "false_positives",
    "FN": "false_negatives",
}
THRESHOLD = ("threshold", "f1", "precision", "recall")
BOX = ("image_id", "category_id", "bbox", "area", "iscrowd")
IMAGE = ("file_name", "image_id", "hits", "false_alarms", "misses", "score")


def analyse(result: CocoResult, folder: Path | None = None) -> tuple[dict[str, Any], Resampled]:
    """The content of analysis.json (docs/evaluation.md) and the resampled metrics; both are written to `folder`, if given."""
    matched = rankings(result.coco, result.rows, result.image_ids)
    resampled = resample(result, matched)
    ranked = [by_area[ALL] for by_area in matched]
    judged = zip(result.per_class, ranked, strict=True)
    classes = {
        name: {"objects": len(each.objects), **best_threshold([each])} for name, each in judged
    }
    threshold = best_threshold(ranked)
    images = judged_images(result, ranked, threshold["threshold"])
    counted = [
        (each.scores[kept], each.right[0, kept]) for each in ranked for kept in (~each.ignored[0],)
    ]
    scores, right = (np.concatenate(column) for column in zip(*counted, strict=True))
    parts: dict[str, Any] = {"threshold": threshold, **errors_of(result, threshold["threshold"])}
    parts["calibration"] = calibration_of(scores, right)
    analysis = analysis_of("detection", resampled, classes, images, folder, **parts)
    return analysis, resampled


def best_threshold(ranked: Sequence[Ranking]) -> dict[str, float | None]:
    """The least score to take for the highest F1 of these classes together at IoU .50; None without detections or objects."""
    scores = np.concatenate([each.scores for each in ranked])
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    hits = np.concatenate([each.right[0] for each in ranked])[order].cumsum()
    counts = np.concatenate([~each.ignored[0] for each in ranked])[order].cumsum()
    objects = sum(len(each.objects) for each in ranked)
    if not len(scores) or not objects:
        return dict.fromkeys(THRESHOLD)
    is_last = np.append(scores[1:] != scores[:-1], True)  # all of equal scores or none
    f1 = np.where(is_last, 2 * hits / (counts + objects), -1)
    best = int(f1.argmax())
    values = (scores[best], f1[best], hits[best] / max(1, counts[best]), hits[best] / objects)
    return dict(zip(THRESHOLD, map(float, values), strict=True))


def judged_images(
    result: CocoResult, ranked: Sequence[Ranking], threshold: float | None
) -> list[dict[str, Any]]:
    """Each image with its hits, false alarms and misses at IoU .50 among detections from `threshold` on, the worst first.

    `score` is its most confident wrong detection's, also below the threshold.
    """
    number = len(result.image_ids)
    hits, false_alarms, objects = np.zeros((3, number), np.int64)
    highest = np.zeros(number)
    for each in ranked:
        objects += np.bincount(each.objects, minlength=number)
        taken = each.scores >= (np.inf if threshold is None else threshold)
        wrong = ~each.right[0] & ~each.ignored[0]
        hits += np.bincount(each.images[taken & each.right[0]], minlength=number)
        false_alarms += np.bincount(each.images[taken & wrong], minlength=number)
        np.maximum.at(highest, each.images[wrong], each.scores[wrong])
    misses = objects - hits
    worst = np.lexsort((-highest, hits, -(false_alarms + misses)))
    known = {image["id"]: str(image["file_name"]) for image in result.coco["images"]}
    ids = [result.image_ids[i] for i in worst.tolist()]
    counted = (values[worst].tolist() for values in (hits, false_alarms, misses, highest))
    rows = zip([known[i] for i in ids], ids, *counted, strict=True)
    return [dict(zip(IMAGE, row, strict=True)) for row in rows]


def errors_of(result: CocoResult, threshold: float | None) -> dict[str, Any]:
    """`confusion` at IoU .50 from `threshold` on, and `errors` by TIDE's definition; both None without hotcoco."""
    if not can_analyse() or not len(result.rows):
        return {"confusion": None, "errors": None}
    import hotcoco

    known = set(result.image_ids)
    entries = [entry for entry in result.coco["annotations"] if entry["image_id"] in known]
    # only what decides: hotcoco refuses a flat polygon, or a width of null
    boxes = [
        {key: entry[key] for key in BOX if key in entry} | {"id": i}
        for i, entry in enumerate(entries, start=1)
    ]
    categories = [{"id": entry["id"], "name": entry["name"]} for entry in result.coco["categories"]]
    truth = hotcoco.COCO(
        {"images": [{"id": i} for i in known], "annotations": boxes, "categories": categories}
    )
    rows = result.rows[np.isin(result.rows[:, 0], result.image_ids)]
    evaluation = hotcoco.COCOeval(truth, truth.load_res(rows), "bbox")
    evaluation.evaluate()
    tide = evaluation.tide_errors()
    types = {
        ERRORS[key]: {"count": tide["counts"].get(key), "gain": gain}
        for key, gain in tide["delta_ap"].items()
    }
    of_classes: dict[str, Any] = {"iou_thr": 0.5, "min_score": threshold}
    labels = [*result.per_class, "background"]
    confusion = confusion_of(labels, lambda: evaluation.confusion_matrix(**of_classes)["matrix"])
    return {"confusion": confusion, "errors": {"AP50": tide["ap_base"], "types": types}}
