"""What can be wrong with a data set, as pure functions: its files, boxes and categories."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import UnidentifiedImageError

from retina_dist.data.images import SWAPPING, image_size, orientation_of, read_image
from retina_dist.data.sources import read, sha256_of
from retina_dist.detection.readers.coco import Annotations, box_faults, clean
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.errors import ImageError
from retina_dist.reporting.findings import Finding, Level
from retina_dist.text import pluralize

SMALL, MEDIUM = 32**2, 96**2  # COCO's limits of area in px^2
RARE = 10  # images; LVIS (Gupta et al. 2019) calls a class in at most so many rare
SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class ImageCheck:
    """What reading one file showed."""

    record: ImageRecord
    problem: Literal["missing", "unreadable", "of another size"] | None = None
    detail: str = ""
    size: tuple[int, int] | None = None  # (width, height) as displayed
    orientation: int = 1  # EXIF, 1 to 8
    digest: str | None = None  # SHA-256 of the file


def check_images(records: Sequence[ImageRecord], *, decode: bool, max_pixels: int) -> Iterator[ImageCheck]:
    """`check_image` of each record, in their order, in threads: decoders release the interpreter's lock."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        yield from pool.map(partial(check_image, decode=decode, max_pixels=max_pixels), records)
    finally:
        pool.shutdown(cancel_futures=True)


def check_image(record: ImageRecord, *, decode: bool, max_pixels: int) -> ImageCheck:
    """Whether a file is there, can be opened (with `decode`, read to its end), and has the size that is annotated."""
    content = None
    try:
        if isinstance(record.path, Path):
            if not record.path.is_file():
                return ImageCheck(record, "missing", str(record.path))
            digest = sha256_of(record.path)
        else:
            content = read(record.path)
            digest = hashlib.sha256(content).hexdigest()
        size = image_size(record.path, max_pixels, content)
        if decode:
            read_image(record.path, max_pixels=max_pixels, content=content)
    except (ImageError, OSError) as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ImageCheck(record, "missing", str(record.path))
        cause = error.__cause__ or error  # the decoder's own words; our sentence has a remedy for trainings
        reason = "not an image" if isinstance(cause, UnidentifiedImageError) else str(cause)
        return ImageCheck(record, "unreadable", f"{record.file_name}: {reason}")
    orientation = orientation_of(io.BytesIO(content) if content is not None else Path(str(record.path)))
    stored = size[::-1] if orientation in SWAPPING else size
    annotated = (record.width, record.height)
    if all(annotated) and annotated not in (size, stored):
        detail = f"{record.file_name} is {size[0]} x {size[1]}, annotated {annotated[0]} x {annotated[1]}"
        return ImageCheck(record, "of another size", detail, size, orientation, digest)
    return ImageCheck(record, None, "", size, orientation, digest)


def image_findings(checks: Sequence[ImageCheck], split: str, tolerated: Collection[str] = ()) -> list[Finding]:
    """Missing, broken, mismatching and turned files, and files that occur twice.

    A problem in `tolerated` is one that the settings leave out of training: a warning, not an error.
    """
    remedies = {
        "missing": f"restore them, name their folder with data.{split}_images, or continue without: data.missing_images=skip",
        "unreadable": "restore them, or continue without: data.bad_images=skip",
        "of another size": "their boxes belong to another version: find it, annotate again, or data.bad_images=skip",
    }
    findings = []
    for problem, remedy in remedies.items():
        details = [check.detail for check in checks if check.problem == problem]
        if problem in tolerated:
            findings += _finding("warning", split, f"images {problem}", details, "left out of training, as you set")
        else:
            findings += _finding("error", split, f"images {problem}", details, remedy)
    if checks and all(check.problem in tolerated for check in checks):
        findings += [Finding("error", split, "images, and none can be used", "restore some", len(checks))]

    by_digest = defaultdict(list)
    for check in checks:
        if check.digest:
            by_digest[check.digest].append(check.record.file_name)
    twins = [" = ".join(names) for names in by_digest.values() if len(names) > 1]
    remedy = "they count more than the others: keep one of each"
    findings += _finding("warning", split, "images that occur more than once", twins, remedy)

    turned: list[str] = []
    as_stored: list[str] = []
    for check in checks:
        if check.size and check.orientation != 1 and check.problem is None:
            is_shown = (check.record.width or check.size[0], check.record.height or check.size[1]) == check.size
            (turned if is_shown else as_stored).append(f"{check.record.file_name}: orientation {check.orientation}")
    remedy = "trained on upright, as viewers show them; their boxes must have been drawn that way"
    findings += _finding("info", split, "images turned by their EXIF tag", turned, remedy)
    remedy = "trained on as stored, because the annotated size is that of the stored pixels"
    return findings + _finding("info", split, "images whose EXIF tag is not followed", as_stored, remedy)


def leak_findings(train: Sequence[ImageCheck], val: Sequence[ImageCheck]) -> list[Finding]:
    """Validation images whose very bytes are trained on."""
    seen = {check.digest: check.record.file_name for check in reversed(train) if check.digest}
    leaks = [f"{c.record.file_name} = {seen[c.digest]} of train" for c in val if c.digest and c.digest in seen]
    remedy = "take them out of one split: the metric would praise memory"
    return _finding("error", "val", "images that are in train too", leaks, remedy)


