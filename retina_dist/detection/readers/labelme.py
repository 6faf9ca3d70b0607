"""LabelMe: a json beside each image, with a list of shapes. https://github.com/wkentaro/labelme"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.text import escape, pluralize
from retina_dist.detection.readers.formats import FolderReader
from retina_dist.detection.readers.items import Box, Item, Items, class_names, numbered, split_of
from retina_dist.detection.readers.parsing import bounds_of, parse_json, reading


def read_labelme(root: Path, split: str) -> Items:
    """The images of a split, by the folders that name one.

    Polygons, circles and other shapes are read as their bounding boxes. Points have no box; they
    are left out with a warning. Raises DataError naming file and shape.
    """
    items = []
    names: set[str] = set()
    points = 0
    for path in sorted(root.rglob("*.json")):
        content = parse_json(path, "LabelMe's json")
        if not isinstance(content, dict) or "shapes" not in content:
            continue
        with reading(path, "LabelMe's json"):
            item, without_box = _item(path, content, root)
        names |= class_names([item])
        if split_of(str(path.relative_to(root))) == split:
            points += without_box
            items.append(item)
    warnings = []
    if points:
        warnings.append(
            f"{root}: {pluralize(points, 'point')} of LabelMe left out, which have no box"
        )
    return Items(items, numbered(names), root, warnings=warnings)


class LabelMeReader(FolderReader):
    """LabelMe's folders of images with a json for each."""

    title = "LabelMe"
    patterns = ("*.json", "*/*.json")
    mark = b'"shapes"'
    read_items = staticmethod(read_labelme)


def _item(path: Path, content: dict[str, Any], root: Path) -> tuple[Item, int]:
    """The image of a file, and how many of its shapes are points."""
    name = content["imagePath"].replace("\\", "/")
    place = path.parent / name.rpartition("/")[2]
    if not os.path.isfile(place):
        place = path.parent / name

    size = None
    sides = [content.get(key) for key in ("imageWidth", "imageHeight")]
    if None not in sides:  # as in files of old versions
        width, height = (_pixels(path, value) for value in sides)
        size = (width, height)

    boxes = []
    shapes = content["shapes"]
    for number, shape in enumerate(shapes, start=1):
        corners = _corners(f"{path}: shape {number}", shape)
        if corners:
            boxes.append(Box(str(shape["label"]), corners))
    return Item(os.path.relpath(place, root), boxes, size), len(shapes) - len(boxes)


def _pixels(path: Path, value: Any) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{path} has the image size {value}; write a number of pixels, or null.")
    return int(value)


def _corners(where: str, shape: dict[str, Any]) -> list[float] | None:
    """The bounding box of a shape; None for a point."""
    if shape["label"] is None:
        raise DataError(f"{where} has no label; add one.")
    points = [(_coordinate(where, x), _coordinate(where, y)) for x, y in shape["points"]]
    if shape.get("shape_type") == "circle" and len(points) == 2:
        centre, edge = points
        radius = math.dist(centre, edge)
        x, y = centre
        points = [(x - radius, y - radius), (x + radius, y + radius)]
    if len(points) < 2:
        return None
    return bounds_of(points)


def _coordinate(where: str, value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        shown = escape(value, 20)
        raise DataError(f"{where} has the coordinate {shown}, not a finite number; correct it.")
    return number
