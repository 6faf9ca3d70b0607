"""The training and validation splits that data settings name: found, read, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.text import pluralize
from retina_dist.detection.plausibility import implausible_boxes
from retina_dist.detection.readers.annotations import Annotations, without_empty
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.load import annotations_of, pausing_gc
from retina_dist.detection.readers.records import fill_sizes
from retina_dist.detection.settings import DetectionData


def read_split(
    data: DetectionData, split: str, categories: Categories | None = None, *, check: bool = True
) -> Annotations | None:
    """The annotations of "train" or "val"; None for a validation set that the settings do not name.

    The data is found and read, checked, its labels numbered, its images found and its boxes
    cleaned.

    Args:
        data: names the files, says how they are read, and perhaps holds a part of train out for
        val. split: "train" or "val". categories: fixes the labels, as val takes the labels of
        train. check: raise DataError for `implausible_boxes`.
    """
    reader = data.reader()
    fraction = None
    place = split
    if data.val_fraction and not reader.has("val"):
        fraction = data.val_fraction
        place = "train"
    set_status(f"reading the data, {place}")
    with pausing_gc():
        content = reader.content(place)
        if content is None:
            return None
        part = annotations_of(content, data, place, categories)

    source = content.source or data.root or content.images
    if not part.records:
        remedy = "give annotations or a dataset with images"
        raise DataError(f"{source} leaves no image for {place}; {remedy}.")
    problem = implausible_boxes(part, place) if check else None
    if problem is not None:
        raise DataError(f"{source}: {place}: {'; '.join(problem)}.")
    if fraction is not None:
        part = part.held_out_part(fraction, split)
    if split == "train" and not data.keep_empty_images:
        return without_empty(part)
    return part


def first_images_with_objects(annotations: Annotations, count: int) -> Annotations:
    """The first `count` images that have boxes, or of all where none has."""
    rows: Sequence[int] = [row for row, boxes in enumerate(annotations.boxes) if len(boxes)]
    if not rows:
        rows = range(len(annotations.records))
    return annotations.with_rows(rows[:count])


def sized_coco(part: Annotations, max_pixels: int) -> dict[str, Any]:
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


def describe_split(part: Annotations) -> str:
    """Images and boxes of a split, and what was left out of it."""
    boxes = sum(len(boxes) for boxes in part.boxes)
    facts = [f"{pluralize(len(part.records), 'image')}, {pluralize(boxes, 'box')}"]
    empty = sum(not len(boxes) for boxes in part.boxes)
    if empty:
        facts.append(f"{pluralize(empty, 'image')} without boxes")
    if part.num_crowd:
        facts.append(f"{pluralize(part.num_crowd, 'crowd region')} (evaluated, not trained on)")
    for name, count in part.dropped.items():
        facts.append(f"{pluralize(count, 'box')} dropped: {name}")
    if part.clipped:
        facts.append(f"{pluralize(part.clipped, 'box')} clipped to their image")
    if part.held_out:
        facts.append(f"held out of train by data.val_fraction={part.held_out}")
    if part.format:
        facts.append(f"{part.format}, as recognised")
    return "; ".join(facts)
