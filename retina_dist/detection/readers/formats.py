"""What a data format is: a class that recognises its files in a tree and reads a split of them.

The table of formats is the family "reader" of `base.registry`, in the order of recognition.
"""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import PACKED, PathOrUrl, Url, not_a_folder, parse_path
from retina_dist.base.registry import lookup
from retina_dist.data.tree import Head, Tree, grouped, split_of
from retina_dist.detection.readers.categories import Entry
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.ground_truth import CocoContent
from retina_dist.detection.readers.items import Item, LeftOut, coco_of, with_sizes
from retina_dist.detection.settings import (
    ANNOTATION_SETTINGS,
    FILE_SETTINGS,
    IMAGE_SETTINGS,
    DetectionData,
)

UNLABELLED = "left out; give a file of this format with their boxes, or take them out of the folder"


class Place(NamedTuple):
    """Where a split lies.

    Args:
        tree: the annotation files.
        images: the tree of the images, which is `tree` for a whole folder; None: image names are
            relative to `folder`, and nothing is looked for.
        folder: of the images.
        split: its name. named: whether the settings name the files, which are all of this split.
    """

    tree: Tree
    images: Tree | None
    folder: PathOrUrl
    split: str
    named: bool

    def find(self, name: str, file: str, split: str | None) -> str | None:
        """The image that an annotation file names, if images are looked for."""
        if self.images is None:
            return None
        return self.images.find(name, file if self.images is self.tree else "", split)


class AnnotationReader(ABC):
    """Reads a data set as COCO.

    `settings` is the class's dataclass below `DetectionData`, and of an instance its values.
    """

    settings: Any = DetectionData
    title = ""
    unlabelled = UNLABELLED  # what to do with images that have no annotations
    file_settings: ClassVar[Sequence[str]] = FILE_SETTINGS  # those of them that it reads

    def __init__(self, settings: object) -> None:
        self.settings = settings

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        """Whether there are files of this format; asked for data.format=auto."""
        return False

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        return self.read(split) is not None

    def held_out(self, split: str) -> float | None:
        """The share of train that is held out for "val", where there is no such split."""
        data: DetectionData = self.settings
        if not data.val_fraction or split == "test" or self.has(data.val_split):
            return None
        return data.val_fraction

    def content(self, split: str) -> Content | None:
        """What `read` gives, with its source. Raises DataError where there is nothing to train
        on.
        """
        data = self.settings
        read = self.read(split)
        if read is not None:
            content = Content(*read)
            source = content.source or data.root or content.images
            return content._replace(images=parse_path(content.images), source=source)
        if split == "train":
            key = "train_annotations" if data.train_annotations else "root"
            raise DataError(
                f"data.{key}={getattr(data, key)} has no images to train on; {self._others()}."
            )
        return None

    def _others(self) -> str:
        """What to do without a training split."""
        for split in ("test", "val"):
            if self.has(split):
                folder = f"it has those of {split}: give a folder train, or the file"
                return f"{folder} with data.train_annotations=FILE"
        return self._without_any()

    def _without_any(self) -> str:
        """What to do without a split."""
        return "give their folder, or leave data.format and data.columns out"

    def count(self, split: str) -> int:
        """How many images there are of a split."""
        content = self.content(split)
        if content is None:
            return 0
        coco = content.coco
        return len(coco.images if isinstance(coco, CocoContent) else coco["images"])

    @abstractmethod
    def read(self, split: str) -> Content | tuple[Entry, Path | PathOrUrl | str] | None:
        """A COCO dictionary of "train", "val" or "test", and the folder that its file names are
        relative to.

        The dictionary has `images` (id, file_name; width and height in px are read from the files
        where they are left out), `annotations` (image_id, category_id, bbox as [x, y, width,
        height] in px) and `categories` (id, name). None without such a split. Raises DataError.
        """


