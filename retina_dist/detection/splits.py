"""The training and validation splits that data settings name: found, read, checked."""

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.text import pluralize, truncate
from retina_dist.data.sources import ImageSource
from retina_dist.detection.readers.annotations import (
    Annotations,
    BoxForm,
    repeated_boxes,
    without_empty,
)
from retina_dist.detection.readers.categories import Categories, Entry
from retina_dist.detection.readers.formats import AnnotationReader
from retina_dist.detection.readers.load import annotations_of, pausing_gc
from retina_dist.detection.readers.records import fill_sizes
from retina_dist.detection.settings import DetectionData


def read_split(
    data: DetectionData,
    split: str,
    categories: Categories | None = None,
    *,
    check: bool = True,
    reader: AnnotationReader | None = None,
) -> Annotations | None:
    """The annotations of "train", "val" or "test"; None for one that the settings do not name.

    "val" is the split that data.val_split names.

    The data is found and read, checked, its labels numbered, its images found and its boxes
    cleaned.

    Args:
        data: names the files, says how they are read, and perhaps holds a part of train out for
            val.
        split: its name.
        categories: fixes the labels, as val takes the labels of train.
        check: raise DataError for a fault of most boxes, see `BoxForm`.
        reader: of `data`, if several splits are read.
    """
    part = _read(data, split, categories, check, reader or data.reader()).get(split)
    if part is None and split == "val" and data.val_split != "val":
        raise DataError(
            f"data={data.name} has no such split, data.val_split={data.val_split}; leave it out, "
            "or give data.val_annotations=FILE data.val_images=FOLDER in its place."
        )
    if part and split == "train" and not data.keep_empty_images:
        return without_empty(part)
    return part


def _read(
    data: DetectionData,
    split: str,
    categories: Categories | None,
    is_strict: bool,
    reader: AnnotationReader,
) -> dict[str, Annotations]:
    """All images of a split of the files, at least one, by its name; "train" and "val" where val is
    held out of train. Raises DataError.
    """
    fraction = reader.held_out(split)
    place = data.val_split if split == "val" else split
    if fraction:
        place = "train"
    set_status(f"reading the data, {place}")
    with pausing_gc():
        content = reader.content(place)
        if content is None:
            return {}
        part = annotations_of(content, data, categories)
    if not part.records:
        raise DataError(
            f"{content.source} leaves no image for {place}; "
            "give annotations or a dataset with images."
        )
    form = BoxForm(part)
    fault = form.fault(place) if is_strict else None
    if fault is not None:
        raise DataError(f"{content.source}: {place}: {'; '.join(fault)}.")
    part.warnings += form.suspected() + repeated_boxes(part)
    return part.hold_out(fraction) if fraction else {split: part}


def _shared(train: Annotations, val: Annotations) -> list[str]:
    """A warning with the images of val that train has too: of one name, with the same boxes."""
    rows = {posixpath.basename(record.file_name): i for i, record in enumerate(val.records)}
    shared = []
    for record, boxes in zip(train.records, train.boxes, strict=True):
        row = rows.get(posixpath.basename(record.file_name))
        if row is None or not len(boxes) or not np.array_equal(boxes, val.boxes[row]):
            continue
        num_bytes = _num_bytes(record.path)
        if num_bytes and num_bytes == _num_bytes(val.records[row].path):
            shared.append(record.file_name)
    if not shared:
        return []
    count = pluralize(len(shared), "image")
    return [f"train holds {count} of val, too: {truncate(shared, 1)}; remove the copies from one"]


def _num_bytes(source: ImageSource) -> int | None:
    """The size of a local file; None for others."""
    if isinstance(source, str | Path) and os.path.exists(source):
        return os.path.getsize(source)
    return None


def read_splits(
    data: DetectionData,
    num_classes: int | None = None,
    *,
    check: bool = True,
    reader: AnnotationReader | None = None,
) -> tuple[Annotations, Annotations | None]:
    """`read_split` of "train" and of "val", which takes the labels of train; with labels up to
    `num_classes`.
    """
    reader = reader or data.reader()
    parts = _read(data, "train", None, check, reader)  # one reading for both
    for part in parts.values():
        part.categories = part.categories.padded(num_classes or 0)
    train = parts["train"]
    val = parts.get("val")
    if val is None:
        val = read_split(data, "val", train.categories, check=check, reader=reader)
        if val and len(val.records) == len(train.records) and val.digest() == train.digest():
            val.warnings.append(
                "val has the images and boxes of train; name others, or leave it out"
            )
        elif val:
            val.warnings += _shared(train, val)
    if not data.keep_empty_images:
        train = without_empty(train)
    return train, val


def first_images_with_objects(annotations: Annotations, count: int) -> Annotations:
    """The first `count` images that have boxes, or of all where none has."""
    rows: Sequence[int] = [row for row, boxes in enumerate(annotations.boxes) if len(boxes)]
    if not rows:
        rows = range(len(annotations.records))
    return annotations.with_rows(rows[:count])


def unread_test(data: DetectionData, reader: AnnotationReader, *, validates: bool) -> str:
    """What to say of a test split that no training reads; "" where there is none."""
    if data.val_split == "test":
        return ""
    try:
        if not reader.has("test"):
            return ""
        count = pluralize(reader.count("test"), "image")
    except DataError as error:
        return f"cannot be read: {error}"
    use = "evaluate split=test judges on it"
    if not validates:
        use = f"data.val_split=test validates on it, {use}"
    return f"{count}, not trained on; {use}"


def sized_coco(part: Annotations, max_pixels: int) -> Entry:
    """The ground truth with width and height of each image whose file is there and small enough."""
    sized = fill_sizes(part.records, "skip", max_pixels).records
    size_of = {record.image_id: record for record in sized}
    coco = part.coco
    images = []
    for entry in coco["images"]:
        record = size_of.get(entry["id"])
        if record is not None:
            entry = {**entry, "width": record.width, "height": record.height}
        images.append(entry)
    return coco | {"images": images}
