"""What can be wrong with a data set, as pure functions.

Layer 1. `retina_dist.doctor` puts them together.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from retina_dist.data.buckets import make_buckets
from retina_dist.data.coco import Annotations, ImageRecord
from retina_dist.data.images import image_size, read_image
from retina_dist.data.transforms import resized_size
from retina_dist.errors import ImageError

Level = Literal["error", "warning", "info"]
SMALL, MEDIUM = 32**2, 96**2  # COCO's limits of area in px^2
SIZE_LIMITS = (8, 16, 32, 64, 128, 256, 512)  # px, square root of the area, after the resize
ASPECT_LIMITS = (1 / 3, 1 / 2, 2 / 3, 3 / 2, 2, 3)  # height / width
NUM_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """One kind of trouble in one split: how often, a few examples, and what to do."""

    level: Level
    split: str
    what: str
    count: int
    examples: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class ImageCheck:
    """What reading one file showed."""

    record: ImageRecord
    problem: str | None = None  # "missing", "unreadable" or "of another size"
    detail: str = ""
    size: tuple[int, int] | None = None  # (width, height) as displayed
    digest: str | None = None  # SHA-256 of the file


def check_images(records: Sequence[ImageRecord], max_pixels: int, num_threads: int) -> Iterable[ImageCheck]:
    """Read and decode every file, in the records' order."""
    with ThreadPoolExecutor(num_threads) as pool:
        yield from pool.map(lambda record: check_image(record, max_pixels), records)


def check_image(record: ImageRecord, max_pixels: int) -> ImageCheck:
    """Whether a file is there, can be decoded, and has the size that its annotation says."""
    if not record.path.is_file():
        return ImageCheck(record, "missing", str(record.path))
    try:
        digest = hashlib.sha256(record.path.read_bytes()).hexdigest()
        read_image(record.path, max_pixels=max_pixels)
        size = image_size(record.path)
    except (ImageError, OSError) as error:
        return ImageCheck(record, "unreadable", str(error))
    if record.width and record.height:
        try:
            read_image(record.path, (record.width, record.height), max_pixels)
        except ImageError:
            detail = f"{record.file_name} is {size[0]} x {size[1]}, annotated {record.width} x {record.height}"
            return ImageCheck(record, "of another size", detail, size, digest)
    return ImageCheck(record, None, "", size, digest)


def image_findings(checks: Sequence[ImageCheck], split: str) -> list[Finding]:
    """Missing, broken and mismatching files, and files that occur twice."""
    remedies = {
        "missing": "restore them, or leave them out with data.missing_images=skip",
        "unreadable": "restore them, or leave them out with data.bad_images=skip",
        "of another size": "annotate the files that are there; boxes of another version are wrong",
    }
    findings = []
    for problem, remedy in remedies.items():
        found = [check.detail for check in checks if check.problem == problem]
        findings += _finding("error", split, f"images {problem}", found, remedy)
    by_digest = defaultdict(list)
    for check in checks:
        if check.digest:
            by_digest[check.digest].append(check.record.file_name)
    twins = [" = ".join(names) for names in by_digest.values() if len(names) > 1]
    findings += _finding(
        "warning", split, "files with the same bytes", twins, "keep one of each, if they are the same image"
    )
    return findings


def leak_findings(train: Sequence[ImageCheck], val: Sequence[ImageCheck]) -> list[Finding]:
    """Validation images whose very bytes are trained on."""
    seen = {check.digest: check.record.file_name for check in train if check.digest}
    leaks = [f"{c.record.file_name} = {seen[c.digest]} of train" for c in val if c.digest and c.digest in seen]
    remedy = "take them out of one split: the metric would praise memory"
    return _finding("error", "val", "images that are in train too", leaks, remedy)


def box_findings(data: Annotations, split: str) -> list[Finding]:
    """Boxes that training leaves out or changes, crowds, and images without boxes."""
    findings: list[Finding] = []
    degenerate = [
        f"annotation {entry['id']}: {entry['bbox']}"
        for entry in data.coco["annotations"]
        if not entry["iscrowd"] and not min(entry["bbox"][2:]) > 0
    ]
    for why, count in data.dropped.items():
        examples = tuple(degenerate[:NUM_EXAMPLES]) if why == "zero or negative size" else ()
        remedy = "not trained on; in the metric they can never be found: mend them"
        findings.append(
            Finding("warning", split, f"boxes of {why}" if "size" in why else f"boxes {why}", count, examples, remedy)
        )
    if data.clipped:
        findings.append(
            Finding("info", split, "boxes that reach out of their image", data.clipped, (), "clipped in training")
        )
    if data.num_crowd:
        findings.append(
            Finding("info", split, "crowd regions", data.num_crowd, (), "not trained on, ignored by the metric")
        )
    empty = [r.file_name for r, boxes in zip(data.records, data.boxes, strict=True) if not len(boxes)]
    return findings + _finding("info", split, "images without boxes", empty, "trained on as background")


