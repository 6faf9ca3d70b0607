"""COCO annotations in: checked, cleaned for training, untouched for the evaluator.

Layer 1. Boxes that cannot be learnt from are dropped and counted by name; the ground truth that metrics are computed
against stays what the file says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from retina_dist.data.categories import Categories, LabelMapping
from retina_dist.data.images import image_size
from retina_dist.data.keras_csv import read_csv
from retina_dist.data.voc import read_voc
from retina_dist.errors import DataError, ImageError

MAX_NAMED = 5  # how many of many are named in a message
MAX_INTEGER = 2**53  # beyond it float64, in which boxes are cleaned and metrics gathered, mixes up neighbours
MAX_SIDE = 2**31


@dataclass(frozen=True)
class ImageRecord:
    """One image of a data set; width and height are those its boxes are in, in pixels."""

    image_id: int
    path: Path
    file_name: str
    width: int
    height: int


@dataclass
class Annotations:
    """A data set's images with the boxes to train on, and the ground truth to judge by."""

    coco: dict[str, Any]  # in COCO's form, boxes as in the file, missing id, area and iscrowd filled in
    records: tuple[ImageRecord, ...]
    boxes: list[np.ndarray]  # of each record, float32 [n, 4] xyxy within the image; no crowd regions
    labels: list[np.ndarray]  # of each record, int64 [n]
    categories: Categories
    num_crowd: int = 0
    clipped: int = 0  # boxes that reached out of their image
    dropped: dict[str, int] = field(default_factory=dict)  # why -> how many boxes
    warnings: list[str] = field(default_factory=list)


def load_annotations(
    annotations: Path,
    images: Path,
    *,
    format: Literal["coco", "csv", "voc"] = "coco",
    classes: Path | None = None,
    split: str = "train",
    label_mapping: LabelMapping = "contiguous",
    categories: Categories | None = None,
    keep_empty: bool = True,
    missing_images: Literal["error", "skip", "ignore"] = "error",
) -> Annotations:
    """Read a data set. `annotations` is a COCO json, a keras-retinanet CSV (with `classes`, by default classes.csv
    beside it), or a Pascal VOC folder (with `split`); `images` is the folder that file names are relative to.

    `categories` fixes the labels, as a validation set takes those of training; a category it does not know is an
    error. `keep_empty=False` leaves out images without a box to train on. Image files that do not exist are an error,
    left out ("skip", counted in `warnings`) or not looked for ("ignore"). Raises DataError, naming file and entry.
    """
    if format == "csv":
        coco = read_csv(annotations, classes or annotations.parent / "classes.csv")
    elif format == "voc":
        coco = read_voc(annotations, split)
        images = annotations / "JPEGImages"
    elif format == "coco":
        coco = _read_json(annotations)
    else:
        raise DataError(f"data.format={format} is unknown; use coco, csv or voc.")
    _check_lists(coco, annotations)
    _check_entries(coco, annotations)
    _number_from_one(coco["annotations"])
    known = categories or Categories.from_coco(coco["categories"], label_mapping)
    warnings = _check_categories(coco, annotations, known)

    records = [_record(entry, images, annotations) for entry in coco["images"]]
    if missing_images != "ignore":
        records = _existing(records, images, missing_images, warnings)
    records = [_sized(record, warnings) for record in records] if missing_images != "ignore" else records
    result = _clean(coco, records, known)
    result.warnings = warnings
    return result if keep_empty else _without_empty(result)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; name it with data.root or data.*_annotations.") from error
    except (ValueError, RecursionError, OSError) as error:  # a number of 5000 digits is a mere ValueError
        raise DataError(f"{path} is no readable JSON ({error}); restore the file.") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path} holds a JSON {type(content).__name__}, not the object with images, annotations and categories "
            "that COCO ground truth is; a list is a results file (evaluate results=…)."
        )
    return content


def _check_lists(coco: dict[str, Any], source: Path) -> None:
    for key in ("images", "annotations", "categories"):
        if not isinstance(coco.get(key), list):
            raise DataError(f"{source} has no list '{key}'; COCO annotations have images, annotations and categories.")
        if not all(isinstance(entry, dict) for entry in coco[key]):
            raise DataError(f"{source}: an entry of '{key}' is no object; restore the file.")
    if not coco["categories"]:
        raise DataError(f"{source} has no category; there is nothing to detect.")


