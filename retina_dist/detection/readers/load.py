"""The way from what a reader has read to annotations: check, number the labels, find the images,
clean the boxes.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retina_dist.base.arguments import public
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import PathOrUrl, parse_path
from retina_dist.base.registry import lookup
from retina_dist.data.tree import Tree
from retina_dist.detection.readers.annotations import Annotations, clean
from retina_dist.detection.readers.categories import Categories, number_labels
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.formats import FileReader, Place
from retina_dist.detection.readers.ground_truth import make_ground_truth
from retina_dist.detection.readers.records import fill_sizes, find_records
from retina_dist.detection.settings import DetectionData


@public
def load_annotations(
    annotations: str | PathOrUrl,
    images: str | PathOrUrl,
    *,
    split: str = "train",
    categories: Categories | None = None,
    remedy: str = "",
    **settings: Any,
) -> Annotations:
    """Read a data set whose files are named. Each place may be a path or a URL.

    Args:
        annotations: a COCO json, a keras-retinanet CSV, or the local folder of another format.
        images: the folder that file names are relative to; for format="shards", with a COCO json,
            the one that holds the shards of `split`.
        split: the part of a folder that has several.
        categories: fixes the labels, as for `annotations_of`.
        remedy: what to do about images that are not there; by default a setting names their folder.
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
            raise DataError(
                f"{annotations} has no {split} images; give the file or folder of their boxes."
            )
        content = content._replace(remedy=content.remedy or remedy)
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

    labels, said = number_labels(truth.categories, source, categories)
    found = find_records(
        truth.images,
        content,
        missing=data.missing_images,
        bad=data.bad_images,
        max_pixels=data.max_pixels,
    )
    if len(found.records) < len(truth.images):
        truth = truth.of_images({record.image_id for record in found.records})
    if box_format == "xywh_shares":
        sized = fill_sizes(found.records, "skip", data.max_pixels).records
        truth = truth.in_pixels({r.image_id: (r.width, r.height) for r in sized})
    part = clean(truth, found.records, labels)
    part.warnings = [*warnings, *said, *content.warnings, *found.warnings]
    part.format = content.title
    part.left_out = content.left_out
    part.centred = content.centred
    part.box_format = "xyxy" if has_corners or content.has_corners else data.box_format
    return part


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