class FileReader(AnnotationReader):
    """A format of the package: reads the files that the settings name, or those in data.root."""

    @cached_property
    def tree(self) -> Tree:
        """The files in data.root."""
        return tree_of(self.settings.root)

    def has(self, split: str) -> bool:
        place = self.place(split)
        return place is not None and self.has_in(place)

    def read(self, split: str) -> Content | None:
        place = self.place(split)
        if place is None:
            return None
        return self.read_place(place)

    def place(self, split: str) -> Place | None:
        """The place of a split; None for one that the settings do not name.

        Shapes are drawn first where the settings ask for them. Raises ConfigError where nothing
        names a place, and DataError where nothing is there.
        """
        from retina_dist.detection.data.synthetic import draw_data

        data: DetectionData = self.settings
        draw_data(data)
        annotations, images = data.files_of(split)
        if annotations is not None:
            tree = Tree.at(parse_path(annotations))
        elif data.root is not None:
            tree = self.tree
        elif split != "train":
            return None
        else:
            of_script = ""
            if data.name == "data":  # as that of a TorchDatasetConfig is called
                of_script = "; a run on Datasets of a script is resumed by that script"
            raise ConfigError(
                f"data={data.name} needs data.root=FOLDER, in Python root=FOLDER, or "
                f"data.train_annotations and data.train_images{of_script}."
            )
        within = None
        if images is not None:
            within = Tree(parse_path(images))
        elif data.root is not None:
            within = self.tree
        elif tree.is_whole:
            within = tree
        folder = (within or tree).root
        return Place(tree, within, folder, split, named=annotations is not None)

    def _others(self) -> str:
        place = self.place("train")
        if place is not None:
            place.tree.raise_damage()
        return super()._others()

    def _without_any(self) -> str:
        place = self.place("train")
        if place is None:
            return super()._without_any()
        name = _recognise(place.tree)[0]
        first = lookup("reader", name)
        if isinstance(self, first):
            return f"its {self.title} names none: copy them there, complete it, or give other data"
        return f"they are in {first.title}: give data.format={name}"

    def has_in(self, place: Place) -> bool:
        """Whether the split lies there."""
        return self.read_place(place) is not None

    @abstractmethod
    def read_place(self, place: Place) -> Content | None:
        """The split that lies there; None for one that does not. Raises DataError."""


class Scan(NamedTuple):
    """All splits of a folder, as they are read.

    Args:
        items: of each split, with files from the folder of the images.
        names: of classes. left_out: of each split.
        ids: of the classes, where the format numbers them itself.
        warnings: of each split.
        facts: on the data set: `license` and `url`.
    """

    items: dict[str, list[Item]]
    names: set[str]
    ids: dict[str, int]
    left_out: dict[str, list[LeftOut]]
    warnings: dict[str, list[str]]
    facts: dict[str, str]

    @classmethod
    def empty(cls) -> Scan:
        """With nothing in it."""
        return cls(defaultdict(list), set(), {}, defaultdict(list), defaultdict(list), {})


class FolderReader(FileReader):
    """A format whose files list images with their boxes; a class says which, and reads one.

    The split of an image is the one that its file names, by a word in its name or by its folder,
    else that of the image's folder, else "train".
    """

    file_settings: ClassVar[Sequence[str]] = (*ANNOTATION_SETTINGS, *IMAGE_SETTINGS)
    endings: ClassVar[Sequence[str]] = ()  # of annotation files
    keys: ClassVar[Sequence[str]] = ()  # that all of these have
    shares: ClassVar[bool] = False  # corners are shares of the image's sides
    centred: ClassVar[bool] = False  # x, y of a box in its files is the centre
    has_many = True  # images in a file
    is_local = True  # one file an image: too many requests for a URL

    @classmethod
    def matches(cls, head: Head) -> bool:
        """Whether a file of such an ending is of the format."""
        return head.has(*cls.keys)

    @classmethod
    def files(cls, tree: Tree) -> list[str]:
        """The annotation files."""
        return tree.select(cls.endings, cls.matches)

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        return bool(cls.files(tree))

    @abstractmethod
    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        """The images of an annotation file; `scan` takes names of classes and their ids.
        Raises DataError.
        """

    @cached_property
    def _scans(self) -> dict[object, Scan]:
        return {}

    def read_place(self, place: Place) -> Content | None:
        root = place.tree.root
        if self.is_local and isinstance(root, Url):
            raise DataError(
                f"data.root={root}: {self.title} needs a local folder; "
                "copy it, or make shards of it."
            )
        key = (place.named and place.split, place.images)
        if key not in self._scans:
            self._scans[key] = self.scan(place)
        scan = self._scans[key]
        if not scan.items[place.split]:
            return None

        folder, found = self.with_folder(place.folder, scan.items[place.split])
        warnings = scan.warnings[place.split]
        if self.shares:
            found, said = with_sizes(found, folder, self.settings.max_pixels)
            warnings = warnings + said
        names = sorted(scan.names)
        ids = scan.ids or {name: i for i, name in enumerate(names, start=1)}
        facts: Entry = {}
        if scan.facts:
            facts = {"info": scan.facts, "licenses": [{"name": scan.facts.get("license")}]}
        return Content(
            coco_of(found, ids, shares=self.shares) | facts,
            folder,
            root if len(place.tree.files) > 1 else root / place.tree.files[0],
            warnings,
            remedy="put each image where docs/data.md shows it",
            box_format="xywh",
            has_corners=True,
            centred=self.centred,
            left_out=scan.left_out[place.split],
        )

    def with_folder(self, root: PathOrUrl, items: list[Item]) -> tuple[PathOrUrl, list[Item]]:
        """The folder that the names of files are relative to, by default the root."""
        return root, items

    def scan(self, place: Place) -> Scan:
        """Read all annotation files, and find their images."""
        if not place.tree.is_whole:
            place.tree.check_content(place.tree.files[0])
        scan = Scan.empty()
        file_of: dict[tuple[str, str], str] = {}
        for file in self.files(place.tree):
            split = split_of(file, by_word=self.has_many)
            if place.named:
                split = place.split
            for item in self.items_of(place.tree, file, scan):
                item = placed(item, place, file, item.split or split)
                key = (str(item.split), item.file)
                if file_of.setdefault(key, file) != file:
                    raise DataError(
                        f"{place.folder}: {item.file} is annotated in {file_of[key]} and {file}; "
                        f"remove one, or name one with data.{item.split}_annotations=FILE."
                    )
                scan.items[key[0]].append(item)
                scan.names.update(box.name for box in item.boxes)
        self.count_left_out(scan, place)
        return scan

    def count_left_out(self, scan: Scan, place: Place) -> None:
        """Add the images without annotations and the shapes without a box."""
        for split, items in scan.items.items():
            shapes = []
            for item in items:
                shapes += [item.file] * item.without_box
            if shapes:
                remedy = f"{self.title} points and the like are not trained on"
                scan.left_out[split].append(LeftOut("shape", "without a box", shapes, remedy))
        if place.images is None or place.named:
            return
        used = [item.file for items in scan.items.values() for item in items]
        others = place.images.without(used)
        for split, names in by_split(others, scan.items).items():
            scan.left_out[split].append(
                LeftOut("image", "without annotations", names, self.unlabelled)
            )