def _check_entries(coco: dict[str, Any], source: Path) -> None:
    """Ids whole and unique, references that resolve, boxes of four numbers; what may be left out is filled in."""
    for key in ("categories", "images"):
        _check_ids(coco[key], key, source)
    for entry in coco["categories"]:
        if not isinstance(entry.get("name"), str):
            raise DataError(f"{source}: category {entry['id']} has no name; add one.")
    for entry in coco["images"]:
        if not isinstance(entry.get("file_name"), str) or not entry["file_name"]:
            raise DataError(f"{source}: image {entry['id']} has no file_name; add one.")
    entries = coco["annotations"]
    if entries and not any("id" in entry for entry in entries):
        for i, entry in enumerate(entries, start=1):
            entry["id"] = i
    _check_ids(entries, "annotations", source)
    image_ids = {entry["id"] for entry in coco["images"]}
    category_ids = {entry["id"] for entry in coco["categories"]}
    for entry in entries:
        for key, ids in (("image", image_ids), ("category", category_ids)):
            value = entry.get(f"{key}_id")
            if type(value) is not int or value not in ids:
                raise DataError(
                    f"{source}: annotation {entry['id']} is of {key} {str(value)[:80]}, which is not listed."
                )
        box = entry.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
            raise DataError(f"{source}: annotation {entry['id']} has bbox {str(box)[:80]}, not [x, y, width, height].")
        if "area" not in entry:
            entry["area"] = box[2] * box[3]
        elif not _is_number(entry["area"]):
            raise DataError(f"{source}: annotation {entry['id']} has area {str(entry['area'])[:80]}, not a number.")
        if entry.setdefault("iscrowd", 0) not in (0, 1):
            raise DataError(f"{source}: annotation {entry['id']} has iscrowd {str(entry['iscrowd'])[:80]}, not 0 or 1.")


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER)


def _check_ids(entries: list[dict[str, Any]], key: str, source: Path) -> None:
    for entry in entries:
        value = entry.get("id")
        if type(value) is not int or not 0 <= value <= MAX_INTEGER:
            raise DataError(f"{source}: an entry of '{key}' has id {str(value)[:80]!r}, not a whole number up to 2^53.")
    for value, times in Counter(entry["id"] for entry in entries).most_common(1):
        if times > 1:
            raise DataError(f"{source}: id {value} stands {times} times in '{key}'; ids must be unique.")


def _number_from_one(entries: list[dict[str, Any]]) -> None:
    """Give annotations new ids where one has 0, which evaluators take for "no match": its box could never be found."""
    if any(entry["id"] == 0 for entry in entries):
        for i, entry in enumerate(entries, start=1):
            entry["id"] = i


def _check_categories(coco: dict[str, Any], source: Path, known: Categories) -> list[str]:
    """Raises DataError for a category without a label; returns a warning where ids agree and names do not."""
    renamed = []
    for entry in coco["categories"]:
        if entry["id"] not in known:
            raise DataError(
                f"{source}: category {entry['id']} ({entry['name']}) is not among the {len(known.ids)} that the labels "
                "were made from; training and validation need the same categories."
            )
        name = known.name_of(known.label_of(entry["id"]))
        if name != entry["name"]:
            renamed.append(f"{entry['id']} is {entry['name']}, not {name}")
    return [f"{source} names categories differently: {_shortened(renamed)}"] if renamed else []


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _record(entry: dict[str, Any], images: Path, source: Path) -> ImageRecord:
    name = entry["file_name"]
    relative = PurePosixPath(name.replace("\\", "/"))
    if relative.is_absolute() and relative.is_relative_to(folder := images.absolute().as_posix()):
        relative = relative.relative_to(folder)  # keras-retinanet's CSV files have absolute paths
    if relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise DataError(
            f"{source}: image {entry['id']} has file_name {name[:120]!r}, which is outside the images folder {images}; "
            "name a folder that holds all images."
        )
    size = []
    for side in ("width", "height"):
        value = entry.get(side)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_SIDE):
            raise DataError(f"{source}: image {entry['id']} has {side} {str(value)[:80]}, not a number of pixels.")
        size.append(value or 0)
    return ImageRecord(entry["id"], images / relative, name, size[0], size[1])


