"""The training and validation splits that data settings name: found, read, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.seeding import held_out_rows
from retina_dist.base.text import pluralize
from retina_dist.data.synthetic import folder_to_draw
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.readers.annotations import Annotations, boxes_of, without_empty
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.formats import Content
from retina_dist.detection.readers.load import annotations_of, pausing_gc
from retina_dist.detection.readers.records import fill_sizes
from retina_dist.detection.settings import DetectionData

MIN_BOXES = 4  # Below this many boxes, do not guess how they were written.
MIN_BOXES_CENTRED = 20  # nor below this many that x, y is a centre


def draw_data(data: DetectionData) -> None:
    """Draw the shapes data set where the settings ask for it and it is not there yet."""
    if data.shapes is not None:
        make_shapes(folder_to_draw(data.root, "data.shapes"), **asdict(data.shapes))


def read_split(
    data: DetectionData, split: str, categories: Categories | None = None, *, check: bool = True
) -> Annotations | None:
    """The annotations of "train" or "val"; None for a validation set that the settings do not name.

    Draws the shapes data set first where the settings ask for it.

    Args:
        data: names the files, says how they are read, and perhaps holds a part of train out for val.
        split: "train" or "val".
        categories: fixes the labels, as val takes the labels of train.
        check: raise DataError for `implausible_boxes`.
    """
    draw_data(data)
    reader = data.reader()
    fraction = None
    if data.val_fraction and not reader.has("val"):
        fraction = data.val_fraction
    source_split = "train" if fraction else split
    set_status(f"reading the data, {source_split}")
    with pausing_gc():
        content = reader.read(source_split)
        if content is None:
            if source_split == "val":
                return None
            problem = f"data={data.name} has no images to train on"
            raise DataError(f"{problem} in data.root={data.root}.")
        content = Content(*content)
        part = annotations_of(content, data, source_split, categories)

    source = content.source or data.root or content.images
    if not part.records:
        remedy = "give annotations or a dataset with images"
        raise DataError(f"{source} leaves no image for {source_split}; {remedy}.")
    if check:
        problem_and_remedy = implausible_boxes(part, source_split)
        if problem_and_remedy is not None:
            raise DataError(f"{source}: {source_split}: {'; '.join(problem_and_remedy)}.")
    if fraction:
        names = [record.file_name for record in part.records]
        part = part.with_rows(held_out_rows(names, fraction)[split])
        if split == "val":
            part.held_out = fraction
    if split == "train" and not data.keep_empty_images:
        return without_empty(part)
    return part


def implausible_boxes(part: Annotations, split: str) -> tuple[str, str] | None:
    """The fault of most boxes of a split and the remedy; None where they can be trained on.

    Boxes read in the wrong form mostly leave their image or have no area, and fit when read in
    another. `data.box_format=xywh` overrules this judgement. Crowd regions do not count.
    """
    entries = [entry for entry in part.coco["annotations"] if not entry["iscrowd"]]
    boxes = boxes_of(entries)
    if len(boxes) and (np.abs(boxes[:, 2:]) <= 1).all():
        remedy = "multiply shares of the image by its width and height"
        return "no box is larger than one pixel", remedy

    if part.box_format != "xywh":
        size_of = {record.image_id: (record.width, record.height) for record in part.records}
        sizes = np.array([size_of[entry["image_id"]] for entry in entries], dtype=np.float64)
        misread = _misread(boxes, sizes.reshape(-1, 2), has_corners=part.box_format == "xyxy")
        if misread is not None:
            return misread

    if not any(map(len, part.boxes)) and (len(boxes) or split == "train"):
        causes = [f"{count} {why}" for why, count in part.dropped.items()] or ["none is annotated"]
        remedy = "correct the boxes, or give the right annotations"
        return f"no box is left ({', '.join(causes)})", remedy
    return None


def _misread(boxes: np.ndarray, sizes: np.ndarray, *, has_corners: bool) -> tuple[str, str] | None:
    """The form in which most boxes would fit, and the remedy, where they do not fit as they were read.

    Args:
        boxes: [n, 4] x, y, width, height as they were read.
        sizes: [n, 2] (width, height) of each box's image, 0 where it is not known.
        has_corners: the file was read as two corners, x1, y1, x2, y2.
    """
    start = boxes[:, :2]
    side = boxes[:, 2:]
    known = sizes.min(axis=1, initial=np.inf) > 0
    fits = _fits(start, start + side, sizes)
    share = fits[known].mean() if known.any() else 1.0
    if known.sum() < MIN_BOXES or share >= 0.9:
        return None

    bad = f"{int((~fits).sum())} of {len(fits)} boxes leave their image or have no area, but fit if"
    enough = 0.95 if share < 0.5 else 1.0
    if has_corners:
        form = "they are x, y, width, height"
        remedy = "set data.box_format=xywh (csv, voc: correct the files)"
        end = side + 2 * start
    else:
        form = "they are two corners, x1, y1, x2, y2"
        remedy = "set data.box_format=xyxy, or xywh if they are right"
        end = side
    if _fits(start, end, sizes)[known].mean() >= enough:
        return f"{bad} {form}", remedy
    centred = _fits(start - side / 2, start + side / 2, sizes)[known]
    if known.sum() >= MIN_BOXES_CENTRED and centred.all():
        return f"{bad} x, y is the centre of a box", "subtract half of width and height"
    return None


def _fits(low: np.ndarray, high: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes with corners [n, 2] have an area and lie in images of `sizes` [n, 2].

    2 px or 2 % of a side are let pass.
    """
    slack = np.maximum(2, 0.02 * sizes)
    with np.errstate(invalid="ignore"):
        return np.asarray(((low >= -slack) & (high <= sizes + slack) & (high > low)).all(axis=1))


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
    images = []
    for entry in part.coco["images"]:
        record = size_of.get(entry["id"])
        size = {"width": record.width, "height": record.height} if record else {}
        images.append(entry | size)
    return part.coco | {"images": images}


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