def with_file_sizes(data: Annotations, checks: Sequence[ImageCheck]) -> Annotations:
    """`data` as training reads it: with the files' sizes where the annotations have none."""
    records = [
        replace(check.record, width=check.size[0], height=check.size[1])
        if check.size and not (check.record.width and check.record.height)
        else check.record
        for check in checks
    ]
    return replace(clean(data.coco, records, data.categories), warnings=data.warnings)


def box_findings(data: Annotations, split: str) -> list[Finding]:
    """Boxes that training leaves out or changes, crowds, and images without boxes."""
    remedies = {
        "not finite": "fix or remove them: not trained on, and the metric cannot be trusted",
        "of zero or negative size": "fix or remove them: not trained on, and always missed in the metric",
        "outside the image": "fix or remove them: not trained on, and always missed in the metric",
        "reaching out of the image": "clipped to the image in training, left as they are in the metric",
    }
    record_of = {record.image_id: record for record in data.records}
    entries = [entry for entry in data.coco["annotations"] if not entry["iscrowd"]]
    records = [record_of[entry["image_id"]] for entry in entries]
    sizes = np.array([(r.width or np.inf, r.height or np.inf) for r in records]).reshape(-1, 2)
    boxes = np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4)
    findings = []
    for fault, mask in box_faults(boxes, sizes)[1].items():
        examples = []
        for i in np.flatnonzero(mask):
            size = f"{records[i].width} x {records[i].height}" if np.isfinite(sizes[i]).all() else "an unknown size"
            box = ", ".join(f"{value:g}" for value in boxes[i])
            examples.append(f"annotation {entries[i]['id']}: [{box}] in {records[i].file_name} of {size}")
        level: Level = "info" if fault == "reaching out of the image" else "warning"
        findings += _finding(level, split, f"boxes {fault}", examples, remedies[fault])
    if data.num_crowd:
        remedy = "not trained on; in the metric a detection there is neither right nor wrong"
        findings.append(Finding("info", split, "crowd regions", remedy, data.num_crowd))
    empty = [r.file_name for r, boxes in zip(data.records, data.boxes, strict=True) if not len(boxes)]
    if len(empty) == len(data.records):  # `implausible_boxes` says what is wrong with those of training
        remedy = "nothing to measure: is data.val_annotations the right file?"
        return findings + (
            [] if split == "train" else _finding("warning", split, "images, and none has a box", empty, remedy)
        )
    remedy = "background to learn from" if split == "train" else "every detection there is wrong"
    return findings + _finding("info", split, "images without boxes", empty, remedy)


def category_findings(train: Annotations, val: Annotations | None) -> list[Finding]:
    """Categories without boxes, and gaps in the ids."""
    names = train.categories.names
    known = {label for label, name in enumerate(names) if name}
    learnt = _labels(train)
    folded = {names[label].casefold(): names[label] for label in learnt}
    absent = [
        f"{names[label]} ({near} has boxes)" if (near := folded.get(names[label].casefold())) else names[label]
        for label in sorted(known - learnt if learnt else ())
    ]
    findings = _finding("warning", "train", "categories without a box", absent, "nothing to learn them from")
    images = Counter(label for labels in train.labels for label in set(labels.tolist()))
    few = [label for label, count in images.items() if count <= RARE and 10 * count <= max(images.values())]
    rare = [
        f"{names[label]} (in {pluralize(images[label], 'image')})" for label in sorted(few, key=lambda x: images[x])
    ]
    remedy = f"draw their images more often with data.repeat_threshold={min(0.1, 100 / len(train.records)):.2g}"
    findings += _finding("info", "train", "rare classes", rare, remedy)
    if val is not None and (judged := _labels(val)):
        absent = [names[label] for label in sorted((known & learnt) - judged)]
        remedy = "learnt, but not in the metric, which is the mean of the others"
        findings += _finding("warning", "val", "categories of train without a box", absent, remedy)
    ids = [i for i in train.categories.ids if i >= 0]
    if gaps := max(ids) - min(ids) + 1 - len(ids):
        used = f"{len(ids)} categories have ids from {min(ids)} to {max(ids)}"
        remedy = "no harm: labels are numbered without gaps, and results are written with your ids"
        if len(names) > len(ids):
            remedy = "labels without boxes, as data.label_mapping=category_id asks for"
        findings.append(Finding("info", "train", "unused category ids", remedy, gaps, (used,)))
    return findings


def _labels(data: Annotations) -> set[int]:
    return set(np.unique(np.concatenate([np.zeros(0, np.int64), *data.labels])).tolist())


def objects_table(data: Annotations) -> dict[str, dict[str, int]]:
    """Boxes to train on of each class, by COCO's sizes (area of the box in pixels of the stored image)."""
    boxes = np.concatenate([np.zeros((0, 4)), *data.boxes])
    labels = np.concatenate([np.zeros(0, np.int64), *data.labels])
    size = np.searchsorted((SMALL, MEDIUM), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1), side="right")
    counts = np.zeros((data.categories.num_classes, len(SIZES)), dtype=np.int64)
    np.add.at(counts, (labels, size), 1)
    rows = zip(data.categories.names, counts.tolist(), strict=True)
    return {name: dict(zip(SIZES, row, strict=True)) | {"all": sum(row)} for name, row in rows if name}


def _finding(level: Level, split: str, what: str, examples: Sequence[str], remedy: str) -> list[Finding]:
    return [Finding(level, split, what, remedy, len(examples), tuple(examples))] if examples else []