def _existing(records: list[ImageRecord], images: Path, policy: str, warnings: list[str]) -> list[ImageRecord]:
    missing = [record for record in records if not _is_file(record.path)]
    if not missing:
        return records
    named = _shortened([record.file_name for record in missing])
    text = f"{len(missing)} of {len(records)} images are not in {images}: {named}"
    if policy == "error":
        raise DataError(f"{text}; check the folder, or leave them out with data.missing_images=skip.")
    warnings.append(f"{text}; left out of training, and evaluated as images without detections")
    gone = {record.image_id for record in missing}
    return [record for record in records if record.image_id not in gone]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for any file, for one
        return False


def _sized(record: ImageRecord, warnings: list[str]) -> ImageRecord:
    """The record with width and height, from the file's header where the annotations have none."""
    if record.width and record.height:
        return record
    try:
        width, height = image_size(record.path)
    except ImageError as error:
        raise DataError(f"image {record.image_id} has no size in its annotations, and {error}") from error
    if not any(text.startswith("some images have no size") for text in warnings):
        warnings.append("some images have no size in the annotations; it was read from the files")
    return ImageRecord(record.image_id, record.path, record.file_name, width, height)


def _clean(coco: dict[str, Any], records: Iterable[ImageRecord], categories: Categories) -> Annotations:
    """Boxes to train on, all images at once: finite, within their image, with an area, no crowd."""
    records = tuple(records)
    row_of = {record.image_id: row for row, record in enumerate(records)}
    entries = [e for e in coco["annotations"] if e["image_id"] in row_of]
    crowd = np.array([e["iscrowd"] for e in entries], dtype=bool)
    rows = np.array([row_of[e["image_id"]] for e in entries], dtype=np.int64)
    ids = np.array([e["category_id"] for e in entries], dtype=np.int64)
    xywh = np.array([e["bbox"] for e in entries], dtype=np.float64).reshape(-1, 4)
    sizes = np.array([(r.width or np.inf, r.height or np.inf) for r in records], dtype=np.float64).reshape(-1, 2)
    limit = np.tile(sizes, 2)[rows] if len(rows) else np.zeros((0, 4))  # [n, 4]

    with np.errstate(invalid="ignore", over="ignore"):  # boxes that are not finite are dropped below
        xyxy = np.concatenate((xywh[:, :2], xywh[:, :2] + xywh[:, 2:]), axis=1)
        inside = np.clip(xyxy, 0, limit)
        # Judged as the float32 that training will see: a side can vanish in the rounding.
        side = inside.astype(np.float32)[:, 2:] - inside.astype(np.float32)[:, :2]
        moved = np.abs(inside - xyxy).max(axis=1, initial=0) > 0
    bad = {
        "not finite": ~np.isfinite(xywh).all(axis=1),
        "zero or negative size": (xywh[:, 2:] <= 0).any(axis=1),
        "outside the image": ~(side > 0).all(axis=1),
    }
    good = ~crowd
    dropped = {}
    for why, mask in bad.items():
        dropped[why] = int((mask & good).sum())
        good &= ~mask

    order = np.flatnonzero(good)[np.argsort(rows[good], kind="stable")]
    cuts = np.searchsorted(rows[order], np.arange(1, len(records)))
    boxes = np.split(inside[order].astype(np.float32), cuts) if records else []
    labels = np.split(categories.labels_of(ids[order]), cuts) if records else []
    return Annotations(
        coco=coco,
        records=records,
        boxes=boxes,
        labels=labels,
        categories=categories,
        num_crowd=int(crowd.sum()),
        clipped=int((moved & good).sum()),
        dropped={why: count for why, count in dropped.items() if count},
    )


def _without_empty(full: Annotations) -> Annotations:
    rows = [i for i, boxes in enumerate(full.boxes) if len(boxes)]
    empty = len(full.records) - len(rows)
    full.warnings.append(f"{empty} images without boxes left out (data.keep_empty_images=false)")
    full.records = tuple(full.records[i] for i in rows)
    full.boxes = [full.boxes[i] for i in rows]
    full.labels = [full.labels[i] for i in rows]
    return full