def category_findings(train: Annotations, val: Annotations | None) -> list[Finding]:
    """Categories without boxes, and gaps in the ids."""
    names = [name for name in train.categories.names if name]
    ids = [i for i in train.categories.ids if i >= 0]
    findings = []
    for split, data in (("train", train), ("val", val)):
        if data is None:
            continue
        present = {int(label) for labels in data.labels for label in labels}
        absent = [
            data.categories.name_of(i) for i, name in enumerate(data.categories.names) if name and i not in present
        ]
        level: Level = "warning" if split == "train" else "info"
        remedy = "it cannot be learnt" if split == "train" else "its AP is undefined"
        findings += _finding(level, split, "categories without a box", absent, remedy)
    gaps = max(ids) - min(ids) + 1 - len(ids)
    if gaps:
        what = f"{gaps} unused ids between {min(ids)} and {max(ids)} for {len(names)} categories"
        findings.append(
            Finding("info", "train", what, gaps, (), "labels are contiguous; the mapping is in every checkpoint")
        )
    return findings


def objects_table(data: Annotations) -> dict[str, dict[str, int]]:
    """Boxes to train on for each class, by COCO's sizes (area of the box in stored pixels)."""
    table = {name: dict.fromkeys(("small", "medium", "large", "all"), 0) for name in data.categories.names if name}
    for boxes, labels in zip(data.boxes, data.labels, strict=True):
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        for area, label in zip(areas.tolist(), labels.tolist(), strict=True):
            row = table[data.categories.name_of(label)]
            row["small" if area < SMALL else "medium" if area < MEDIUM else "large"] += 1
            row["all"] += 1
    return table


@dataclass(frozen=True)
class Coverage:
    """Best overlap of each training box with any anchor, at the scale that training sees."""

    best_iou: np.ndarray  # [n]
    size: np.ndarray  # [n] square root of the box's area in px, after the resize
    aspect: np.ndarray  # [n] height / width

    def rows(self, by: Literal["size", "aspect"]) -> list[dict[str, Any]]:
        """For each bucket: its bounds, boxes, the share without an anchor at IoU 0.5, the median of the best IoU."""
        limits = SIZE_LIMITS if by == "size" else ASPECT_LIMITS
        bucket = np.searchsorted(limits, getattr(self, by), side="right")
        rows = []
        for i in range(len(limits) + 1):
            best = self.best_iou[bucket == i]
            if len(best):
                low, high = (limits[i - 1] if i else 0.0), (limits[i] if i < len(limits) else None)
                share, median = float((best < 0.5).mean()), float(np.median(best))
                rows.append({"from": low, "to": high, "boxes": len(best), "unreached": share, "median_iou": median})
        return rows


def anchor_coverage(
    data: Annotations, cell_anchors: Sequence[np.ndarray], *, min_size: int, max_size: int, num_buckets: int
) -> Coverage:
    """Which boxes an anchor reaches, on the canvas of each image's bucket.

    `cell_anchors` are the anchors [a, 4] of each pyramid level, P3 to P7, around the origin. Exact without trying every
    anchor: of one shape, the one whose centre is nearest overlaps most, because the overlap only falls with the distance
    along either axis.
    """
    keep = [i for i, record in enumerate(data.records) if record.width and record.height and len(data.boxes[i])]
    if not keep:
        return Coverage(*(np.zeros(0) for _ in range(3)))
    stored = np.array([(data.records[i].height, data.records[i].width) for i in keep])
    buckets = make_buckets(stored, min_sizes=(min_size,), max_size=max_size, num_buckets=num_buckets)
    parts = []
    for row, i in enumerate(keep):
        height, width = resized_size(int(stored[row, 0]), int(stored[row, 1]), min_size, max_size)
        scale = np.array([width, height, width, height]) / stored[row][[1, 0, 1, 0]]
        parts.append((data.boxes[i] * scale, np.tile(buckets.canvas([row], min_size), (len(data.boxes[i]), 1))))
    boxes, canvases = (np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True))
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    best = np.zeros(len(boxes))
    grid = canvases / 4
    for anchors in cell_anchors:
        # P3 is an eighth of the canvas; each further level half of the one before, rounded up.
        grid = np.ceil(grid / 2)
        stride = canvases // grid  # [n, 2] (y, x), as torchvision places anchors
        center = (boxes[:, [1, 0]] + boxes[:, [3, 2]]) / 2
        nearest = np.clip(np.round(center / stride), 0, grid - 1) * stride
        best = np.maximum(best, _best_iou(boxes, wide * high, nearest[:, [1, 0]], anchors))
    return Coverage(best, np.sqrt(wide * high), high / wide)


def _best_iou(boxes: np.ndarray, areas: np.ndarray, centers: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Best overlap [n] of boxes [n, 4] with anchors [a, 4] moved to centers [n, 2] (x, y)."""
    best = np.zeros(len(boxes))
    for anchor in anchors:
        moved = anchor + np.tile(centers, 2)
        side = np.minimum(boxes[:, 2:], moved[:, 2:]) - np.maximum(boxes[:, :2], moved[:, :2])
        common = side.clip(0).prod(axis=1)
        area = (anchor[2] - anchor[0]) * (anchor[3] - anchor[1])
        best = np.maximum(best, common / (areas + area - common))
    return best


def _finding(level: Level, split: str, what: str, found: Sequence[str], remedy: str) -> list[Finding]:
    return [Finding(level, split, what, len(found), tuple(found[:NUM_EXAMPLES]), remedy)] if found else []
