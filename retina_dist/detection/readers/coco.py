"""COCO annotations in: checked, untouched for the evaluator, and without boxes that cannot be learnt from, which are counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, parse_path, read_bytes
from retina_dist.base.text import escape, is_text, pluralize, truncate
from retina_dist.data.images import MAX_PIXELS
from retina_dist.data.shards import read_index
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.csv_files import read_csv
from retina_dist.detection.readers.formats import read_folder
from retina_dist.detection.readers.items import Items, reading
from retina_dist.detection.readers.records import ImageRecord, drop_missing, fill_sizes, make_record
from retina_dist.detection.settings import FOLDER_FORMATS

MAX_INTEGER = (
    2**53
)  # beyond it float64, in which boxes are cleaned and metrics gathered, mixes up neighbours
MAX_AREA = 1e10  # in px^2; the metric's "all areas" end there, and leave out a box beyond


@dataclass
class Annotations:
    """A data set's images with the boxes to train on, and the ground truth to judge by."""

    coco: dict[
        str, Any
    ]  # in COCO's form, boxes as in the file, missing id, area and iscrowd filled in
    records: tuple[ImageRecord, ...]
    boxes: list[
        np.ndarray
    ]  # of each record, float32 [n, 4] xyxy within the image; no crowd regions
    labels: list[np.ndarray]  # of each record, int64 [n]
    categories: Categories
    num_crowd: int = 0
    clipped: int = 0  # boxes that reached out of their image
    dropped: dict[str, int] = field(default_factory=dict)  # why -> how many boxes
    warnings: list[str] = field(default_factory=list)
    format: str = ""  # where it was recognised
    held_out: float | None = None  # the share of the training images that these are


def ground_truth_of(coco: dict[str, Any], image_ids: Collection[int]) -> dict[str, Any]:
    """The part of a COCO dictionary that is about these images."""
    images = [image for image in coco["images"] if image["id"] in image_ids]
    annotations = [entry for entry in coco["annotations"] if entry["image_id"] in image_ids]
    return coco | {"images": images, "annotations": annotations}


def load_annotations(
    annotations: str | PathOrUrl,
    images: str | PathOrUrl,
    *,
    content: Items | dict[str, Any] | None = None,
    format: str = "coco",
    classes: str | PathOrUrl | None = None,
    split: str = "train",
    missing_images: Literal["error", "skip", "ignore"] = "error",
    bad_images: Literal["error", "skip"] = "error",
    max_pixels: int = MAX_PIXELS,
    **options: Any,
) -> Annotations:
    """Read a data set. `annotations` is a COCO json, a keras-retinanet CSV (with `classes`, by default classes.csv
    beside it), or the local folder of another format (with `split`); `images` is the folder that file names are relative to, or
    for "shards", with a COCO json, the one that holds the shards of `split`. Both may be a path or a URL. `content` is what a
    reader has made of the annotations already.

    Image files that do not exist are an error, left out ("skip", counted in `warnings`) or not looked for ("ignore"). Where an
    image has no size in its annotations, the file's counts; a file that cannot be read or claims more than `max_pixels` is an
    error or left out ("skip"). `options` are those of `annotations_of`. Raises DataError, naming file and entry.
    """
    annotations, images = parse_path(annotations), parse_path(images)
    # a shard that is too short is an error now, not in the middle of an epoch
    slices = (
        read_index(images, split, complete=bad_images != "skip") if format == "shards" else None
    )
    if content is None and format == "csv":
        content = read_csv(
            annotations,
            parse_path(classes) if classes else annotations.parent / "classes.csv",
            images,
        )
    elif content is None:
        is_json = format in ("coco", "shards")
        content = _read_json(annotations) if is_json else read_folder(format, annotations, split)
    if content is None:
        raise DataError(f"{annotations} has no val images.")
    said: list[str] = []
    if isinstance(content, Items):
        images, said, content = content.images, content.warnings, content.as_coco(max_pixels)

    def records_of(entries: list[dict[str, Any]], warnings: list[str]) -> list[ImageRecord]:
        warnings += said
        records = [make_record(entry, images, annotations, slices) for entry in entries]
        if missing_images != "ignore":
            named = None if format in FOLDER_FORMATS else split
            records = drop_missing(records, images, missing_images, warnings, named)
            records = fill_sizes(records, bad_images, max_pixels, warnings)
        return records

    return annotations_of(content, annotations, records_of, **options)


