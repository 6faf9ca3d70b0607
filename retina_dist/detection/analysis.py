"""What a detector gets wrong: classes, kinds of errors, the threshold to use, the worst images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from retina_dist.detection.ap_intervals import (
    ALL,
    Ranking,
    best_of_each_class,
    limit_note,
    match,
    rankings,
    resample,
    scenes,
)
from retina_dist.detection.coco_metrics import MAX_DETECTIONS, CocoResult
from retina_dist.detection.readers.categories import Entry
from retina_dist.reporting.analysis import analysis_of, can_analyse, confusion_of
from retina_dist.reporting.calibration import binary_logits, calibration_of
from retina_dist.reporting.intervals import Resampled

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


def analyse(
    result: CocoResult, folder: Path | None = None, times: Mapping[str, float] = {}
) -> tuple[Entry, Resampled]:
    """The content of analysis.json (docs/evaluation.md) and the metrics with images left out.

    Every part counts `max_detections` of each class on an image, as AP counts 100 of them,
    without those that a crowd of their class covers. Both are written to `folder`, if given.
    `times` are the seconds `s` and `cpu_s` that the images took.

    The calibration error is the D-ECE of the score alone, whose hits are those of AP50: Küppers et
    al., Multivariate Confidence Calibration for Object Detection, 2020,
    https://arxiv.org/abs/2004.13546.
    """
    matched = rankings(result.coco, result.rows, result.image_ids)
    resampled = resample(result, matched)
    if result.max_detections != MAX_DETECTIONS:
        matched = rankings(result.coco, result.rows, result.image_ids, result.max_detections)
    ranked = [by_area[ALL] for by_area in matched]
    threshold = best_threshold(ranked)
    classes = {}
    for name, ranking in zip(result.per_class, ranked, strict=True):
        iou = hits_of([ranking])["iou"]
        classes[name] = {"objects": len(ranking.objects), "iou": iou, **best_threshold([ranking])}

    confusion = None
    if len(result.rows):
        confusion = confusion_of(
            [*result.per_class, "background"],
            lambda: confusion_matrix(result, threshold["threshold"]),
        )
    scores, right, counted, _ = _pooled(ranked)
    scores = scores[counted]
    analysis = analysis_of(
        "detection",
        resampled,
        classes,
        images_of(result, ranked, threshold["threshold"]),
        folder,
        times,
        limit=limit_note(result),
        threshold=threshold,
        confusion=confusion,
        errors=errors_of(result),
        hits=hits_of(ranked),
        calibration=calibration_of(
            scores, np.ones(len(scores), int), right[counted].astype(int), binary_logits(scores)
        ),
    )
    return analysis, resampled


def best_threshold(ranked: Sequence[Ranking]) -> dict[str, float | None]:
    """The least score to take for the highest F1 of these classes together at IoU .50.

    None without detections or objects.
    """
    scores, right, counted, _ = _pooled(ranked)
    hits = right.cumsum()
    counts = counted.cumsum()
    objects = sum(len(each.objects) for each in ranked)
    if not len(scores) or not objects:
        return dict.fromkeys(THRESHOLD)
    is_last = np.append(scores[1:] != scores[:-1], True)  # all of equal scores or none
    f1 = np.where(is_last, 2 * hits / (counts + objects), -1)
    best = int(f1.argmax())
    values = (scores[best], f1[best], hits[best] / max(1, counts[best]), hits[best] / objects)
    return dict(zip(THRESHOLD, map(float, values), strict=True))


def hits_of(ranked: Sequence[Ranking]) -> dict[str, float | None]:
    """Mean IoU of the hits at IoU .50, and Pearson's correlation of their scores with it.

    As Jiang et al., Acquisition of Localization Confidence for Accurate Object Detection, 2018,
    https://arxiv.org/abs/1807.11590, measure it. None where undefined.
    """
    scores = np.concatenate([each.scores[each.right[0]] for each in ranked])
    ious = np.concatenate([each.ious[each.right[0]] for each in ranked])
    found: dict[str, float | None] = {"iou": None, "correlation": None}
    if len(ious):
        found["iou"] = float(ious.mean())
    if min(len(np.unique(scores)), len(np.unique(ious))) > 1:
        found["correlation"] = float(np.corrcoef(scores, ious)[0, 1])
    return found


def _pooled(ranked: Sequence[Ranking]) -> list[np.ndarray]:
    """Of all classes by falling score: scores, whether right at IoU .50, whether counted there, and
    images.
    """
    columns = zip(
        *((each.scores, each.right[0], ~each.ignored[0], each.images) for each in ranked),
        strict=True,
    )
    scores, *others = map(np.concatenate, columns)
    order = np.argsort(-scores, kind="stable")
    return [scores[order], *(column[order] for column in others)]


def images_of(
    result: CocoResult, ranked: Sequence[Ranking], threshold: float | None
) -> list[Entry]:
    """Each image with its hits, false alarms and misses at IoU .50, the worst first.

    Of the detections from `threshold` on; `score` is that of its most confident wrong detection,
    also below the threshold.
    """
    number = len(result.image_ids)
    least = np.inf if threshold is None else threshold
    scores, right, counted, images = _pooled(ranked)
    wrong = counted & ~right
    taken = scores >= least
    hits = np.bincount(images[taken & right], minlength=number)
    false_alarms = np.bincount(images[taken & wrong], minlength=number)
    highest = np.zeros(number)
    np.maximum.at(highest, images[wrong], scores[wrong])
    objects = np.concatenate([each.objects for each in ranked])
    misses = np.bincount(objects, minlength=number) - hits
    names = {image["id"]: str(image["file_name"]) for image in result.coco["images"]}
    order = np.lexsort((-highest, hits, -(false_alarms + misses)))
    rows = []
    for i in order.tolist():
        image_id = result.image_ids[i]
        rows.append(
            {
                "file_name": names[image_id],
                "image_id": image_id,
                "hits": int(hits[i]),
                "false_alarms": int(false_alarms[i]),
                "misses": int(misses[i]),
                "score": float(highest[i]),
            }
        )
    return rows


def confusion_matrix(result: CocoResult, threshold: float | None) -> np.ndarray:
    """int64 [K + 1, K + 1], true classes by predicted ones at IoU .50, the last is background.

    Detections take objects of their own class first, as for AP; so the diagonal holds AP's hits.
    What is left then takes objects of other classes, and the rest is background.
    """
    order = sorted(each["id"] for each in result.coco["categories"])
    background = len(order)
    counts = np.zeros((background + 1, background + 1), np.int64)
    rows = counted_rows(result)
    rows = rows[rows[:, 5] >= (np.inf if threshold is None else threshold)]
    for scene in scenes(result.coco, rows, result.image_ids):
        predicted = np.searchsorted(order, scene.rows[:, 6])
        true = np.searchsorted(order, scene.categories)
        own = match(scene.own_ious, scene.crowd[None], scene.crowd)[0, 0]
        missed = ~scene.crowd
        missed[own[own >= 0]] = False

        left = ~scene.same & missed & (own < 0)[:, None]
        nothing = np.zeros(len(true), bool)
        other = match(np.where(left, scene.ious, 0), nothing[None], nothing)[0, 0]
        missed[other[other >= 0]] = False

        taken = np.append(true, background)[np.maximum(own, other)]
        counted = ~np.append(scene.crowd, False)[own]
        np.add.at(counts, (taken[counted], predicted[counted]), 1)
        np.add.at(counts, (true[missed], background), 1)
    return counts


def counted_rows(result: CocoResult) -> np.ndarray:
    """The detections that the tables count, on images that were judged."""
    rows = result.rows[np.isin(result.rows[:, 0], result.image_ids)]
    return best_of_each_class(rows, result.max_detections)


def errors_of(result: CocoResult) -> Entry | None:
    """`errors` by TIDE's definition; None without hotcoco, without detections or objects."""
    if not can_analyse() or not len(result.rows) or result.stats["AP50"] < 0:
        return None
    import hotcoco

    known = set(result.image_ids)
    content = {"images": [{"id": i} for i in known], "annotations": []}
    # only what decides: hotcoco refuses a flat polygon, or a width of null
    content["categories"] = [{"id": x["id"], "name": x["name"]} for x in result.coco["categories"]]
    for number, entry in enumerate(result.coco["annotations"], start=1):
        if entry["image_id"] in known:
            kept = {key: entry[key] for key in BOX if key in entry}
            content["annotations"].append(kept | {"id": number})
    truth = hotcoco.COCO(content)
    evaluation = hotcoco.COCOeval(truth, truth.load_res(counted_rows(result)), "bbox")
    evaluation.params.max_dets = [1, 10, result.max_detections]
    evaluation.evaluate()

    tide = evaluation.tide_errors()
    types = {}
    for key, gain in tide["delta_ap"].items():
        types[ERRORS[key]] = {"count": tide["counts"].get(key), "gain": gain}
    return {"AP50": tide["ap_base"], "types": types}
