"""YOLO: a text file for each image, a line `class x y width height` for each box, in shares of the
sides.

x, y is the centre. A line with more numbers is a polygon, read as its bounding box.
https://docs.ultralytics.com/datasets/detect/
"""

import math
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import escape, is_text, parse_number
from retina_dist.base.yaml_files import load_yaml
from retina_dist.data.images import ENDINGS
from retina_dist.data.parsing import bounds_of, numbers_in, read_text, reading
from retina_dist.data.settings import SPLITS
from retina_dist.data.tree import Head, Tree, grouped, split_of
from retina_dist.detection.readers.categories import check_count
from retina_dist.detection.readers.formats import FolderReader, Place, Scan
from retina_dist.detection.readers.items import Box, Item, LeftOut

MAX_SHARE = 2  # of a side; a larger number is in pixels
NAME_FILES = ("classes.txt", "labels.txt", ".names", "_darknet.labels")
ROUNDED = 0.01  # how far a point may be beside its box
CONFIG_DEPTH = 1  # folders above a data.yaml


@dataclass
class Config:
    """A data.yaml or Darknet's obj.data: its path in the tree, and its content as texts."""

    file: str
    content: Mapping[str, Any]

    def entries(self, split: str) -> list[Any]:
        """The folders and lists of a split."""
        for word in SPLITS[split]:
            given = self.content.get(word)
            if given:
                return given if isinstance(given, list) else [given]
        return []

    @property
    def base(self) -> str:
        """The folder that entries are relative to, as it is written."""
        return str(self.content.get("path") or "")


def configs_in(tree: Tree) -> list[Config]:
    """The likeliest data.yaml of a tree, under whatever name, or Darknet's obj.data, and those that
    are as likely. Raises DataError.
    """
    found: list[Config] = []
    for file in sorted(tree.ending(".yaml", ".yml", ".data"), key=_likeliest):
        if file.count("/") > CONFIG_DEPTH:
            break
        if found and _likeliest(file) != _likeliest(found[0].file):
            break
        try:
            content = _content_of(tree.root / file)
        except DataError:
            if posixpath.basename(file).startswith("data."):
                raise
            continue
        is_config = isinstance(content, dict) and "names" in content
        if is_config and any(map(content.get, ("train", "val", "test"))):
            found.append(Config(file, content))
    return found


def _content_of(path: PathOrUrl) -> Any:
    with reading(path, "YAML", "correct the file, with spaces in place of tabs"):
        if not path.name.endswith(".data"):
            return load_yaml(path, as_texts=True)
        pairs = [line.partition("=") for line in read_text(path).splitlines()]
        return {key.strip(): value.strip() for key, _, value in pairs}


def config_of(tree: Tree) -> Config | None:
    """The one that is read. Raises DataError for two data sets that are as likely."""
    configs = configs_in(tree)
    if len(configs) > 1:
        raise DataError(
            f"{tree.root} has two data sets of YOLO: {configs[0].file} and {configs[1].file}; "
            "keep one, or give the folder of one with data.root=FOLDER."
        )
    return configs[0] if configs else None


def _likeliest(file: str) -> tuple[int, bool]:
    return file.count("/"), not posixpath.basename(file).startswith("data.")


