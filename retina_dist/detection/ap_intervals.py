"""Detections matched with ground truth as COCO matches them, and the intervals of AP that follow.

Few images overestimate AP for two reasons: a right detection counts itself in its own precision,
and the precision at a recall is the highest at any larger recall, which is often noise. The
interval therefore lies around another estimate of the same AP: the precision at a right detection
is that of the *other* detections above it, which has no such bias, and a later one replaces it only
where it is higher by more than its own standard error. Where no other detection lies above, the
share of the classes whose best detection is right stands in.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pycocotools import mask
from torch.nn.functional import embedding_bag

from retina_dist.base.text import pluralize
from retina_dist.detection.coco_metrics import MAX_DETECTIONS, CocoResult
from retina_dist.reporting.intervals import Resampled, digest_of, left_out_weights

IOUS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
# all, small, medium, large; px
AREAS = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])
ALL, SMALL, MEDIUM, LARGE = range(4)
BLOCK = 1 << 23  # values of an array that are computed at once
MIN_IMAGES = 10  # with objects, for an interval
MIN_OBJECTS = 30  # for an interval, see `_too_little`
MIN_OF_CLASS = 5  # objects
MIN_ERRORS = 2  # of these objects that the detector would miss

# The metrics with an interval, by area, and which of IOUS each is the mean over.
METRICS = {
    ALL: {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)},
    SMALL: {"APs": slice(None)},
    MEDIUM: {"APm": slice(None)},
    LARGE: {"APl": slice(None)},
}

Object = dict[str, Any]


@dataclass(frozen=True)
class Ranking:
    """Predictions of one class on all images, by falling score: the image of each, and whether it
    is right.

    Args:
        scores: [n].
        images: [n], places in the list of images.
        right: [T, n], by T criteria.
        ignored: [T, n]; an ignored prediction counts neither as right nor as wrong.
        objects: the images of the objects to predict, one entry for each object.
        ious: [n], with the object that each takes at IoU .50; 0 without one.
    """

    scores: np.ndarray
    images: np.ndarray
    right: np.ndarray
    ignored: np.ndarray
    objects: np.ndarray
    ious: np.ndarray


def resample(result: CocoResult, matched: list[list[Ranking]] | None = None) -> Resampled:
    """`coco/AP`, AP50, AP75, APs, APm, APl, and `coco/AP/CLASS` of each class, for their intervals.

    A class without objects is not part of a mean.

    Args:
        result: what was evaluated.
        matched: the `rankings` of the result, if known.
    """
    matched = matched or rankings(result.coco, result.rows, result.image_ids)
    weights = left_out_weights(len(result.image_ids))
    values = {}
    samples = {}
    reasons = {}

    def add(name: str, value: float | None, estimates: np.ndarray, ranked: list[Ranking]) -> None:
        mean = _mean_of_known(estimates)
        values[f"coco/{name}"] = np.nan if value is None or value < 0 else value
        samples[f"coco/{name}"] = mean
        reasons[f"coco/{name}"] = _too_little(ranked, float(mean[0]))

    of_classes = np.zeros(0)
    for area, metrics in METRICS.items():
        ranked = [by_area[area] for by_area in matched]
        estimates = leave_out(ranked, weights)  # [K, T, 1 + G], the first with all images
        if area == ALL:
            of_classes = estimates
        for name, criteria in metrics.items():
            add(name, result.stats[name], estimates[:, criteria], ranked)
    for k, (name, value) in enumerate(result.per_class.items()):
        add(f"AP/{name}", value, of_classes[k : k + 1], [matched[k][ALL]])

    files = {image["id"]: image["file_name"] for image in result.coco["images"]}
    images = digest_of((image_id, files[image_id]) for image_id in result.image_ids)
    return Resampled(images, values, samples, reasons)


def leave_out(ranked: Sequence[Ranking], weights: np.ndarray) -> np.ndarray:
    """AP of K classes by the other detections, [K, T, 1 + G]; NaN without objects.

    `weights` [N, 1 + G] are 0 or 1. The first column is of all images, at the 101 recalls of COCO.
    In the others each object counts alike, because the step from one of 101 recalls to the next
    would hide what few images change.
    """
    estimates = []
    for ranking in ranked:
        first = _average(ranking, weights[:, :1], at_recalls=True)
        others = _average(ranking, weights[:, 1:], at_recalls=False)
        estimates.append(np.concatenate((first, others), axis=2))
    known, share, guess = np.stack(estimates, axis=1)

    detected = np.array([len(ranking.scores) > 0 for ranking in ranked])[:, None, None]
    competing = (detected & np.isfinite(known)).sum(axis=0).clip(min=1)
    best_is_right = (share > 0).sum(axis=0)
    # A class tells nothing of its own best detection: its `guess` stands in for it.
    return known + share * (best_is_right - 1 + guess) / competing


def _average(ranking: Ranking, weights: np.ndarray, at_recalls: bool) -> np.ndarray:
    """[3, T, B] of a class, for weights [N, B] of the images that are 0 or 1.

    * AP by the other detections, NaN without objects.
    * What is left out of it: the share of the objects, or of the recalls, that a right detection
      with nothing above it has.
    * The precision at the second right detection, the best guess of that at the first.
    """
    result = np.zeros((3, len(ranking.right), weights.shape[1]))
    points = (ranking.right.sum(axis=1).max(initial=0) + 1) * weights.shape[1]
    for columns in np.array_split(np.arange(weights.shape[1]), 1 + points // BLOCK):
        block = np.ascontiguousarray(weights[:, columns])
        objects, of_image = np.unique(ranking.objects, return_counts=True)
        total = of_image.astype(np.float32) @ block[objects]

        for t, (own, hits, counts) in enumerate(_counts_above(ranking, block)):
            if at_recalls:
                recalls = np.arange(1, len(own) + 1) / total
                reached = np.searchsorted(RECALLS, recalls, side="right")
                shares = np.diff(reached, prepend=0)[:, None] / len(RECALLS)
            else:
                shares = own / total.clip(min=1)

            top = slice(int((hits.min(axis=1) <= 1).sum()))  # where these may be the first two
            alone = (counts[top] == 0) & (own[top] > 0)
            second = (hits[top] == 1) & (own[top] > 0)
            guess = (second / counts[top].clip(min=1)).sum(axis=0)
            result[0, t, columns] = np.einsum("pb,pb->b", shares, _precision(hits, counts, own))
            result[1, t, columns] = (shares[top] * alone).sum(axis=0)
            result[2, t, columns] = np.where(second.any(axis=0), guess, 0.5)

        result[0][:, columns[total == 0]] = np.nan
    return result


def _precision(hits: np.ndarray, counts: np.ndarray, own: np.ndarray) -> np.ndarray:
    """[P, B], of so many right and counted detections above each right one; 0 if there are none.

    A later precision takes its place where it is higher by more than its own standard error.
    """
    some = np.maximum(counts, 1)
    precision = hits / some
    variance = 1 - precision
    variance *= precision
    variance += 1 / some
    variance /= some
    lower = precision - np.sqrt(variance, out=variance)
    lower[own == 0] = 0  # of an image that is left out
    later = np.maximum.accumulate(lower[:0:-1])[::-1]
    np.maximum(precision[:-1], later, out=precision[:-1])
    precision[counts == 0] = 0
    return precision


def _counts_above(
    ranking: Ranking, weights: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each of T criteria three arrays [P, B], of the P right detections by falling score.

    The weight of its image, and the right and the counted detections above it.
    """
    counted = ~ranking.ignored
    always = np.asarray(counted.all(axis=0))
    varying = counted.any(axis=0) & ~always
    some = np.flatnonzero(ranking.right.any(axis=0))  # where counts are needed
    counts_at_some = _running_sums(weights, ranking.images, always, some)
    for right, ignored in zip(ranking.right, ranking.ignored, strict=True):
        places = np.flatnonzero(right)
        own = weights[ranking.images[places]]
        hits = _running_sums(weights, ranking.images, right, places)
        counts = counts_at_some[np.searchsorted(some, places)]
        sometimes = varying & ~ignored
        if sometimes.any():
            counts += _running_sums(weights, ranking.images, sometimes, places)
        yield own, hits - own, counts - own


