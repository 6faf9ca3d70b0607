"""What can be wrong with a data set, as pure functions: its files, boxes and categories."""

from __future__ import annotations

import hashlib
import io
import math
import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import UnidentifiedImageError

from retina_dist.data.images import SWAPPING, image_size, orientation_of, read_image
from retina_dist.data.loading import without_main
from retina_dist.data.sources import read, sha256_of
from retina_dist.detection.readers.coco import Annotations, ImageRecord
from retina_dist.errors import DataError, ImageError
from retina_dist.reporting.findings import Finding, Level

SMALL, MEDIUM = 32**2, 96**2  # COCO's limits of area in px^2
SIZES = ("small", "medium", "large")
WORTH_A_PROCESS = 500  # images; fewer are read before another process has started
IMAGES_A_TASK = 16


@dataclass(frozen=True)
class ImageCheck:
    """What reading one file showed."""

    record: ImageRecord
    problem: Literal["missing", "unreadable", "of another size"] | None = None
    detail: str = ""
    size: tuple[int, int] | None = None  # (width, height) as displayed
    orientation: int = 1  # EXIF, 1 to 8
    digest: str | None = None  # SHA-256 of the file


def check_images(
    records: Sequence[ImageRecord], *, decode: bool, max_pixels: int, max_processes: int
) -> Iterator[ImageCheck]:
    """`check_image` of each record, in their order; large sets are shared out over processes.

    Raises DataError when a process dies, as one does that runs out of memory.
    """
    check = partial(check_image, decode=decode, max_pixels=max_pixels)
    processes = min(max_processes, len(records) // WORTH_A_PROCESS)
    if processes < 2:
        yield from map(check, records)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # or each process would import torch for itself
    ignore_ctrl_c = (signal.SIGINT, signal.SIG_IGN)  # which is for the main process
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=signal.signal, initargs=ignore_ctrl_c)
    try:
        with without_main():
            checks = pool.map(check, records, chunksize=IMAGES_A_TASK)  # starts the processes
        yield from checks
    except BrokenProcessPool as error:
        raise DataError(
            "a process that decoded images was ended from outside, most likely because memory ran out; free some, or read "
            "the headers only with images=header."
        ) from error
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
        "missing": f"restore them, name their folder with data.{split}_images, or go on without: data.missing_images=skip",
        "unreadable": "restore them, or go on without: data.bad_images=skip",
        "of another size": "their boxes belong to another version: find it, annotate anew, or data.bad_images=skip",
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
    """`data` with the files' sizes where the annotations have none, and boxes clipped to them, as training reads it."""
    records, boxes, labels = list(data.records), list(data.boxes), list(data.labels)
    for i, check in enumerate(checks):
        if check.size and not (records[i].width and records[i].height):
            records[i] = replace(records[i], width=check.size[0], height=check.size[1])
            inside = np.clip(boxes[i], 0, np.array(check.size * 2, np.float32))
            keep = (inside[:, 2:] > inside[:, :2]).all(axis=1)
            boxes[i], labels[i] = inside[keep], labels[i][keep]
    return replace(data, records=tuple(records), boxes=boxes, labels=labels)


def fault_of(bbox: Sequence[float], width: float, height: float) -> str | None:
    """What training makes of a box [x, y, width, height] in an image: None for nothing, else what is wrong with it.

    The rules of `load_annotations`: all but "reaching out of the image", which are clipped, are dropped.
    """
    if not all(map(math.isfinite, bbox)):
        return "not finite"
    x, y, w, h = map(float, bbox)
    if w <= 0 or h <= 0:
        return "of zero or negative size"
    left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, width), min(y + h, height)
    with np.errstate(over="ignore"):  # as float32, in which a side can vanish
        if np.float32(right) <= np.float32(left) or np.float32(bottom) <= np.float32(top):
            return "outside the image"
    return "reaching out of the image" if (left, top, right, bottom) != (x, y, x + w, y + h) else None


def box_findings(data: Annotations, split: str) -> list[Finding]:
    """Boxes that training leaves out or changes, crowds, and images without boxes."""
    remedies = {
        "not finite": "fix or remove them: not trained on, and the metric cannot be trusted",
        "of zero or negative size": "fix or remove them: not trained on, and always missed in the metric",
        "outside the image": "fix or remove them: not trained on, and always missed in the metric",
        "reaching out of the image": "clipped to the image in training, left as they are in the metric",
    }
    record_of = {record.image_id: record for record in data.records}
    faulty = defaultdict(list)
    for entry in data.coco["annotations"]:
        record = record_of[entry["image_id"]]
        fault = fault_of(entry["bbox"], record.width or math.inf, record.height or math.inf)
        if fault and not entry["iscrowd"]:
            size = f"{record.width} x {record.height}" if record.width and record.height else "an unknown size"
            box = ", ".join(f"{value:g}" for value in entry["bbox"])
            faulty[fault].append(f"annotation {entry['id']}: [{box}] in {record.file_name} of {size}")
    level: Level
    findings = []
    for fault, remedy in remedies.items():
        level = "info" if fault == "reaching out of the image" else "warning"
        findings += _finding(level, split, f"boxes {fault}", faulty[fault], remedy)
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
    if val is not None and (judged := _labels(val)):
        absent = [names[label] for label in sorted((known & learnt) - judged)]
        remedy = "learnt, but not in the metric, which is the mean of the others"
        findings += _finding("warning", "val", "categories of train without a box", absent, remedy)
    ids = [i for i in train.categories.ids if i >= 0]
    if gaps := max(ids) - min(ids) + 1 - len(ids):
        used = f"{len(ids)} categories have ids from {min(ids)} to {max(ids)}"
        remedy = "no harm: labels are numbered without gaps, and results are written with your ids"
        if len(names) > len(ids):
            remedy = "labels of their own that are never learnt, as data.label_mapping=category_id asks for"
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