def by_split(files: Iterable[str], splits: Iterable[str]) -> dict[str, list[str]]:
    """Files by the split that each is of, as far as it is one of `splits`, else "train"."""
    known = set(splits)

    def split_in(file: str) -> str:
        split = split_of(file)
        return split if split in known else "train"

    return grouped(files, split_in)


def placed(item: Item, place: Place, file: str, split: str | None) -> Item:
    """An item with the image that its name means, and a split."""
    found = place.find(item.file, file, split)
    if place.images is None and "/" in file:
        found = posixpath.join(posixpath.dirname(file), item.file)
    if found is None:
        return item._replace(split=split or "train")
    return item._replace(file=found, split=split or split_of(found) or "train")


class AutoReader(AnnotationReader):
    """data.format=auto: reads what it recognises."""

    def has(self, split: str) -> bool:
        return self.recognised.has(split)

    def read(self, split: str) -> Content | None:
        content = self.recognised.read(split)
        if content is None or self.settings.shapes is not None:
            return content
        warnings = list(content.warnings)
        if split == "train":
            warnings += self._others_there
        return content._replace(title=self.recognised.title, warnings=warnings)

    def _without_any(self) -> str:
        return self.recognised._without_any()

    @cached_property
    def recognised(self) -> FileReader:
        """The reader of the files that the settings name, or of those in data.root."""
        data: DetectionData = self.settings
        named = data.train_annotations or data.val_annotations
        tree = None
        formats = ["coco"]  # whose reader says what it needs
        if named is not None:
            formats = _recognise(Tree.at(parse_path(named)))
        elif data.root is not None and data.shapes is None:
            tree = tree_of(data.root)
            formats = ["csv"] if data.columns else _recognise(tree)
        self._others_there = []
        if len(formats) > 1 and not named:
            titles = ", ".join(lookup("reader", name).title for name in formats[1:])
            other = f"data.format={formats[1]} reads that instead, and data.root=FOLDER "
            other += "one folder alone"
            self._others_there = [f"{data.root} also holds {titles}; {other}"]
        settings = data.with_values(format=formats[0])
        settings.check()
        reader: FileReader = lookup("reader", formats[0])(settings)
        if tree is not None:
            reader.tree = tree
        return reader


def _recognise(tree: Tree) -> list[str]:
    from retina_dist.detection.readers.recognition import recognise

    return recognise(tree)


def tree_of(root: str) -> Tree:
    """The files in data.root. Raises DataError where it is not a folder."""
    path = parse_path(root)
    if isinstance(path, Path) and not path.is_dir():
        remedy = not_a_folder("data.root", path, "give the one that holds the annotations")
        if path.is_file() and path.suffix not in (".yaml", ".yml", *PACKED):
            remedy += f", or data.train_annotations={path}"
        raise DataError(f"data.root={path} is not a folder; {remedy}.")
    return Tree(path)
