"""What a detector gets wrong: classes taken for others, kinds of errors, the threshold to use, the worst images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.resampling import ALL, rankings, resample
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


def analyse(result: CocoResult, folder: Path | None = None) -> tuple[dict[str, Any], Resampled]:
    """The content of analysis.json (docs/evaluation.md) and the resampled metrics; both are written to `folder`, if given."""
    matched = rankings(result.coco, result.rows, result.image_ids)
    resampled = resample(result, matched)
    ranked = [by_area[ALL] for by_area in matched]
    classes = {
        name: {"objects": len(each.objects), **best_threshold([each])}
        for name, each in zip(result.per_class, ranked, strict=True)
    }
    threshold = best_threshold(ranked)
    images = judged_images(result, ranked, threshold["threshold"])
    counted = [(each.scores[kept], each.right[0, kept]) for each in ranked for kept in (~each.ignored[0],)]
    scores, right = (np.concatenate(column) for column in zip(*counted, strict=True))
    analysis = analysis_of(
        "detection",
        resampled,
        classes,
        images,
        folder,
        threshold=threshold,
        **errors_of(result, threshold["threshold"]),
        calibration=calibration_of(scores, right),
    )
    return analysis, resampled


def best_threshold(ranked: Sequence[Ranking]) -> dict[str, float | None]:
    """The least score to take for the highest F1 of these classes together at IoU .50; None without detections or objects."""
    scores = np.concatenate([each.scores for each in ranked])
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    right, ignored = (
        np.concatenate([getattr(each, name)[0] for each in ranked])[order] for name in ("right", "ignored")
    )
    objects = sum(len(each.objects) for each in ranked)
    if not len(scores) or not objects:
        return dict.fromkeys(("threshold", "f1", "precision", "recall"))
    hits, counts = right.cumsum(), (~ignored).cumsum()
    f1 = np.where(
        np.append(scores[1:] != scores[:-1], True), 2 * hits / (counts + objects), -1
    )  # all of equal scores or none
    best = int(f1.argmax())
    precision, recall = hits[best] / max(1, counts[best]), hits[best] / objects
    return {
        "threshold": float(scores[best]),
        "f1": float(f1[best]),
        "precision": float(precision),
        "recall": float(recall),
    }


def judged_images(result: CocoResult, ranked: Sequence[Ranking], threshold: float | None) -> list[dict[str, Any]]:
    """Each image with its hits, false alarms and misses at IoU .50 among detections from `threshold` on, the worst first.

    `score` is that of its most confident false alarm.
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
    names = {image["id"]: str(image["file_name"]) for image in result.coco["images"]}
    worst = np.lexsort((-highest, hits, -(false_alarms + misses)))
    return [
        {
            "file_name": names[result.image_ids[i]],
            "image_id": result.image_ids[i],
            "hits": int(hits[i]),
            "false_alarms": int(false_alarms[i]),
            "misses": int(misses[i]),
            "score": float(highest[i]),
        }
        for i in worst.tolist()
    ]


def errors_of(result: CocoResult, threshold: float | None) -> dict[str, Any]:
    """`confusion` at IoU .50 from `threshold` on, and `errors` by TIDE's definition; both None without hotcoco."""
    if not can_analyse() or not len(result.rows):
        return {"confusion": None, "errors": None}
    import hotcoco

    known = set(result.image_ids)
    images = [image for image in result.coco["images"] if image["id"] in known]
    boxes = [e | {"id": i} for i, e in enumerate(result.coco["annotations"], start=1) if e["image_id"] in known]
    truth = hotcoco.COCO({"images": images, "annotations": boxes, "categories": result.coco["categories"]})
    evaluation = hotcoco.COCOeval(
        truth, truth.load_res(result.rows[np.isin(result.rows[:, 0], result.image_ids)]), "bbox"
    )
    evaluation.evaluate()
    labels = [*result.per_class, "background"]
    tide = evaluation.tide_errors()
    types = {ERRORS[key]: {"count": tide["counts"].get(key), "gain": gain} for key, gain in tide["delta_ap"].items()}
    return {
        "confusion": confusion_of(
            labels, lambda: evaluation.confusion_matrix(iou_thr=0.5, min_score=threshold)["matrix"]
        ),
        "errors": {"AP50": tide["ap_base"], "types": types},
    }
