"""YOLO: a text file for each image, a line `class x y width height` for each box, in shares of the image's sides.

x, y is the centre. A line with more numbers is a polygon, read as its bounding box. https://docs.ultralytics.com/datasets/detect/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.text import is_text, pluralize
from retina_dist.base.yaml_files import load_yaml
from retina_dist.data.images import is_image
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.items import (
    Box,
    Item,
    Items,
    number_in,
    read_text,
    reading,
    split_of,
)


def yaml_of(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The data.yaml of a folder, under whatever name, and its content, which names the classes and the training images."""
    for path in sorted(
        [*root.glob("*.yaml"), *root.glob("*.yml")], key=lambda path: (path.stem != "data", path)
    ):
        with reading(path, "YAML", "correct the file"):
            content = load_yaml(path)
        if isinstance(content, dict) and "names" in content and "train" in content:
            return path, content
    return None


def read_yolo(root: Path, split: str) -> Items | None:
    """The images of a split; None for a validation split that is not there. Raises DataError naming file and line.

    Without a data.yaml: images/{train,val}, {train,val}/images or {train,val}, and the classes in classes.txt.
    """
    path, content = yaml_of(root) or (None, {})
    given = next((content[name] for name in SPLITS[split] if content.get(name)), None)
    if path is None:
        layouts = [
            folder
            for name in SPLITS[split]
            for folder in (f"images/{name}", f"{name}/images", name)
        ]
        layouts += ["images", "."] if split == "train" else []  # as LabelImg writes them
        given = next((layout for layout in layouts if (root / layout).is_dir()), None)
    if given is None:
        return None
    names = _names(content.get("names"), path) if path else _listed_names(root)
    if content.get("nc", len(names)) != len(names):
        raise DataError(
            f"{path}: nc is {content['nc']}, but names has {len(names)}; make them equal."
        )
    entries = given if isinstance(given, list) else [given]
    files = list(dict.fromkeys(file for entry in entries for file in _images(root, content, entry)))
    above = Path(os.path.abspath(root))
    if path is None and given in (
        "images",
        ".",
    ):  # one folder of everything may hold those of the other splits
        files = [file for file in files if split_of(str(file.relative_to(above).parent)) == split]
    # a list of files may leave the images of other labels to another list
    warnings = [] if any(str(entry).endswith(".txt") for entry in entries) else _labels_alone(files)
    if (base := content.get("path")) and not (root / str(base)).is_dir():
        warnings.append(
            f"{path}: path {str(base)!r} is not a folder here; the images are looked for below {root}"
        )
    if split == "train" and files and not any(_labels_of(file).is_file() for file in files):
        raise DataError(
            f"{root}: no training image has a label file, such as {_labels_of(files[0])}; add them."
        )
    if not all(file.is_relative_to(above) for file in files):  # lists may name images elsewhere
        above = Path(os.path.commonpath([file.parent for file in files]))
    items = [
        Item(str(file.relative_to(above)), _boxes(_labels_of(file), names, "kpt_shape" in content))
        for file in files
    ]
    return Items(
        items, {name: i for i, name in enumerate(names)}, above, shares=True, warnings=warnings
    )


def _images(root: Path, content: dict[str, Any], entry: object) -> Iterator[Path]:
    """The images of one entry of a split: a folder, or a list of files."""
    base = Path(str(content.get("path") or "."))
    tried = [root / base / str(entry), root / base.name / str(entry), root / str(entry)]
    tried.append(
        root / str(entry).removeprefix("../")
    )  # as Roboflow writes folders beside its data.yaml
    place = next((path for path in tried if path.exists()), None)
    if place is None:
        raise DataError(
            f"{root}: {entry!r} of its data.yaml is not there, at {tried[0]} for one; correct the file."
        )
    if place.is_dir():
        yield from sorted(
            Path(os.path.abspath(path)) for path in place.rglob("*") if is_image(path)
        )
    else:
        for line in read_text(place).replace("\\", "/").splitlines():
            if line.strip():
                yield Path(os.path.abspath(place.parent / line.strip()))


def _labels_of(image: Path) -> Path:
    """The label file of an image: in the folder labels beside the last folder images if there is one, else beside the image."""
    parts = list(image.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    labels = Path(*parts).with_suffix(".txt")
    return labels if labels.parent.is_dir() else image.with_suffix(".txt")


def _labels_alone(images: list[Path]) -> list[str]:
    """A warning that counts the label files without an image in the label folders of `images`."""
    labels = {_labels_of(image) for image in images}
    folders = sorted({path.parent for path in labels if "labels" in path.parts})
    beside = [
        path
        for folder in folders
        for path in sorted(folder.glob("*.txt"))
        if path.name != "classes.txt"
    ]
    alone = [path for path in beside if path not in labels]
    return (
        [f"{pluralize(len(alone), 'label file')} without an image, such as {alone[0]}"]
        if alone
        else []
    )


def _boxes(path: Path, names: list[str], keypoints: bool) -> list[Box]:
    """The boxes of a label file, of polygons their bounding boxes; in a file of `keypoints` these follow each box."""
    if not path.is_file():
        return []  # background
    boxes = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where, (label, *values) = f"{path}:{number}", line.split()
        values = values[:4] if keypoints else values
        if len(values) < 4 or (len(values) > 5 and len(values) % 2):
            raise DataError(
                f"{where} has {len(values)} numbers after the class; write class x y width height."
            )
        index = number_in(label, where, "the class")
        if index not in range(len(names)):
            raise DataError(
                f"{where} has class {label}, but names end at {len(names) - 1}; correct it or add a name."
            )
        shares = [number_in(value, where, "the value") for value in values]
        if max(shares) > 2:
            raise DataError(
                f"{where} has {max(shares):g}, so it is in pixels; write shares of the image's sides."
            )
        x, y, width, height = shares[:4]
        corners = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        if len(values) > 5:
            corners = [f(shares[i::2]) for f in (min, max) for i in (0, 1)]
        boxes.append(Box(names[int(index)], corners))
    return boxes


def _names(names: Any, path: Path) -> list[str]:
    if isinstance(names, list):
        names = dict(enumerate(names))
    texts = [str(name) for name in names.values()] if isinstance(names, dict) else []
    in_order = texts and [str(key) for key in names] == [str(i) for i in range(len(texts))]
    if not in_order or len(set(texts)) < len(texts) or not all(map(is_text, texts)):
        raise DataError(
            f"{path}: a class name is empty, repeated or not numbered 0, 1, 2, ...; correct it."
        )
    return texts


def _listed_names(root: Path) -> list[str]:
    for file in (root / "classes.txt", root / "labels" / "classes.txt", root / "obj.names"):
        if file.is_file():
            return _names([line.strip() for line in read_text(file).rstrip().splitlines()], file)
    raise DataError(
        f"{root} has YOLO labels but neither data.yaml nor classes.txt; write a class name a line into it."
    )