def _running_sums(
    weights: np.ndarray, images: np.ndarray, chosen: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """[P, B]: weights of the images of the `chosen` predictions, up to and with each of
    P places.
    """
    picked = np.flatnonzero(chosen)
    bounds = np.searchsorted(picked, places, side="right")
    taken = torch.from_numpy(images[picked[: bounds.max(initial=0)]])
    starts = torch.from_numpy(np.concatenate(([0], bounds[:-1]))[: len(places)])
    sums = embedding_bag(taken, torch.from_numpy(weights), starts, mode="sum").numpy()
    return sums.cumsum(axis=0)


def _mean_of_known(estimates: np.ndarray) -> np.ndarray:
    """[1 + G], the mean over the classes with objects of estimates [K, T, 1 + G]; NaN
    without one.
    """
    counts = np.isfinite(estimates).sum(axis=(0, 1))
    total = np.nansum(estimates, axis=(0, 1))
    return total / np.where(counts, counts, np.nan)


def _too_little(ranked: Sequence[Ranking], estimate: float) -> str:
    """Why there is no interval of the mean AP `estimate` of these classes; "" where there is one.

    A class with few objects weighs as much in the mean as one with many, so classes tell as much
    as if each had the harmonic mean of their objects.
    """
    counts = np.array([len(ranking.objects) for ranking in ranked if len(ranking.objects)])
    if not len(counts):
        return ""
    images = len(np.unique(np.concatenate([ranking.objects for ranking in ranked])))
    if images < MIN_IMAGES:
        return f"too few images with objects ({images} of {MIN_IMAGES})"

    each = len(counts) / (1 / counts).sum() + 1e-6
    objects = len(counts) * each
    # The bias that is left in each class does not average out over many classes; the error does.
    if each < max(MIN_OF_CLASS, len(counts) / 5) or objects < MIN_OBJECTS:
        if len(counts) == 1:
            return f"too few objects ({int(objects)} of {MIN_OBJECTS})"
        return f"too few objects of some classes (as {int(each)} of each)"
    if objects * (1 - estimate) < MIN_ERRORS:
        return "too few errors"
    return ""


def rankings(
    coco: dict[str, Any],
    rows: np.ndarray,
    image_ids: list[int],
    max_detections: int = MAX_DETECTIONS,
) -> list[list[Ranking]]:
    """The ranking of each category, by id, for each of AREAS, of detection `rows` [n, 7].

    As pycocotools takes them: those with equal scores in the order of the ids of their images;
    crowds may be matched by several detections, which then do not count.
    """
    rows = best_of_each_class(rows[np.isin(rows[:, 0], image_ids)], max_detections)
    right = np.zeros((len(AREAS), len(IOUS), len(rows)), bool)
    ignored = np.repeat(_outside(rows[:, 3] * rows[:, 4])[:, None], len(IOUS), axis=1)
    images = np.zeros(len(rows), np.int64)
    ious = np.zeros(len(rows))
    # of each object: image, category, and whether it counts for each of the areas
    objects = [np.zeros((0, 2 + len(AREAS)), np.int64)]
    area = np.arange(len(AREAS))[:, None, None]
    for i, scene in enumerate(scenes(coco, rows, image_ids)):
        skipped = scene.crowd | _outside(scene.areas)  # [A, G]
        taken = match(scene.own_ious, skipped, scene.crowd)
        ignores = np.pad(skipped, ((0, 0), (0, 1)))[area, taken]  # False for -1
        images[scene.part] = i
        at_least_half = taken[ALL, 0]
        padded = np.pad(scene.own_ious, ((0, 0), (0, 1)))  # 0 for -1
        ious[scene.part] = padded[np.arange(len(padded)), at_least_half]
        right[:, :, scene.part] = (taken >= 0) & ~ignores
        ignored[:, :, scene.part] = np.where(taken >= 0, ignores, ignored[:, :, scene.part])
        of_image = np.full(len(scene.crowd), i)
        objects.append(np.column_stack((of_image, scene.categories, ~skipped.T)))

    every = np.concatenate(objects)
    result = []
    for category in sorted(each["id"] for each in coco["categories"]):
        own = np.flatnonzero(rows[:, 6] == category)
        own = own[np.argsort(-rows[own, 5], kind="stable")]
        by_area = []
        for a in range(len(AREAS)):
            places = every[(every[:, 1] == category) & (every[:, 2 + a] > 0), 0]
            criteria = (right[a][:, own], ignored[a][:, own])
            by_area.append(Ranking(rows[own, 5], images[own], *criteria, places, ious[own]))
        result.append(by_area)
    return result


@dataclass(frozen=True)
class Scene:
    """G objects of an image, and the D detections on it, which are `part` of all rows."""

    image_id: int
    part: slice
    rows: np.ndarray
    labels: list[Object]
    categories: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray
    ious: np.ndarray  # [D, G]
    same: np.ndarray  # [D, G], whether both are of one class

    @property
    def own_ious(self) -> np.ndarray:
        """`ious` with objects of the same class, 0 with others."""
        return np.where(self.same, self.ious, 0)


def scenes(coco: dict[str, Any], rows: np.ndarray, image_ids: Sequence[int]) -> Iterator[Scene]:
    """One of each image, of detection `rows` [n, 7] by image."""
    labels = defaultdict(list)
    for entry in coco["annotations"]:
        labels[entry["image_id"]].append(entry)
    starts = np.searchsorted(rows[:, 0], image_ids, side="left")
    ends = np.searchsorted(rows[:, 0], image_ids, side="right")
    for image_id, start, end in zip(image_ids, starts, ends, strict=True):
        own = labels[image_id]
        boxes = np.zeros((len(own), 4))
        categories = np.zeros(len(own), np.int64)
        areas = np.zeros(len(own))
        crowd = np.zeros(len(own), bool)
        for g, entry in enumerate(own):
            boxes[g] = entry["bbox"]
            categories[g] = entry["category_id"]
            areas[g] = entry.get("area", 0)
            crowd[g] = bool(entry.get("iscrowd"))
        found = rows[start:end]
        ious = np.zeros((len(found), len(own)))
        if ious.size:
            ious = mask.iou(found[:, 1:5], boxes, crowd.astype(np.uint8))
        same = found[:, 6:7] == categories
        part = slice(start, end)
        yield Scene(image_id, part, found, own, categories, areas, crowd, ious, same)


def best_of_each_class(rows: np.ndarray, max_detections: int) -> np.ndarray:
    """Of rows [n, 7] the best of each class on each image; COCO counts no more than 100.

    By image and falling score; every table of an evaluation takes these.
    """
    rows = rows[np.lexsort((-rows[:, 5], rows[:, 6], rows[:, 0]))]
    _, starts, counts = np.unique(rows[:, [0, 6]], axis=0, return_index=True, return_counts=True)
    rank = np.arange(len(rows)) - np.repeat(starts, counts)
    rows = rows[rank < max_detections]
    return rows[np.lexsort((-rows[:, 5], rows[:, 0]))]


def limit_note(result: CocoResult) -> str:
    """What the limit of detections leaves out of the tables, in a sentence; "" for nothing."""
    limit = result.max_detections
    left_out = len(result.rows) - len(best_of_each_class(result.rows, limit))
    known = set(result.image_ids)
    objects: Counter[tuple[int, int]] = Counter()
    for entry in result.coco["annotations"]:
        if entry["image_id"] in known and not entry.get("iscrowd"):
            objects[entry["image_id"], entry["category_id"]] += 1
    beyond = sum(max(0, count - limit) for count in objects.values())
    if not left_out and not beyond:
        return ""
    coco = "" if limit == MAX_DETECTIONS else f" (COCO: {MAX_DETECTIONS})"
    note = f"The tables count the {limit} best detections of a class on an image{coco}"
    note += f": {pluralize(left_out, 'detection')} left out"
    if not beyond:
        return f"{note}."
    remedy = f"evaluate max_detections={max(objects.values())} counts them"
    return f"{note}, {pluralize(beyond, 'object')} that cannot be found; {remedy}."


def _outside(area: np.ndarray) -> np.ndarray:
    """[A, n]: whether each area lies outside of each range."""
    return (area < AREAS[:, :1]) | (area > AREAS[:, 1:])


def match(ious: np.ndarray, skipped: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """The object that each of D detections takes, best first, [A, T, D]; -1 for none.

    A detection takes the object of highest IoU that no better one took, preferring those that
    count; of equal ones the last. A crowd is taken by any number.

    Args:
        ious: [D, G].
        skipped: [A, G], which objects do not count for an area.
        crowd: [G].
    """
    thresholds = np.minimum(IOUS, 1 - 1e-10)[:, None]
    taken = np.full((len(skipped), len(IOUS), len(ious)), -1)
    free = np.ones((len(skipped), len(IOUS), ious.shape[1]), bool)
    preference = np.where(skipped, 0.0, 2.0)[:, None]
    area = np.arange(len(skipped))[:, None]
    threshold = np.arange(len(IOUS))
    for d in np.flatnonzero((ious >= thresholds[0]).any(axis=1)):
        fits = free & (ious[d] >= thresholds)
        preferred = (fits * (ious[d] + preference))[:, :, ::-1].argmax(axis=2)
        best = ious.shape[1] - 1 - preferred  # [A, T]
        found = fits.any(axis=2)
        taken[:, :, d] = np.where(found, best, -1)
        free[area, threshold, best] &= ~found | crowd[best]
    return taken
