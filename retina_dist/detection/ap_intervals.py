"""Detections matched with ground truth as COCO matches them, and the error bars of AP that follow from it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from pycocotools import mask

from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.reporting.intervals import (
    Ranking,
    Resampled,
    average_precision,
    digest_of,
    resampled_weights,
)

IOUS = np.linspace(0.5, 0.95, 10)
AREAS = np.array(
    [[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]]
)  # all, small, medium, large; px
ALL, SMALL, MEDIUM, LARGE = range(4)
MOST = 100  # detections of a class on an image

Object = dict[str, Any]


def resample(result: CocoResult, matched: list[list[Ranking]] | None = None) -> Resampled:
    """`coco/AP`, AP50, AP75, APs, APm and APl, and `coco/AP/CLASS` of each class, in resamples of the images.

    A class without objects in a resample is not part of its means. `matched` are the `rankings` of the result, if known.
    """
    weights = resampled_weights(len(result.image_ids))
    matched = matched or rankings(result.coco, result.rows, result.image_ids)
    own: list[np.ndarray] = []  # AP [B] of each class
    sums, counts = np.zeros(()), np.zeros(())  # over the classes, [A, T, B]
    for by_area in matched:
        one = np.array([average_precision(each, weights) for each in by_area])
        known = np.isfinite(one)
        sums, counts = sums + np.where(known, one, 0), counts + known
        own.append(one[ALL].mean(axis=0))
    with np.errstate(invalid="ignore"):
        means = sums / counts
    named = {"AP": means[ALL].mean(axis=0), "AP50": means[ALL, 0], "AP75": means[ALL, 5]}
    named |= {
        name: means[a].mean(axis=0) for name, a in (("APs", SMALL), ("APm", MEDIUM), ("APl", LARGE))
    }
    values = {name: value if (value := result.stats[name]) >= 0 else np.nan for name in named}
    for name, ap, of_class in zip(result.per_class, result.per_class.values(), own, strict=True):
        named[f"AP/{name}"], values[f"AP/{name}"] = of_class, np.nan if ap is None else ap
    names = {image["id"]: image["file_name"] for image in result.coco["images"]}
    return Resampled(
        digest_of((image_id, names[image_id]) for image_id in result.image_ids),
        {f"coco/{name}": value for name, value in values.items()},
        {f"coco/{name}": value for name, value in named.items()},
    )


def rankings(coco: dict[str, Any], rows: np.ndarray, image_ids: list[int]) -> list[list[Ranking]]:
    """The ranking of each category, in the order of ids, for each of AREAS, of detection `rows` [n, 7] on the images.

    As pycocotools takes them: at most 100 detections of a class on an image, those with equal scores in the order of
    the ids of their images; crowds may be matched by several detections, which then do not count.
    """
    place = {image_id: i for i, image_id in enumerate(image_ids)}
    truth: dict[int, dict[int, list[Object]]] = defaultdict(lambda: defaultdict(list))
    for entry in coco["annotations"]:
        if entry["image_id"] in place:
            truth[entry["category_id"]][place[entry["image_id"]]].append(entry)
    rows = rows[np.isin(rows[:, 0], image_ids)]
    images = np.array([place[i] for i in rows[:, 0].astype(np.int64).tolist()], np.int64)
    result = []
    for category in sorted(each["id"] for each in coco["categories"]):
        own = np.flatnonzero(rows[:, 6] == category)
        own = own[np.lexsort((-rows[own, 5], images[own]))]  # by image, then by falling score
        _, starts, counts = np.unique(images[own], return_index=True, return_counts=True)
        own = own[np.arange(len(own)) - np.repeat(starts, counts) < MOST]
        result.append(_rank_class(rows[own], images[own], truth[category], len(image_ids)))
    return result


def _rank_class(
    rows: np.ndarray, images: np.ndarray, truth: dict[int, list[Object]], num_images: int
) -> list[Ranking]:
    """For each area, of a class's rows by image, `images` [n] being their images, and its objects by image."""
    outside = _outside(rows[:, 3] * rows[:, 4])
    right = np.zeros((len(AREAS), len(IOUS), len(rows)), bool)
    ignored = np.repeat(outside[:, None], len(IOUS), axis=1)
    objects: list[list[int]] = [[] for _ in AREAS]
    bounds = np.searchsorted(images, np.arange(num_images + 1))
    for image, entries in truth.items():
        crowd = np.array([bool(entry.get("iscrowd")) for entry in entries])
        skipped = crowd | _outside(np.array([entry["area"] for entry in entries], float))  # [A, G]
        for a, count in enumerate((~skipped).sum(axis=1).tolist()):
            objects[a] += [image] * count
        part = slice(bounds[image], bounds[image + 1])
        if part.start < part.stop:
            boxes = np.array([entry["bbox"] for entry in entries], float)
            matched, ignores = _match(
                mask.iou(rows[part, 1:5], boxes, crowd.astype(np.uint8)), skipped, crowd
            )
            right[:, :, part] = matched & ~ignores
            ignored[:, :, part] = np.where(matched, ignores, ignored[:, :, part])
    order = np.argsort(-rows[:, 5], kind="stable")
    return [
        Ranking(
            rows[order, 5],
            images[order],
            right[a][:, order],
            ignored[a][:, order],
            np.array(objects[a], np.int64),
        )
        for a in range(len(AREAS))
    ]


def _outside(area: np.ndarray) -> np.ndarray:
    """[A, n]: whether each area lies outside of each range."""
    return (area < AREAS[:, :1]) | (area > AREAS[:, 1:])


def _match(
    ious: np.ndarray, skipped: np.ndarray, crowd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each of D detections, best first, is matched, and whether to an object that does not count; both [A, T, D].

    `ious` is [D, G]; `skipped` [A, G] says which objects do not count for an area. A detection takes the object of highest
    IoU that no better one took, preferring those that count; of equal ones the last.
    """
    thresholds = np.minimum(IOUS, 1 - 1e-10)[:, None]
    matched = np.zeros((len(skipped), len(IOUS), len(ious)), bool)
    ignores = matched.copy()
    free = np.ones((len(skipped), len(IOUS), ious.shape[1]), bool)
    preference = np.where(skipped, 0.0, 2.0)[:, None]
    area, threshold = np.arange(len(skipped))[:, None], np.arange(len(IOUS))
    for d in np.flatnonzero((ious >= thresholds[0]).any(axis=1)):
        fits = free & (ious[d] >= thresholds)
        best = (
            ious.shape[1] - 1 - (fits * (ious[d] + preference))[:, :, ::-1].argmax(axis=2)
        )  # [A, T]
        matched[:, :, d] = fits.any(axis=2)
        ignores[:, :, d] = matched[:, :, d] & skipped[area, best]
        free[area, threshold, best] &= ~matched[:, :, d] | crowd[best]
    return matched, ignores
