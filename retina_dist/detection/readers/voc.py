"""Annotations in XML: Pascal VOC's, in its own folders or beside the images as LabelImg writes them, and CVAT's."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

from retina_dist.base.errors import DataError
from retina_dist.base.files import read_bytes
from retina_dist.base.text import is_text, pluralize, truncate
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.items import (
    ENDINGS,
    Box,
    Item,
    Items,
    number_in,
    numbered,
    reading,
    split_of,
)

# The order of the challenge's development kit, so that category ids do not depend on the file read.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_voc(root: Path, split: str) -> Items:
    """The images that ImageSets/Main/SPLIT.txt lists, none if only train has a list; without lists, those in folders of `split`.

    VOC's corners are pixel numbers counted from 1, both included, so a box goes from xmin - 1 to xmax. Difficult objects become
    crowd regions: not trained on, and without cost in the metric, as in VOC's own. Classes are VOC's twenty, or, when any file
    has another, all names in alphabetical order. Raises DataError naming file and object.
    """
    if below := sorted(root.glob("*/ImageSets/Main")):
        raise DataError(
            f"{root} holds a folder with ImageSets; give it: data.root={below[0].parent.parent}."
        )
    lists = root / "ImageSets" / "Main"
    folder = root / "Annotations" if (root / "Annotations").is_dir() else root
    paths = sorted(folder.rglob("*.xml"))
    if lists.is_dir() or not paths:
        images = root / "JPEGImages"
        chosen = {
            root / "Annotations" / f"{name}.xml": f"{name}.jpg" for name in _read_list(root, split)
        }
    else:
        images = root
        chosen = {
            path: _image_of(path, root)
            for path in paths
            if split_of(str(path.relative_to(root))) == split
        }
    items = {path: _read_item(path) for path in dict.fromkeys([*chosen, *paths])}
    names = {box.name for item in items.values() for box in item.boxes}
    ids = (
        {name: i for i, name in enumerate(VOC_CLASSES, start=1)}
        if names <= set(VOC_CLASSES)
        else numbered(names)
    )
    files = {
        path: items[path].file if lists.is_dir() and items[path].file else name
        for path, name in chosen.items()
    }
    return Items([items[path]._replace(file=file) for path, file in files.items()], ids, images)


def read_cvat(root: Path, split: str) -> Items:
    """The images of a split in "CVAT for images" XML, by their `subset`, else by the folder in their name or the file's.

    Polygons, polylines, masks and rotated boxes are read as their bounding boxes; tags of whole images are not
    boxes, and single points are left out with a warning. Raises DataError naming file and image.
    """
    items, names, points = [], set(), 0
    for path in sorted(root.rglob("*.xml")):
        tree = _read_xml(path, "annotations")
        if tree.find("track") is not None:
            raise DataError(
                f"{path} has tracks of a video; export it from CVAT as 'CVAT for images 1.1'."
            )
        names |= {label.text or "" for label in tree.iterfind("meta//label/name")}
        for image in tree.iterfind("image"):
            where = f"{path}: image {image.get('name')!r}"
            width, height = (
                int(number_in(image.get(side), where, side)) for side in ("width", "height")
            )
            things = [thing for thing in image if thing.get("label") and thing.tag != "tag"]
            sized = [
                thing
                for thing in things
                if thing.tag != "points" or ";" in (thing.get("points") or "")
            ]
            boxes = [Box(thing.get("label") or "", _cvat_corners(thing, where)) for thing in sized]
            names |= {box.name for box in boxes}
            file, subset = image.get("name") or "", image.get("subset") or ""
            place = f"{path.relative_to(root).parent}/{path.stem}/{file}/{subset}"  # the last to name a split decides
            folders = [
                path.parent,
                path.parent / "images",
                root / "images",
                root / "images" / (subset or split),
            ]
            folder = next((folder for folder in folders if (folder / file).is_file()), root)
            if split_of(place) == split:
                points += len(things) - len(sized)
                items.append(
                    Item(str(folder / file).removeprefix(f"{root}/"), boxes, (width, height))
                )
    warnings = (
        [f"{root}: {pluralize(points, 'point')} of CVAT left out, which have no box"]
        if points
        else []
    )
    return Items(items, numbered(names), root, warnings=warnings)


def _cvat_corners(thing: ElementTree.Element, where: str) -> list[float]:
    def numbers(*keys: str) -> list[float]:
        return [number_in(thing.get(key), where, key) for key in keys]

    if thing.tag == "mask":
        left, top, width, height = numbers("left", "top", "width", "height")
        return [left, top, left + width, top + height]
    if thing.tag == "box":
        left, top, right, bottom = numbers("xtl", "ytl", "xbr", "ybr")
        turn = math.radians(number_in(thing.get("rotation") or "0", where, "rotation"))
        if not turn:
            return [left, top, right, bottom]
        x, y, cosine, sine = (
            (left + right) / 2,
            (top + bottom) / 2,
            abs(math.cos(turn)),
            abs(math.sin(turn)),
        )
        width = ((right - left) * cosine + (bottom - top) * sine) / 2
        height = ((right - left) * sine + (bottom - top) * cosine) / 2
        return [x - width, y - height, x + width, y + height]
    columns = list(
        zip(*(pair.split(",") for pair in (thing.get("points") or "").split(";")), strict=False)
    )
    if len(columns) != 2:
        raise DataError(
            f"{where} has a {thing.tag} without a box or points x,y;x,y; remove it, or export boxes."
        )
    xs, ys = ([number_in(value, where, "points") for value in column] for column in columns)
    return [min(xs), min(ys), max(xs), max(ys)]


def _read_list(root: Path, split: str) -> list[str]:
    folder = root / "ImageSets" / "Main"
    others = sorted(file.stem for file in folder.glob("*.txt"))
    own = next((name for name in SPLITS[split] if name in others), split)
    if split == "val" and "train" in others and own not in others:
        return []  # a validation split is optional
    if others and own not in others:
        raise DataError(
            f"{folder} has {truncate(others)}, not {split}; write train.txt and val.txt."
        )
    path = folder / f"{own}.txt"
    with reading(path, "a list of images", "give a folder like VOC2007, with ImageSets/Main"):
        lines = [
            line.strip()
            for line in read_bytes(path).decode("utf-8-sig").splitlines()
            if line.strip()
        ]
        names = [
            line if (root / "Annotations" / f"{line}.xml").is_file() else line.split()[0]
            for line in lines
        ]
    for name in names:
        if "/" in name or "\\" in name or name.startswith("..") or not is_text(name):
            raise DataError(f"{path} lists {name!r}, which leaves the Annotations folder; refused.")
    return list(dict.fromkeys(names))


def _image_of(path: Path, root: Path) -> str:
    """The image beside an XML file, or in a folder for images, relative to `root`."""
    below = path.parent.relative_to(root).parts[
        1:
    ]  # Annotations/train/a.xml is of images/train/a.jpg
    folders = [path.parent, *(root.joinpath(name, *below) for name in ("JPEGImages", "images"))]
    folders += [root / "JPEGImages", root / "images", path.parent.parent / "images"]
    candidates = (folder / f"{path.stem}{ending}" for folder in folders for ending in ENDINGS)
    image = next((image for image in candidates if image.is_file()), path.with_suffix(".jpg"))
    return image.relative_to(root).as_posix()


def _read_xml(path: Path, tag: str) -> ElementTree.Element:
    with reading(path, "an annotation"):
        root = ElementTree.fromstring(read_bytes(path))
    if root.tag != tag:
        raise DataError(
            f"{path} has the root element {root.tag[:80]!r}, not {tag!r}; restore the file."
        )
    return root


def _read_item(path: Path) -> Item:
    """A file of VOC. A size that is not sound is left to the image."""
    tree, boxes = _read_xml(path, "annotation"), []
    for number, thing in enumerate(tree.iter("object"), start=1):
        where, name = f"{path}: object {number}", (thing.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{where} has no name; add one.")
        left, top, right, bottom = (
            number_in(thing.findtext(f"bndbox/{tag}"), where, tag) for tag in CORNERS
        )
        difficult = (thing.findtext("difficult") or "").strip() == "1"
        boxes.append(Box(name, (left - 1, top - 1, right, bottom), difficult))
    sides = [tree.findtext(f"size/{side}") or "" for side in ("width", "height")]
    sound = all(text.isdecimal() and len(text) < 10 and int(text) > 0 for text in sides)
    return Item(
        tree.findtext("filename") or "", boxes, (int(sides[0]), int(sides[1])) if sound else None
    )
