"""LabelMe: a json beside each image, with a list of shapes. https://github.com/wkentaro/labelme"""

import math
from collections.abc import Iterable
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import escape
from retina_dist.data.parsing import bounds_of, parse_json, reading
from retina_dist.data.tree import Head, Tree
from retina_dist.detection.readers.formats import FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item


class LabelMeReader(FolderReader):
    """LabelMe's folders of images with a json for each.

    Polygons, circles and other shapes are read as their bounding boxes. Points have no box; they
    are left out and counted.
    """

    title = "LabelMe"
    endings = (".json",)
    has_many = False

    @classmethod
    def matches(cls, head: Head) -> bool:
        return head.kind == "object" and head.has("shapes", "imagePath")

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        path = tree.root / file
        content = parse_json(path, "LabelMe's json")
        if not isinstance(content, dict) or "shapes" not in content:
            return
        with reading(path, "LabelMe's json"):
            yield _item(path, content)


def _item(path: PathOrUrl, content: dict[str, Any]) -> Item:
    size = None
    sides = list(map(content.get, ("imageWidth", "imageHeight")))
    if None not in sides:  # as in files of old versions
        width, height = (_pixels(path, value) for value in sides)
        size = (width, height)

    boxes = []
    shapes = content["shapes"]
    for number, shape in enumerate(shapes, start=1):
        corners = _corners(f"{path}: shape {number}", shape)
        if corners:
            boxes.append(Box(str(shape["label"]), corners))
    name = content["imagePath"].replace("\\", "/").rpartition("/")[2]
    return Item(name, boxes, size, without_box=len(shapes) - len(boxes))


def _pixels(path: PathOrUrl, value: Any) -> int:
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
