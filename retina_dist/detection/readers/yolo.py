"""YOLO: a text file for each image, a line `class x y width height` for each box, in shares of the
sides.

x, y is the centre. A line with more numbers is a polygon, read as its bounding box.
https://docs.ultralytics.com/datasets/detect/
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import escape, is_text, pluralize
from retina_dist.base.yaml_files import load_yaml
from retina_dist.data.images import is_image
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.categories import check_count
from retina_dist.detection.readers.formats import FolderReader, first_file
from retina_dist.detection.readers.items import Box, Item, Items, split_of
from retina_dist.detection.readers.parsing import (
    bounds_of,
    number_in,
    numbers_in,
    read_text,
    reading,
)

MAX_SHARE = 2  # of a side; a larger number is in pixels


class _Split(NamedTuple):
    """What names the images of a split: folders or lists, and the data.yaml that says so."""

    entries: list[Any]
    yaml: Path | None = None
    content: Mapping[str, Any] = {}  # of the data.yaml

    @property
    def is_everything(self) -> bool:
        """Whether it is one folder that may hold the images of other splits too."""
        return self.yaml is None and self.entries[0] in ("images", ".")


def yaml_of(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The data.yaml of a folder, under whatever name, and its content.

    It names the classes and the training images. Raises DataError.
    """
    paths = [*root.glob("*.yaml"), *root.glob("*.yml")]
    for path in sorted(paths, key=lambda path: (path.stem != "data", path)):
        with reading(path, "YAML", "correct the file"):
            content = load_yaml(path)
        if isinstance(content, dict) and "names" in content and "train" in content:
            return path, content
    return None


def read_yolo(root: Path, split: str) -> Items | None:
    """The images of a split; None for a split that is not there. Raises DataError naming file and
    line.

    Without a data.yaml: images/{train,val}, {train,val}/images or {train,val}, and the classes in
    classes.txt.
    """
    named = _find(root, split)
    if named is None:
        return None
    names = _names_of(root, named)
    files = _files_of(root, named, split)
    if split == "train" and files and not any(map(os.path.isfile, map(labels_of, files))):
        example = escape(labels_of(files[0]))
        raise DataError(f"{root}: no training image has a label file, such as {example}; add them.")

    above = Path(os.path.abspath(root))
    warnings = _warnings(root, named, files)
    if not all(file.is_relative_to(above) for file in files):  # lists may name images elsewhere
        above = Path(os.path.commonpath([file.parent for file in files]))
    has_keypoints = "kpt_shape" in named.content
    items = []
    for file in files:
        boxes = _boxes(labels_of(file), names, has_keypoints)
        items.append(Item(str(file.relative_to(above)), boxes))
    ids = dict(zip(names, range(len(names)), strict=True))
    return Items(items, ids, above, shares=True, warnings=warnings)


class YoloReader(FolderReader):
    """ultralytics' folders, with a data.yaml or without."""

    title = "YOLO"
    patterns = ("labels/*.txt", "labels/*/*.txt", "*/labels/*.txt", "classes.txt")
    read_items = staticmethod(read_yolo)

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        return cls.is_top(root) or super().claims(root)

    @classmethod
    def is_top(cls, folder: PathOrUrl) -> bool:
        return isinstance(folder, Path) and yaml_of(folder) is not None


def _find(root: Path, split: str) -> _Split | None:
    found = yaml_of(root)
    if found is not None:
        path, content = found
        for name in SPLITS[split]:
            given = content.get(name)
            if given:
                entries = given if isinstance(given, list) else [given]
                return _Split(entries, path, content)
        return None

    layouts = []
    for name in SPLITS[split]:
        layouts += [f"images/{name}", f"{name}/images", name]
    if split == "train":
        layouts += ["images", "."]  # as LabelImg writes them
    for layout in layouts:
        if (root / layout).is_dir():
            return _Split([layout])
    return None


def _files_of(root: Path, named: _Split, split: str) -> list[Path]:
    """The images of a split, each once."""
    found: dict[Path, None] = {}
    for entry in named.entries:
        for file in _images(root, named.content, entry):
            if named.is_everything and split_of(os.path.relpath(file.parent, root)) != split:
                continue
            found[file] = None
    return list(found)


def _images(root: Path, content: Mapping[str, Any], entry: object) -> Iterator[Path]:
    """The images of one entry of a split: a folder, or a list of files."""
    base = Path(str(content.get("path") or "."))
    # Roboflow writes ../train for a folder beside its data.yaml
    within = str(entry).removeprefix("../")
    tried = [root / base / str(entry), root / base.name / str(entry), root / str(entry)]
    tried.append(root / within)
    place = next(filter(os.path.exists, tried), None)
    if place is None:
        where = f"is not there, at {escape(tried[0], 200)} for one"
        shown = escape(repr(entry), 80)
        raise DataError(f"{root}: {shown} of its data.yaml {where}; correct the file.")
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            if is_image(path):
                yield Path(os.path.abspath(path))
        return
    for line in read_text(place).replace("\\", "/").splitlines():
        path = Path(os.path.abspath(place.parent / line.strip()))
        if line.strip() and path.name:
            yield path


