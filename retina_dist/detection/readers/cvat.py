"""CVAT's own XML, "CVAT for images". https://docs.cvat.ai/docs/manual/advanced/xml_format/"""

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from retina_dist.base.errors import DataError
from retina_dist.data.parsing import bounds_of, number_in, numbers_in, parse_xml, turned_bounds
from retina_dist.data.tree import Head, Tree, split_of
from retina_dist.detection.readers.formats import FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item


class CvatReader(FolderReader):
    """CVAT's XML files, with the images anywhere in the folder.

    The split is an image's `subset`, else the one that its file's name or a folder has. Polygons,
    polylines, masks and rotated boxes are read as their bounding boxes; tags of whole images are
    not boxes, and single points are left out and counted.
    """

    title = "CVAT XML"
    endings = (".xml",)

    @classmethod
    def matches(cls, head: Head) -> bool:
        return head.keys == ("annotations",)

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        path = tree.root / file
        content = parse_xml(path, "annotations")
        if content.find("track") is not None:
            raise DataError(
                f"{path} has tracks of a video; export it from CVAT as 'CVAT for images 1.1'."
            )
        scan.names.update(label.text or "" for label in content.iterfind("meta//label/name"))
        for image in content.iterfind("image"):
            name = image.get("name") or ""
            where = f"{path}: image {name!r}"
            width = int(number_in(image.get("width"), where, "width"))
            height = int(number_in(image.get("height"), where, "height"))
            boxes, points = _boxes(image, where)
            named = split_of(image.get("subset") or "", by_word=True) or split_of(name)
            yield Item(name, boxes, (width, height), named, points)


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
        left, top, right, bottom = corners
        if not degrees:
            return corners
        return turned_bounds(corners, degrees, ((left + right) / 2, (top + bottom) / 2))

    pairs = [pair.split(",") for pair in (shape.get("points") or "").split(";")]
    columns = list(zip(*pairs, strict=False))
    if len(columns) != 2:
        raise DataError(
            f"{where} has a {shape.tag} without a box or points x,y;x,y; "
            "remove it, or export boxes."
        )
    xs = numbers_in(columns[0], where, "points")
    ys = numbers_in(columns[1], where, "points")
    return bounds_of(list(zip(xs, ys, strict=True)))


def _attributes(shape: Element, where: str, *keys: str) -> list[float]:
    return [number_in(shape.get(key), where, key) for key in keys]
