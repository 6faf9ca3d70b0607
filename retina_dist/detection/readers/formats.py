"""What a data format is: a class that recognises its files below a folder, finds a split and reads
it.

The table of formats is the family "reader" of `base.registry`, in the order of recognition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import PathOrUrl, Url, parse_path
from retina_dist.base.registry import lookup, names
from retina_dist.data.images import is_image
from retina_dist.detection.readers.categories import Entry
from retina_dist.detection.readers.ground_truth import CocoContent
from retina_dist.detection.readers.items import Items
from retina_dist.detection.readers.parsing import head_of
from retina_dist.detection.readers.records import ImageSource
from retina_dist.detection.settings import FILE_SETTINGS, DetectionData

ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")


class Place(NamedTuple):
    """Where a split lies: its annotations, a file or a folder, and the folder that image names are
    relative to.
    """

    annotations: PathOrUrl
    images: PathOrUrl
    split: str


class Content(NamedTuple):
    """A split as its reader has read it.

    Args:
        coco: the dictionary that `AnnotationReader.read` describes.
        images: the folder that its file names are relative to.
        source: what errors name, such as the annotation file; by default data.root, or `images`.
        warnings: sentences for the log.
        sources: where the bytes of each image are, by its id, if not in a file in `images`.
        remedy: where to put images that are not there; by default a setting names their folder.
        box_format: the form of each bbox, "xywh" or "xyxy"; by default data.box_format says it.
        has_corners: the annotation files hold two corners, whatever form `coco` has them in.
        title: the format's, if it was recognised.
    """

    coco: CocoContent | Entry
    images: Path | PathOrUrl | str
    source: object = None
    warnings: Sequence[str] = ()
    sources: Mapping[int, ImageSource] | None = None
    remedy: str = ""
    box_format: str | None = None
    has_corners: bool = False
    title: str = ""


class AnnotationReader(ABC):
    """Reads a data set as COCO.

    `settings` is the class's dataclass below `DetectionData`, and of an instance its values.
    """

    settings: Any = DetectionData
    title = ""
    file_settings: ClassVar[Sequence[str]] = FILE_SETTINGS  # those of them that it reads

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        """Whether the files below a folder are of this format; asked for data.format=auto."""
        return False

    @classmethod
    def is_top(cls, folder: PathOrUrl) -> bool:
        """Whether a folder is surely the data set's own: for the hint to name it, not
        one inside.
        """
        return False

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        return self.read(split) is not None

    def content(self, split: str) -> Content | None:
        """What `read` gives. Raises DataError where there is nothing to train on."""
        read = self.read(split)
        if read is not None:
            return Content(*read)
        if split == "train":
            data = self.settings
            nothing = f"data={data.name} has no images to train on"
            raise DataError(f"{nothing} in data.root={data.root}.")
        return None

    @abstractmethod
    def read(self, split: str) -> Content | tuple[Entry, Path | PathOrUrl | str] | None:
        """A COCO dictionary of "train" or "val", and the folder that its file names are relative
        to.

        The dictionary has `images` (id, file_name; width and height in px are read from the files
        where they are left out), `annotations` (image_id, category_id, bbox as [x, y, width,
        height] in px) and `categories` (id, name). None without such a split. Raises DataError.
        """


class FileReader(AnnotationReader):
    """A format of the package: finds the files of a split, by the settings or by their names."""

    def has(self, split: str) -> bool:
        return self.find(split) is not None

    def read(self, split: str) -> Content | None:
        place = self.find(split)
        if place is None:
            return None
        return self.read_place(place)

    def find(self, split: str) -> Place | None:
        """The place of "train" or "val"; None for a validation split that the settings do not name.

        Shapes are drawn first where the settings ask for them. Raises ConfigError where nothing
        names a place, and DataError where nothing is there.
        """
        from retina_dist.detection.data.synthetic import draw_data

        data: DetectionData = self.settings
        draw_data(data)
        annotations, images = data.files_of(split)
        if annotations is not None:
            file = parse_path(annotations)
            folder = parse_path(data.root) if data.root else file.parent
            place: Place | None = Place(file, folder, split)
        elif data.root is not None:
            place = self.find_in(_existing(data.root), split)
        elif split == "val":
            return None
        else:
            files = "data.train_annotations and data.train_images"
            raise ConfigError(f"data={data.name} needs data.root=FOLDER, or {files}.")
        if place is not None and images is not None:
            return place._replace(images=parse_path(images))
        return place

    @abstractmethod
    def find_in(self, root: PathOrUrl, split: str) -> Place | None:
        """The place of a split below data.root; None for a validation split that is not there."""

    @abstractmethod
    def read_place(self, place: Place) -> Content | None:
        """The split that lies there; None for one without images. Raises DataError."""


class FolderReader(FileReader):
    """A format of one local folder with everything in it, which says itself where images are."""

    file_settings = ()
    patterns: ClassVar[Sequence[str]] = ()  # of its annotation files, by which it is recognised,
    mark = b""  # and what the first of them begins with, where several formats have its ending

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        file = first_file(root, *cls.patterns) if isinstance(root, Path) else None
        return file is not None and (not cls.mark or cls.mark in head_of(file))

    @abstractmethod
    def read_items(self, root: Path, split: str) -> Items | None:
        """The images of a split and their boxes; None for one that is not there.
        Raises DataError.
        """

    def has(self, split: str) -> bool:
        return self.read(split) is not None

    def find_in(self, root: PathOrUrl, split: str) -> Place | None:
        return Place(root, root, split)

    def read_place(self, place: Place) -> Content | None:
        root = place.annotations
        if isinstance(root, Url):
            remedy = "copy it, or make shards of it"
            raise DataError(f"data.root={root}: {self.title} needs a local folder; {remedy}.")
        items = self.read_items(root, place.split)
        if place.split == "train":
            if items is None:
                raise DataError(f"{root} has no train images.")
        elif items is None or not items.items:
            return None
        content = content_of(items, root, self.settings.max_pixels)
        return content._replace(remedy="put each image where docs/data.md shows it")


class AutoReader(AnnotationReader):
    """data.format=auto: reads what it recognises."""

    def has(self, split: str) -> bool:
        return self.recognised.has(split)

    def read(self, split: str) -> Content | None:
        content = self.recognised.read(split)
        if content is None or self.settings.shapes is not None:
            return content
        return content._replace(title=self.recognised.title)

    @cached_property
    def recognised(self) -> FileReader:
        """The reader of the files that the settings name, or of those in data.root."""
        data: DetectionData = self.settings
        named = data.with_values(format=_format_of(data))
        named.check()
        reader: FileReader = lookup("reader", named.format)(named)
        return reader


def _format_of(data: DetectionData) -> str:
    place = data.train_annotations or data.val_annotations
    if place is None:
        if data.root is None or data.shapes is not None:
            return "coco"  # whose reader says what it needs
        return recognise(_existing(data.root))
    path = parse_path(place)
    if path.is_dir():
        return recognise(path)
    if path.name.lower().endswith(".csv"):
        return "csv"
    return "coco"


def _existing(root: str) -> PathOrUrl:
    path = parse_path(root)
    if isinstance(path, Path) and not path.is_dir():
        remedy = "give the one that holds the annotations"
        if path.suffix.lower() in ARCHIVES:
            remedy = "unpack it, and give the folder"
        raise DataError(f"data.root={path} is not a folder; {remedy}.")
    return path


def content_of(items: Items, source: PathOrUrl, max_pixels: int) -> Content:
    """Items, whose boxes are two corners, as COCO's dictionary."""
    if items.shares:
        items = items.sized(max_pixels)
    return Content(
        items.as_coco(),
        items.images,
        source,
        items.warnings,
        box_format="xywh",
        has_corners=True,
    )


