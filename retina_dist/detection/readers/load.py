"""The way from what a reader has read to annotations: check, number the labels, find the images,
clean the boxes.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from retina_dist.base.arguments import public
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import PathOrUrl, parse_path
from retina_dist.base.registry import lookup
from retina_dist.data.tree import Tree
from retina_dist.detection.readers.annotations import Annotations, clean
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.formats import Content, FileReader, Place
from retina_dist.detection.readers.ground_truth import CocoImage, GroundTruth, make_ground_truth
from retina_dist.detection.readers.records import (
    Found,
    ImageRecord,
    drop_missing,
    fill_sizes,
    make_record,
)
from retina_dist.detection.settings import DetectionData


@public
def load_annotations(
    annotations: str | PathOrUrl,
    images: str | PathOrUrl,
    *,
    split: str = "train",
    categories: Categories | None = None,
    **settings: Any,
) -> Annotations:
    """Read a data set whose files are named. Each place may be a path or a URL.

    Args:
        annotations: a COCO json, a keras-retinanet CSV, or the local folder of another format.
        images: the folder that file names are relative to; for format="shards", with a COCO json,
            the one that holds the shards of `split`.
        split: the part of a folder that has several.
        categories: fixes the labels, as for `annotations_of`.
        settings: of `DetectionData`: `format` ("coco" unless given), `classes` (of a CSV, by
            default classes.csv beside it), `box_format`, `bad_images`, `max_pixels`, and
            `missing_images`, which may also be "ignore": image files are not looked for.

    Raises DataError, naming file and entry.
    """
    data = DetectionData(**{"name": "given", "format": "coco"} | settings)
    reader = lookup("reader", data.format)(data)
    if not isinstance(reader, FileReader):
        raise ConfigError(f"format={data.format} is not one of named files; give theirs.")
    tree = Tree.at(parse_path(annotations))
    folder = parse_path(images)
    within = tree if tree.root == folder and tree.is_whole else None
    place = Place(tree, within, folder, split, named=not tree.is_whole)
    with pausing_gc():
        content = reader.read_place(place)
        if content is None:
            raise DataError(f"{annotations} has no {split} images.")
        return annotations_of(content, data, categories)


def annotations_of(
    content: Content, data: DetectionData, categories: Categories | None = None
) -> Annotations:
    """The annotations of what a reader has read, as `data` says to treat them.

    Args:
        content: the split; it is not changed.
        data: how boxes are read, and what to do about images that are not there or unreadable. Such
            an image is left out of the ground truth too.
        categories: fixes the labels by their names, as a validation set takes those of training.
            `Annotations.categories` then has the ids of this file.

    Raises DataError, naming source and entry, also for a name that `categories` lack.
    """
    source = content.source
    box_format = content.box_format or data.box_format
    has_corners = box_format == "xyxy"
    truth, warnings = make_ground_truth(content.coco, source, has_corners=has_corners)

    if categories is None:
        labels = Categories.from_coco(truth.categories)
        for name, times in labels.repeated_names.items():
            warnings.append(
                f"{source}: {times} categories are named {name!r} and stay apart; "
                "rename or merge them"
            )
    else:
        labels = categories.matched(truth.categories, source)
        if categories.renumbered_by(labels):
            warnings.append(
                f"{source} gives other ids to the same category names; the names decide"
            )

    found = find_records(truth.images, content, data)
    if len(found.records) < len(truth.images):
        truth = truth.of_images({record.image_id for record in found.records})
    if box_format == "xywh_shares":
        truth = _in_pixels(truth, found.records, data.max_pixels)
    part = clean(truth, found.records, labels)
    part.warnings = [*warnings, *content.warnings, *found.warnings]
    part.format = content.title
    part.left_out = content.left_out
    part.centred = content.centred
    part.box_format = "xyxy" if has_corners or content.has_corners else data.box_format
    return part


def _in_pixels(truth: GroundTruth, records: Sequence[ImageRecord], max_pixels: int) -> GroundTruth:
    """Boxes that are shares of the sides of their images, in pixels."""
    sized = fill_sizes(records, "skip", max_pixels).records
    sides = [(record.width, record.height) for record in sized]
    rows = truth.rows_in([record.image_id for record in sized])
    boxes = truth.boxes * np.tile(np.array([*sides, (0, 0)], dtype=np.float64), 2)[rows]
    return replace(truth, boxes=boxes, areas=boxes[:, 2] * boxes[:, 3])


@contextmanager
def pausing_gc() -> Iterator[None]:
    """Within it Python looks for no cycles: millions of small values would be visited again and
    again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def find_records(images: Sequence[CocoImage], content: Content, data: DetectionData) -> Found:
    """The record of each image, as far as `data` wants its image to be there and
    readable.

    `content` has the folder of the images, or where their bytes are. Raises DataError.
    """
    folder = parse_path(content.images)
    records = [make_record(image, folder, content.source, content.sources) for image in images]
    if data.missing_images == "ignore":
        return Found(records, [])
    remedy = content.remedy
    if not remedy:
        remedy = "name their folder with data.train_images=FOLDER or data.val_images=FOLDER"
    there = drop_missing(records, folder, data.missing_images, remedy)
    sized = fill_sizes(there.records, data.bad_images, data.max_pixels)
    return Found(sized.records, [*there.warnings, *sized.warnings])
