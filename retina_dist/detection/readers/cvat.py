"""CVAT's own XML, "CVAT for images". https://docs.cvat.ai/docs/manual/advanced/xml_format/"""

from __future__ import annotations

import math
import os
from pathlib import Path
from xml.etree.ElementTree import Element

from retina_dist.base.errors import DataError
from retina_dist.base.text import pluralize
from retina_dist.detection.readers.formats import FolderReader
from retina_dist.detection.readers.items import Box, Item, Items, class_names, numbered, split_of
from retina_dist.detection.readers.parsing import (
    bounds_of,
    number_in,
    numbers_in,
    parse_xml,
)
from retina_dist.detection.readers.voc import XML_FILES


def read_cvat(root: Path, split: str) -> Items:
    """The images of a split, by their `subset`, else by the folder in their name or the file's.

    Polygons, polylines, masks and rotated boxes are read as their bounding boxes; tags of whole
    images are not boxes, and single points are left out with a warning. Raises DataError naming
    file and image.
    """
    items = []
    names: set[str] = set()
    points = 0
    for path in sorted(root.rglob("*.xml")):
        tree = parse_xml(path, "annotations")
        if tree.find("track") is not None:
            remedy = "export it from CVAT as 'CVAT for images 1.1'"
            raise DataError(f"{path} has tracks of a video; {remedy}.")
        names.update(label.text or "" for label in tree.iterfind("meta//label/name"))
        for image in tree.iterfind("image"):
            item, without_box = _item(image, path, root, split)
            names |= class_names([item])
            if _split_of(image, path, root) == split:
                points += without_box
                items.append(item)
    warnings = []
    if points:
        warnings.append(f"{root}: {pluralize(points, 'point')} of CVAT left out, which have no box")
    return Items(items, numbered(names), root, warnings=warnings)


class CvatReader(FolderReader):
    """CVAT's XML files, with the images beside them or in a folder `images`."""

    title = "CVAT XML"
    patterns = XML_FILES
    mark = b"<annotations>"
    read_items = staticmethod(read_cvat)


def _split_of(image: Element, path: Path, root: Path) -> str:
    """The last to name a split decides: the XML file's folder, the file, the image's name, its
    subset.
    """
    folder = path.relative_to(root).parent
    name = image.get("name") or ""
    subset = image.get("subset") or ""
    return split_of(f"{folder}/{path.stem}/{name}/{subset}")


def _item(image: Element, path: Path, root: Path, split: str) -> tuple[Item, int]:
    """An image with its boxes, and how many of its shapes are single points."""
    name = image.get("name") or ""
    where = f"{path}: image {name!r}"
    width = int(number_in(image.get("width"), where, "width"))
    height = int(number_in(image.get("height"), where, "height"))
    boxes, points = _boxes(image, where)

    of_split = image.get("subset") or split
    place = root / name
    for folder in (
        path.parent,
        path.parent / "images",
        root / "images",
        root / "images" / of_split,
    ):
        if os.path.isfile(folder / name):
            place = folder / name
            break
    return Item(str(place).removeprefix(f"{root}/"), boxes, (width, height)), points


def _boxes(image: Element, where: str) -> tuple[list[Box], int]:
    """The boxes of an image, and the number of its shapes that are single points."""
    boxes = []
    points = 0
    for shape in image:
        label = shape.get("label")
        if not label or shape.tag == "tag":
            continue
        if shape.tag == "points" and ";" not in (shape.get("points") or ""):
            points += 1
        else:
            boxes.append(Box(label, _corners(shape, where)))
    return boxes, points


def _corners(shape: Element, where: str) -> list[float]:
    if shape.tag == "mask":
        left, top, width, height = _attributes(shape, where, "left", "top", "width", "height")
        return [left, top, left + width, top + height]
    if shape.tag == "box":
        corners = _attributes(shape, where, "xtl", "ytl", "xbr", "ybr")
        degrees = number_in(shape.get("rotation") or "0", where, "rotation")
        return _turned(corners, math.radians(degrees))

    pairs = [pair.split(",") for pair in (shape.get("points") or "").split(";")]
    columns = list(zip(*pairs, strict=False))
    if len(columns) != 2:
        problem = f"has a {shape.tag} without a box or points x,y;x,y"
        raise DataError(f"{where} {problem}; remove it, or export boxes.")
    xs = numbers_in(columns[0], where, "points")
    ys = numbers_in(columns[1], where, "points")
    return bounds_of(list(zip(xs, ys, strict=True)))


def _attributes(shape: Element, where: str, *keys: str) -> list[float]:
    return [number_in(shape.get(key), where, key) for key in keys]


def _turned(corners: list[float], turn: float) -> list[float]:
    """The bounding box of a box that is turned about its centre by `turn` radians."""
    if not turn:
        return corners
    left, top, right, bottom = corners
    x = (left + right) / 2
    y = (top + bottom) / 2
    cosine = abs(math.cos(turn))
    sine = abs(math.sin(turn))
    width = ((right - left) * cosine + (bottom - top) * sine) / 2
    height = ((right - left) * sine + (bottom - top) * cosine) / 2
    return [x - width, y - height, x + width, y + height]