def recognise(root: PathOrUrl) -> str:
    """The format of the annotations below a folder. Raises DataError with what was looked for."""
    for name in names("reader"):
        if lookup("reader", name).claims(root):
            return name
    titles = [lookup("reader", name).title for name in names("reader")]
    looked = ", ".join(filter(None, titles))
    hint = _hint(root) or f"looked for {looked}; docs/data.md shows their files"
    raise DataError(f"{root} has no annotations of boxes: {hint}.")


def first_file(root: Path, *patterns: str) -> Path | None:
    """By name the first file of the first pattern that has any: a disk's order is its own."""
    for pattern in patterns:
        paths = sorted(root.glob(pattern))
        if paths:
            return paths[0]
    return None


def _hint(root: PathOrUrl) -> str:
    """The content of a folder without annotations, and the remedy; "" if unknown."""
    if isinstance(root, Url):
        return ""
    archives = sorted(file.name for file in root.glob("*.zip"))
    if archives:
        return f"it holds {', '.join(archives[:3])}; unpack them"
    if any(is_image(file) for file in root.glob("train/*/*")):
        entries = "experiment=finetune_classifier, or task=classification data=folders"
        return f"it holds class folders, for a classifier; give {entries}"
    for above in root.absolute().parents[:2]:
        if any(lookup("reader", name).is_top(above) for name in names("reader")):
            return f"give the folder above, {above}"
    return ""
