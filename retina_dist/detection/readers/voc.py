"""Pascal VOC annotations, as COCO.

A folder with ImageSets/Main/SPLIT.txt, Annotations/*.xml and JPEGImages/*.jpg.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from retina_dist.data.images import SUFFIXES
from retina_dist.errors import DataError
from retina_dist.files import read_bytes
from retina_dist.text import is_text, parse_number, truncate

# The order of the challenge's development kit, so that category ids do not depend on the file read.
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def read_voc(root: Path, split: str) -> dict[str, Any]:
    """One split as a COCO dict; images are relative to JPEGImages, ids count from 1 in the order of the list.

    VOC's corners are pixel numbers counted from 1, both included, so a box is x = xmin - 1, width = xmax - xmin + 1.
    Objects marked difficult become crowd regions, which are not trained on and cost nothing in the metric, as in VOC's
    own. Classes are VOC's twenty, or, when any file under Annotations has another, all names there in alphabetical
    order: the same for every split. Raises DataError naming file and object.
    """
    names = _read_list(root, split)
    trees = {name: _read_xml(root / "Annotations" / f"{name}.xml") for name in names}
    classes = _classes(root)
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for image_id, (name, tree) in enumerate(trees.items(), start=1):
        path = root / "Annotations" / f"{name}.xml"
        image: dict[str, Any] = {"id": image_id, "file_name": tree.findtext("filename") or f"{name}.jpg"}
        for side in ("width", "height"):
            text = tree.findtext(f"size/{side}") or ""
            if text.isdecimal() and len(text) < 10 and int(text) > 0:  # else the image says it
                image[side] = int(text)
        images.append(image)
        for number, thing in enumerate(tree.iter("object"), start=1):
            left, top, right, bottom = (_corner(thing, tag, path, number) for tag in ("xmin", "ymin", "xmax", "ymax"))
            x, y, width, height = left - 1, top - 1, right - left + 1, bottom - top + 1
            boxes.append(
                {
                    "id": len(boxes) + 1,
                    "image_id": image_id,
                    "category_id": classes[_class_name(thing, path, number)],
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": int((thing.findtext("difficult") or "0").strip() == "1"),
                }
            )
    return {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": i, "name": name} for name, i in classes.items()],
    }


def _read_list(root: Path, split: str) -> list[str]:
    path = root / "ImageSets" / "Main" / f"{split}.txt"
    others = sorted(file.stem for file in path.parent.glob("*.txt"))
    if others and split not in others:
        raise DataError(f"{path.parent} has {truncate(others)}, not {split}; write train.txt and val.txt.")
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); give a folder like VOC2007, with ImageSets/Main.") from error
    names = [line.split()[0] for line in lines if line.strip()]
    for name in names:
        if "/" in name or "\\" in name or name.startswith("..") or not is_text(name):
            raise DataError(f"{path} lists {name!r}, which leaves the Annotations folder; refused.")
        ending = Path(name).suffix
        if ending.lower() in SUFFIXES and not (root / "Annotations" / f"{name}.xml").exists():
            raise DataError(f"{path} lists {name}; write names without {ending}.")
    return list(dict.fromkeys(names))


def _read_xml(path: Path) -> ElementTree.Element:
    try:
        root = ElementTree.fromstring(read_bytes(path))
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # the last: an unknown encoding
        raise DataError(f"{path} cannot be read as an annotation ({error}); restore the file.") from error
    if root.tag != "annotation":
        raise DataError(
            f"{path} has the root element {root.tag[:80]!r}, not Pascal VOC's 'annotation'; restore the file."
        )
    return root


def _classes(root: Path) -> dict[str, int]:
    # Of all files, not of one split's: a split that happens to lack a class must not get other ids.
    names = {
        _class_name(thing, path, number)
        for path in sorted((root / "Annotations").glob("*.xml"))
        for number, thing in enumerate(_read_xml(path).iter("object"), start=1)
    }
    return {name: i for i, name in enumerate(VOC_CLASSES if names <= set(VOC_CLASSES) else sorted(names), start=1)}


def _class_name(thing: ElementTree.Element, path: Path, number: int) -> str:
    name = (thing.findtext("name") or "").strip()
    if not name:
        raise DataError(f"{path}: object {number} has no name; add one.")
    return name


def _corner(thing: ElementTree.Element, tag: str, path: Path, number: int) -> float:
    text = thing.findtext(f"bndbox/{tag}")
    value = parse_number(text or "")
    if not math.isfinite(value):
        raise DataError(
            f"{path}: object {number} has {tag} {text!r}, not a number; give its bndbox xmin, ymin, xmax and ymax in pixels."
        )
    return value