def labels_of(image: Path) -> Path:
    """The label file of an image.

    It lies in the folder labels beside the last folder images if there is one, else beside the
    image.
    """
    parts = list(image.parts)
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        parts[last] = "labels"
    labels = Path(*parts).with_suffix(".txt")
    if os.path.isdir(labels.parent):
        return labels
    return image.with_suffix(".txt")


def _warnings(root: Path, named: _Split, files: Sequence[Path]) -> list[str]:
    warnings = []
    # a list of files may leave the images of other labels to another list
    if not any(str(entry).endswith(".txt") for entry in named.entries):
        alone = _labels_alone(files)
        if alone:
            count = pluralize(len(alone), "label file")
            warnings.append(f"{count} without an image, such as {alone[0]}")
    base = named.content.get("path")
    if base and not os.path.isdir(root / str(base)):
        away = f"path {str(base)!r} is not a folder here"
        warnings.append(f"{named.yaml}: {away}; the images are looked for below {root}")
    return warnings


def _labels_alone(images: Sequence[Path]) -> list[Path]:
    """The label files without an image in the label folders of `images`."""
    labels = {labels_of(image) for image in images}
    folders = sorted({path.parent for path in labels if "labels" in path.parts})
    alone = []
    for folder in folders:
        for path in sorted(folder.glob("*.txt")):
            if path.name != "classes.txt" and path not in labels:
                alone.append(path)
    return alone


def _boxes(path: Path, names: Sequence[str], has_keypoints: bool) -> list[Box]:
    """The boxes of a label file, of polygons their bounding boxes; keypoints follow each box."""
    if not os.path.lexists(path):
        return []  # background
    boxes = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            label, *values = line.split()
            if has_keypoints:
                values = values[:4]
            boxes.append(_box(f"{path}:{number}", label, values, names))
    return boxes


def _box(where: str, label: str, values: Sequence[str], names: Sequence[str]) -> Box:
    is_polygon = len(values) > 5
    if len(values) < 4 or (is_polygon and len(values) % 2):
        problem = f"has {len(values)} numbers after the class"
        raise DataError(f"{where} {problem}; write class x y width height.")
    index = number_in(label, where, "the class")
    if index not in range(len(names)):
        problem = f"has class {label}, but names end at {len(names) - 1}"
        raise DataError(f"{where} {problem}; correct it or add a name.")
    shares = numbers_in(values, where, "the value")
    if max(shares) > MAX_SHARE:
        problem = f"has {max(shares):g}, so it is in pixels"
        raise DataError(f"{where} {problem}; write shares of the image's sides.")

    if is_polygon:
        points = list(zip(shares[::2], shares[1::2], strict=True))
        return Box(names[int(index)], bounds_of(points))
    x, y, width, height = shares[:4]
    corners = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    return Box(names[int(index)], corners)


def _names_of(root: Path, named: _Split) -> list[str]:
    """The classes, by the data.yaml or a list beside the labels."""
    if named.yaml is not None:
        names = _checked(named.content.get("names"), named.yaml)
        count = named.content.get("nc", len(names))
        if count != len(names):
            problem = f"nc is {escape(count, 80)}, but names has {len(names)}"
            raise DataError(f"{named.yaml}: {problem}; make them equal.")
        return names
    for file in (root / "classes.txt", root / "labels" / "classes.txt", root / "obj.names"):
        if os.path.isfile(file):
            lines = read_text(file).rstrip().splitlines()
            return _checked(list(map(str.strip, lines)), file)
    unnamed = first_file(root, "*.yaml", "*.yml")
    if unnamed is not None:
        remedy = "add names: [CLASS, CLASS], and train: FOLDER"
        raise DataError(f"{unnamed} lacks names or train; {remedy}.")
    remedy = "write classes.txt with a class name a line, or give data.format=auto for others"
    raise DataError(f"{root} has neither data.yaml nor classes.txt of YOLO; {remedy}.")


def _checked(names: Any, path: Path) -> list[str]:
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        names = {}
    check_count(len(names))
    texts = list(map(str, names.values()))
    in_order = texts and list(map(str, names)) == list(map(str, range(len(texts))))
    if not in_order or len(set(texts)) < len(texts) or not all(map(is_text, texts)):
        problem = "a class name is empty, repeated or not numbered 0, 1, 2, ..."
        raise DataError(f"{path}: {problem}; correct it.")
    return texts