class YoloReader(FolderReader):
    """ultralytics' folders, with a data.yaml, Darknet's obj.data, or a list of the classes."""

    title = "YOLO"
    file_settings = ()
    endings = (".txt",)
    shares = True
    centred = True
    unlabelled = (
        "left out; label them, name their folder in data.yaml, or take them out of the folder"
    )

    @classmethod
    def matches(cls, head: Head) -> bool:
        if len(head.keys) < 5 or not head.keys[0].isdecimal():
            return False
        return not any(map(math.isnan, map(parse_number, head.keys)))

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        is_local = isinstance(tree.root, Path) and tree.is_whole
        return is_local and (bool(configs_in(tree)) or super().claims(tree))

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        raise NotImplementedError  # `scan` goes from the images to their labels

    def scan(self, place: Place) -> Scan:
        scan = Scan.empty()
        layout = Layout(place.tree)
        names = class_names_of(layout.tree, layout.config)
        stated = layout.config.content.get("roboflow") if layout.config else None
        if isinstance(stated, dict):
            scan.facts.update(stated)
        scan.ids.update(zip(names, range(len(names)), strict=True))
        used: set[str] = set()
        for split, images in layout.splits().items():
            for image in images:
                label = layout.label_of(image)
                lines = layout.lines_of(label) if label else ()
                boxes = [box_of(where, words, names) for where, words in lines]
                used.add(label or "")
                file = os.path.relpath(layout.root / image, layout.above)
                scan.items[split].append(Item(file, boxes, split=split))
            scan.warnings[split] += layout.warnings
            if images and split != "test" and not any(map(layout.label_of, images)):
                problem = layout.unlabelled(images[0])
                raise DataError(f"{place.tree.root}: no image of {split} {problem}.")
        layout.check_poses()
        self._above = layout.above
        if layout.above == layout.root:
            self.count_left_out(scan, place._replace(tree=layout.tree, images=layout.tree))
            self._count_labels(scan, layout.tree, used)
        return scan

    def _count_labels(self, scan: Scan, tree: Tree, used: set[str]) -> None:
        """Add the label files whose images are not there."""
        stems = set(map(_stem, tree.images))
        alone = []
        for file in tree.ending(".txt"):
            if file not in used and _stem(file) not in stems and self.matches(tree.head(file)):
                alone.append(file)
        if alone:
            remedy = "restore their images, or take them out"
            scan.left_out["train"].append(LeftOut("label file", "without an image", alone, remedy))

    def with_folder(self, root: PathOrUrl, items: list[Item]) -> tuple[PathOrUrl, list[Item]]:
        return self._above, items


def _stem(file: str) -> str:
    return posixpath.splitext(posixpath.basename(file))[0]