def annotations_of(
    coco: dict[str, Any],
    source: object,
    records_of: Callable[[list[dict[str, Any]], list[str]], list[ImageRecord]],
    *,
    categories: Categories | None = None,
    box_format: str | None = None,
) -> Annotations:
    """The annotations that a COCO dictionary from `source` holds; `box_format` "xyxy" says that a bbox is two corners.

    `records_of` makes the records of its checked `images`, and may append warnings; what it leaves out is not in the ground truth.
    `categories` fixes the labels by their names, as a validation set takes those of training; `Annotations.categories` has the ids
    of this file. Raises DataError, naming source and entry, also for a name that they lack.
    """
    _check_lists(coco, source)
    coco = coco | {
        "annotations": [dict(entry) for entry in coco["annotations"]]
    }  # corrected below, not the caller's
    warnings = _check_entries(coco, source, corners=box_format == "xyxy")
    if categories is None:
        known = Categories.from_coco(coco["categories"])
        for name, times in Counter(known.names).items():
            if times > 1:
                warnings.append(
                    f"{source}: {times} categories are named {name!r} and stay apart; rename or merge them"
                )
    else:
        known = categories.matched(coco["categories"], source)
        if any(
            new != old
            for new, old in zip(known.ids, categories.ids, strict=True)
            if new >= 0 <= old
        ):
            warnings.append(
                f"{source} gives other ids to the same category names; the names decide"
            )
    records = records_of(coco["images"], warnings)
    if len(records) < len(coco["images"]):
        coco = ground_truth_of(coco, {record.image_id for record in records})
    return replace(clean(coco, records, known), warnings=warnings)


def _read_json(path: PathOrUrl) -> dict[str, Any]:
    remedy = "unpack it with gunzip" if path.name.endswith(".gz") else "restore the file"
    with reading(path, "JSON", remedy, missing="name it with data.root or data.*_annotations"):
        content = json.loads(read_bytes(path))
    if not isinstance(content, dict):
        raise DataError(
            f"{path} holds a {type(content).__name__}; give ground truth (instances_*.json), not results."
        )
    return content


def _check_lists(coco: dict[str, Any], source: object) -> None:
    for key in ("images", "annotations", "categories"):
        if not isinstance(coco.get(key), list):
            raise DataError(
                f"{source} has no list '{key}'; give COCO's ground truth, such as instances_*.json."
            )
        if not all(isinstance(entry, dict) for entry in coco[key]):
            raise DataError(f"{source}: an entry of '{key}' is not an object; restore the file.")
    if not coco["categories"]:
        raise DataError(f"{source} has no category; there is nothing to detect.")


def _check_entries(coco: dict[str, Any], source: object, corners: bool) -> list[str]:
    """Ids whole and unique, references that resolve, boxes of four numbers; what may be left out is filled in.

    Boxes given as `corners` become [x, y, width, height]. An area that no metric can use is replaced, with the warning returned.
    """
    for key, thing, name in (("categories", "category", "name"), ("images", "image", "file_name")):
        _check_ids(coco[key], key, source)
        for entry in coco[key]:
            if not is_text(entry.get(name)):
                raise DataError(
                    f"{source}: {thing} {entry['id']} has no {name} without control characters; add one."
                )
    entries = coco["annotations"]
    if entries and not any("id" in entry for entry in entries):
        for i, entry in enumerate(entries, start=1):
            entry["id"] = i
    _check_ids(entries, "annotations", source)
    for key, listed in (("image", coco["images"]), ("category", coco["categories"])):
        ids = {entry["id"] for entry in listed}
        given = [(entry["id"], entry.get(f"{key}_id")) for entry in entries]
        if strangers := [pair for pair in given if type(pair[1]) is not int or pair[1] not in ids]:
            first = f"annotation {strangers[0][0]} is of {key} {escape(repr(strangers[0][1]), 80)}"
            count = f"{len(strangers)} of {pluralize(len(entries), 'annotation')}"
            raise DataError(
                f"{source}: {first}, which is not listed ({count}); correct the ids, or list them."
            )
    invented: list[str] = []
    for entry in entries:
        box = entry.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
            raise DataError(
                f"{source}: annotation {entry['id']} has bbox {escape(box, 80)}; give four numbers."
            )
        if corners:
            entry["bbox"] = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
        if "area" in entry and not _is_number(entry["area"]):
            raise DataError(
                f"{source}: annotation {entry['id']} has area {escape(entry['area'], 80)}, not a number."
            )
        if not 0 <= entry.get("area", -1) <= MAX_AREA:  # nor does NaN
            invented += [f"annotation {entry['id']}: {entry['area']}"] if "area" in entry else []
            *_, width, height = entry["bbox"]
            area = width * height
            entry["area"] = area if min(width, height) >= 0 and area <= MAX_AREA else 0
        crowd = entry.get("iscrowd", 0)
        if crowd not in (0, 1):
            raise DataError(
                f"{source}: annotation {entry['id']} has iscrowd {escape(crowd, 80)}, not 0 or 1."
            )
        entry["iscrowd"] = int(crowd)  # 0.0 and false are the same, but not to the evaluators
    areas = f"{pluralize(len(invented), 'area')} that no metric can use ({truncate(invented)})"
    return [f"{source}: {areas}; width x height is taken instead"] if invented else []


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER)


