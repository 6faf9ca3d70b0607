"""Pascal VOC's XML, in its own folders or beside the images as LabelImg writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from retina_dist.base.errors import DataError
from retina_dist.base.files import read_bytes
from retina_dist.base.text import as_override, is_text, truncate
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.formats import FolderReader
from retina_dist.detection.readers.items import Box, Item, Items, class_names, numbered, split_of
from retina_dist.detection.readers.parsing import ENDINGS, number_in, parse_xml, reading

# In alphabetical order, as in the challenge's development kit.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
CORNERS = ("xmin", "ymin", "xmax", "ymax")
XML_FILES = ("Annotations/*.xml", "*.xml", "*/*.xml", "*/*/*.xml")


def read_voc(root: Path, split: str) -> Items:
    """The images that ImageSets/Main/SPLIT.txt lists; without lists, those in folders of `split`.

    None if only train has a list. VOC's corners are pixel numbers counted from 1, both included, so
    a box goes from xmin - 1 to xmax. Difficult objects become crowd regions: not trained on, and
    without cost in the metric, as in VOC's own. Classes are VOC's twenty, or, when any file has
    another, all names in alphabetical order. Raises DataError naming file and object.
    """
    below = sorted(root.glob("*/ImageSets/Main"))
    if below:
        place = below[0].parent.parent
        raise DataError(
            f"{root} holds a folder with ImageSets; give it: {as_override('data.root', place)}."
        )

    folder = root / "Annotations"
    paths = sorted((folder if folder.is_dir() else root).rglob("*.xml"))
    has_lists = (root / "ImageSets" / "Main").is_dir()
    if has_lists or not paths:
        images = root / "JPEGImages"
        names = _read_list(root, split)
        chosen = {root / "Annotations" / f"{name}.xml": f"{name}.jpg" for name in names}
    else:
        images = root
        chosen = _in_folders(root, paths, split)

    every = list(dict.fromkeys([*chosen, *paths]))
    read = dict(zip(every, map(_read_item, every), strict=True))
    items = []
    for path, file in chosen.items():
        item = read[path]
        named_in_xml = has_lists and item.file
        items.append(item if named_in_xml else item._replace(file=file))
    classes = class_names(read.values())
    if classes <= set(VOC_CLASSES):
        classes = set(VOC_CLASSES)
    return Items(items, numbered(classes), images)


class VocReader(FolderReader):
    """Folders of XML files, by lists in ImageSets or by the folders' names."""

    title = "Pascal VOC"
    patterns = XML_FILES
    read_items = staticmethod(read_voc)


def _in_folders(root: Path, paths: Sequence[Path], split: str) -> dict[Path, str]:
    """The files in folders of a split, and the image of each."""
    chosen = {}
    for path in paths:
        if split_of(str(path.relative_to(root))) == split:
            chosen[path] = _image_of(path, root)
    return chosen


def _read_list(root: Path, split: str) -> list[str]:
    """The names of a split's images; none for a validation split where only train has a list."""
    folder = root / "ImageSets" / "Main"
    lists = sorted(file.stem for file in folder.glob("*.txt"))
    own = [name for name in SPLITS[split] if name in lists] or [split]
    if lists and own[0] not in lists:
        if split == "val" and "train" in lists:
            return []
        has = truncate(lists)
        raise DataError(f"{folder} has {has}, not {split}; write train.txt and val.txt.")
    path = folder / f"{own[0]}.txt"
    remedy = "give data=auto, or a folder like VOC2007, with ImageSets/Main"
    with reading(path, "a list of images", remedy):
        text = read_bytes(path).decode("utf-8-sig")
    names = list(dict.fromkeys(_listed(text, root)))
    for name in names:
        if re.search(r"[/\\]|^\.\.", name) or not is_text(name):
            raise DataError(f"{path} lists {name!r}, which leaves the Annotations folder; refused.")
    return names


def _listed(text: str, root: Path) -> Iterator[str]:
    """The image of each line: the line, or its first word, as lists of one class have a
    number too.
    """
    for line in text.splitlines():
        line = line.strip()
        if line and os.path.isfile(root / "Annotations" / f"{line}.xml"):
            yield line
        elif line:
            yield line.split()[0]


def _image_of(path: Path, root: Path) -> str:
    """The image beside an XML file, or in a folder for images, relative to `root`."""
    # Annotations/train/a.xml is of images/train/a.jpg
    below = path.parent.relative_to(root).parts[1:]
    folders = [path.parent]
    folders += [root.joinpath(name, *below) for name in ("JPEGImages", "images")]
    folders += [root / "JPEGImages", root / "images", path.parent.parent / "images"]
    for folder in folders:
        for ending in ENDINGS:
            image = folder / f"{path.stem}{ending}"
            if os.path.isfile(image):
                return image.relative_to(root).as_posix()
    return path.with_suffix(".jpg").relative_to(root).as_posix()


def _read_item(path: Path) -> Item:
    """A file of VOC; its image is named as there, perhaps not at all."""
    tree = parse_xml(path, "annotation")
    boxes = []
    for number, thing in enumerate(tree.iter("object"), start=1):
        where = f"{path}: object {number}"
        name = (thing.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{where} has no name; add one.")
        corners = [number_in(thing.findtext(f"bndbox/{tag}"), where, tag) for tag in CORNERS]
        left, top, right, bottom = corners
        is_difficult = (thing.findtext("difficult") or "").strip() == "1"
        boxes.append(Box(name, (left - 1, top - 1, right, bottom), is_difficult))
    return Item(tree.findtext("filename") or "", boxes, _size_of(tree))


def _size_of(tree: Element) -> tuple[int, int] | None:
    """(width, height) in px; None for one that is not sound, which the image file then decides."""
    width = tree.findtext("size/width") or ""
    height = tree.findtext("size/height") or ""
    for text in (width, height):
        if not text.isdecimal() or len(text) >= 10 or int(text) == 0:
            return None
    return int(width), int(height)