class Layout:
    """Where the images and labels of a YOLO folder are: paths from its root, or out of it where
    lists name images elsewhere. `above` is the folder that holds all.
    """

    def __init__(self, tree: Tree) -> None:
        self.config = config_of(tree)
        base = self.config.base if self.config is not None else ""
        if os.path.isabs(base) and os.path.isdir(base):
            tree = Tree(Path(base))
        self.tree = tree
        self.root = Path(os.path.abspath(str(tree.root)))
        self.above = self.root
        self.warnings: list[str] = []
        self.has_keypoints = self.config is not None and "kpt_shape" in self.config.content
        self.has_scores = False
        self.long_lines: list[bool] = []  # whether each may be of a pose
        self.labels: dict[str, list[str]] = {}  # by their stems, where they are apart
        self.label_folders = set(map(posixpath.dirname, tree.ending(".txt")))

    def splits(self) -> dict[str, list[str]]:
        """The images of each split. Raises DataError."""
        if self.config is not None:
            return self._named_splits(self.config)
        images = self.tree.images
        if not any(map(self.label_of, images)):
            self.labels = grouped(self.tree.ending(".txt"), _stem)
        labelled = set(map(posixpath.dirname, filter(self.label_of, images)))
        splits: dict[str, list[str]] = {}
        for image in images:
            if posixpath.dirname(image) in labelled:
                splits.setdefault(split_of(image) or "train", []).append(image)
        return splits

    def _named_splits(self, config: Config) -> dict[str, list[str]]:
        splits = {}
        for split in SPLITS:
            found: dict[str, None] = {}
            for entry in config.entries(split):
                images = self._images_of(str(entry), config)
                if images is None:
                    given = escape(repr(entry), 80)
                    where = f"{self.root / config.file} names {given} for {split}"
                    if split == "train":
                        raise DataError(
                            f"{where}, where no image is; correct the file, download or copy "
                            f"the images there, or convert them to {ENDINGS}."
                        )
                    self.warnings.append(f"{where}, where no image is; correct or remove it")
                found.update(dict.fromkeys(images or ()))
            splits[split] = list(found)
        are_named_alike = config.entries("train") == config.entries("val")
        is_of_both = splits["train"] and splits["val"]
        if is_of_both and not are_named_alike and {*splits["train"]} <= {*splits["val"]}:
            where = f"{self.root / config.file} names other folders for val than for train"
            raise DataError(f"{where}, but only the images of train are there; correct the file.")
        every = list(chain.from_iterable(splits.values()))
        folders = set(map(posixpath.dirname, every))
        if any(f"{folder}/".startswith("../") for folder in folders):
            places = map(os.path.abspath, map(self.root.joinpath, folders))
            self.above = Path(os.path.commonpath(list(places)))
        return splits

    def _images_of(self, entry: str, config: Config) -> list[str] | None:
        """The images of an entry, a folder or a list; None where neither is there."""
        start = posixpath.dirname(config.file)
        base = config.base
        if base and not (self.root / start / base).is_dir():
            away = f"{self.root / config.file}: path {base!r} is not a folder here"
            warning = f"{away}; the images are looked for below {self.root / start}"
            if warning not in self.warnings:
                self.warnings.append(warning)
        # Roboflow writes ../train for a folder beside its data.yaml, Darknet data/ before a list
        tried = [posixpath.join(base, entry), posixpath.join(posixpath.basename(base), entry)]
        tried += [entry, entry.removeprefix("../")]
        for count in (2, 1):  # and entries of another machine, such as /content/mine/train/images
            tried.append("/".join(entry.split("/")[-count:]))
        for name in tried:
            place = os.path.relpath(self.root / start / name, self.root)
            if place in self.tree.listed:
                return list(self._listed(place))
            above = "" if place == "." else f"{place}/"
            images = [image for image in self.tree.images if image.startswith(above)]
            if images:
                return images
        return None

    def _listed(self, file: str) -> Iterator[str]:
        """The images of a list."""
        for line in read_text(self.root / file).replace("\\", "/").splitlines():
            name = line.strip()
            path = os.path.relpath(self.root / posixpath.dirname(file) / name, self.root)
            if not name or path == ".":
                continue
            if path not in self.tree.listed and not os.path.isfile(self.root / path):
                path = self.tree.find(name) or path
            yield path

    def lines_of(self, label: str) -> Iterator[tuple[str, list[str]]]:
        """FILE:LINE and the words of each line of a label file; keypoints follow a box."""
        path = self.root / label
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            words = line.split()
            if self.has_keypoints:
                words = words[:5]
            elif len(words) > 6:
                self.long_lines.append(_is_pose(words))
            elif len(words) == 6 and not self.has_scores:
                self.has_scores = True
                self.warnings.append(f"{label} has a sixth number, as predictions; it is left out")
            if words:
                yield f"{path}:{number}", words

    def check_poses(self) -> None:
        """Raise DataError where most long lines are of poses, not polygons."""
        poses = sum(self.long_lines)
        if poses > len(self.long_lines) / 2:
            raise DataError(
                f"{self.tree.root} has lines of a box and its keypoints ({poses} of "
                f"{len(self.long_lines)}); add kpt_shape: [POINTS, VALUES] to a data.yaml."
            )

    def expected(self, image: str) -> str:
        """The label file of an image: in the folder labels beside the last folder images if there
        is one, else beside the image.
        """
        stem = posixpath.splitext(image)[0]
        above, images, below = f"/{stem}".rpartition("/images/")
        label = f"{above}/labels/{below}.txt"[1:]
        folder = posixpath.dirname(label)
        is_there = folder in self.label_folders or image[:3] == "../"
        return label if images and is_there else f"{stem}.txt"

    def unlabelled(self, image: str) -> str:
        """What an image lacks, and the remedy: to rename a text with its name, if there is one."""
        if not os.path.exists(self.root / image):
            return f"is there, such as {escape(image)}; copy the images beside their label files"
        remedy = "add them there, or in labels/, under the names of their images"
        word = re.compile(rf"(?<![^\W_]){re.escape(_stem(image))}(?![^\W_])", re.IGNORECASE)
        for file in self.tree.ending(".txt"):
            if word.search(_stem(file)):
                remedy = f"rename {escape(file, 80)} to it, and the others alike"
        return f"has a label file, such as {escape(self.expected(image))}; {remedy}"

    def label_of(self, image: str) -> str | None:
        """The label file of an image that has one."""
        label = self.expected(image)
        if label in self.tree.listed:
            return label
        if label[:3] == "../" and os.path.lexists(self.root / label):
            return label
        files = self.labels.get(_stem(image), ())
        if len(files) == 1:
            return files[0]
        return None