def _check_ids(entries: list[dict[str, Any]], key: str, source: object) -> None:
    for entry in entries:
        value = entry.get("id")
        if type(value) is not int or not 0 <= value <= MAX_INTEGER:
            raise DataError(
                f"{source}: an entry of '{key}' has id {escape(value, 80)!r}, not an integer up to 2^53."
            )
    for value, times in Counter(entry["id"] for entry in entries).most_common(1):
        if times > 1:
            raise DataError(
                f"{source}: id {value} stands {times} times in '{key}'; ids must be unique."
            )


ROUNDING = 0.01  # pixels: what six digits of a share of a side leave


def box_faults(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Boxes [n, 4] xywh in images of `sizes` [n, 2] (width, height) -> corners [n, 4] float32 within them, and masks of faults.

    A box has at most one fault: the first of the dictionary. All but the last exclude it from training.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # boxes that are not finite
        corners = np.hstack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]))
        clipped = np.clip(corners, 0, np.tile(sizes, 2))
        inside = clipped.astype(
            np.float32
        )  # judged as training will see it: a side can vanish in the rounding
        moved = (np.abs(clipped - corners) > ROUNDING).any(axis=1)
    faults = {
        "not finite": ~np.isfinite(boxes).all(axis=1),
        "of zero or negative size": (boxes[:, 2:] <= 0).any(axis=1),
        "outside the image": ~(inside[:, 2:] > inside[:, :2]).all(axis=1),
        "reaching out of the image": moved,
    }
    sound = np.ones(len(boxes), dtype=bool)
    for mask in faults.values():
        mask &= sound
        sound &= ~mask
    return inside, faults


def clean(
    coco: dict[str, Any], records: Sequence[ImageRecord], categories: Categories
) -> Annotations:
    """The boxes to train on: finite, clipped to their image, with an area, no crowd regions."""
    row_of = {record.image_id: row for row, record in enumerate(records)}
    entries = coco["annotations"]
    crowd = np.array([e["iscrowd"] for e in entries], dtype=bool)
    rows = np.array([row_of[e["image_id"]] for e in entries], dtype=np.int64)
    ids = np.array([e["category_id"] for e in entries], dtype=np.int64)
    boxes = np.array([e["bbox"] for e in entries], dtype=np.float64).reshape(-1, 4)
    sizes = np.array(
        [(r.width or np.inf, r.height or np.inf) for r in records], dtype=np.float64
    ).reshape(-1, 2)
    inside, masks = box_faults(boxes, sizes[rows])
    counts = {fault: int((mask & ~crowd).sum()) for fault, mask in masks.items()}
    clipped = counts.pop("reaching out of the image")
    good = ~(crowd | np.any([masks[fault] for fault in counts], axis=0))
    order = np.flatnonzero(good)[np.argsort(rows[good], kind="stable")]
    cuts = np.searchsorted(rows[order], np.arange(1, len(records)))
    return Annotations(
        coco=coco,
        records=tuple(records),
        boxes=np.split(inside[order], cuts) if records else [],
        labels=np.split(categories.labels_of(ids[order]), cuts) if records else [],
        categories=categories,
        num_crowd=int(crowd.sum()),
        clipped=clipped,
        dropped={fault: count for fault, count in counts.items() if count},
    )


def without_empty(full: Annotations) -> Annotations:
    """Leave out the images without boxes, with a warning that counts them; the ground truth stays."""
    rows = [i for i, boxes in enumerate(full.boxes) if len(boxes)]
    empty = len(full.records) - len(rows)
    if empty:
        full.warnings.append(
            f"{pluralize(empty, 'image')} without boxes left out (data.keep_empty_images=false)"
        )
    boxes, labels = ([column[i] for i in rows] for column in (full.boxes, full.labels))
    return replace(full, records=tuple(full.records[i] for i in rows), boxes=boxes, labels=labels)