def class_names_of(tree: Tree, config: Config | None) -> list[str]:
    """The classes, by the data.yaml or a list in the tree. Raises DataError."""
    files = tree.ending(*NAME_FILES)
    if config is not None:
        path = tree.root / config.file
        given = config.content["names"]
        if not isinstance(given, str):
            names = _checked(given, path)
            count = config.content.get("nc", str(len(names)))
            if count != str(len(names)):
                problem = f"nc is {escape(count, 80)}, but names has {len(names)}"
                raise DataError(f"{path}: {problem}; make them equal.")
            return names
        files = [file for file in files if file.endswith(posixpath.basename(given))]
    if not files:
        unnamed = tree.ending(".yaml", ".yml")
        problem = f"{tree.root} has neither data.yaml nor classes.txt of YOLO"
        remedy = "write classes.txt with a class name a line, or give data.format=auto for others"
        if unnamed:
            problem = f"{tree.root / unnamed[0]} lacks names, a list, or train"
            remedy = "add names: [CLASS, CLASS], and train: FOLDER"
        raise DataError(f"{problem}; {remedy}.")
    lists = []
    for file in files:
        lines = read_text(tree.root / file).rstrip().splitlines()
        lists.append(_checked(list(map(str.strip, lines)), tree.root / file))
        if lists[-1] != lists[0]:
            raise DataError(f"{tree.root}: {files[0]} and {file} list other classes; keep one.")
    return lists[0]


def _is_pose(words: Sequence[str]) -> bool:
    """Whether a long line is a box within the image, and points within that box."""
    x, y, width, height, *rest = map(parse_number, words[1:])
    sides = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    if min(sides) < -ROUNDED or max(sides) > 1 + ROUNDED:
        return False
    is_within = partial(_is_inside, sides)
    if len(rest) % 2 == 0 and all(map(is_within, rest[::2], rest[1::2])):
        return True
    is_visible = len(rest) % 3 == 0 and set(rest[2::3]) <= {0, 1, 2}
    # 2 is no share, so no point of a polygon
    return is_visible and (2 in rest[2::3] or all(map(is_within, rest[::3], rest[1::3])))


def _is_inside(sides: Sequence[float], x: float, y: float) -> bool:
    left, top, right, bottom = sides
    across = left - ROUNDED <= x <= right + ROUNDED
    down = top - ROUNDED <= y <= bottom + ROUNDED
    return (across and down) or x == y == 0  # of one that is not marked


def box_of(where: str, words: Sequence[str], names: Sequence[str]) -> Box:
    """The box of a line, of a polygon its bounding box. Raises DataError."""
    label, *values = words
    is_polygon = len(values) > 5
    if len(values) < 4 or (is_polygon and len(values) % 2):
        problem = f"has {len(values)} numbers after the class"
        raise DataError(f"{where} {problem}; write class x y width height, with spaces.")
    index = parse_number(label)
    if math.isnan(index):
        problem = f"has the class {label[:80]!r}, not its number"
        raise DataError(f"{where} {problem}; write 0 for {names[0]}, and spaces between all.")
    if index not in range(len(names)):
        problem = f"has class {label}, but names end at {len(names) - 1}"
        raise DataError(f"{where} {problem}; count from 0, or add a name.")
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


def _checked(names: object, path: PathOrUrl) -> list[str]:
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        names = {}
    check_count(len(names))
    texts = list(map(str, names.values()))
    in_order = texts and list(map(str, names)) == list(map(str, range(len(texts))))
    if not in_order or len(set(texts)) < len(texts) or not all(map(is_text, texts)):
        raise DataError(
            f"{path}: a class name is empty, repeated or not numbered 0, 1, 2, ...; "
            "write names: [CLASS, CLASS], in the order of their numbers."
        )
    numbers = [text.partition(" ")[0] for text in texts]
    if len(texts) > 1 and numbers == list(map(str, range(len(texts)))) and numbers != texts:
        raise DataError(
            f"{path} has numbers before the names; write the names alone, in the order of their "
            "numbers."
        )
    return texts
