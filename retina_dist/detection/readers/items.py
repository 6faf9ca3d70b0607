"""Annotated images as the formats of a folder give them, and as COCO's dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from retina_dist.base.errors import ImageError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import pluralize
from retina_dist.data.images import image_sizes
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.categories import Entry


class Box(NamedTuple):
    """An object: its class, and x1, y1, x2, y2 in pixels or in shares of the image's sides."""

    name: str
    corners: Sequence[float]
    crowd: bool = False


class Item(NamedTuple):
    """An image, its boxes, and its (width, height) in pixels if the annotations have it."""

    file: str  # relative to the folder of the images
    boxes: Sequence[Box]
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Items:
    """One split of a data set. `ids` has the classes of all splits, so it is the same for each."""

    items: Sequence[Item]
    ids: Mapping[str, int]
    images: PathOrUrl
    shares: bool = False  # corners are shares of the image's sides
    warnings: list[str] = field(default_factory=list)

    def sized(self, max_pixels: int) -> Items:
        """The same with the sizes of the image files, which shares are multiplied by.

        An image that cannot be read, or that has more than `max_pixels`, loses its boxes, with a
        warning: it is an error later, unless images may be missing.
        """
        items = []
        lost = 0
        for item in self.items:
            try:
                size = image_sizes(self.images / item.file, max_pixels)[0]  # type: ignore[arg-type]
                items.append(item._replace(size=size))
            except ImageError:
                lost += len(item.boxes)
                items.append(item._replace(size=None, boxes=()))
        if not lost:
            return replace(self, items=items)

        what = f"{pluralize(lost, 'box')} left out, of images whose size cannot be read"
        warning = f"{what} in {self.images}; restore them"
        return replace(self, items=items, warnings=[*self.warnings, warning])

    def as_coco(self) -> Entry:
        """The split as COCO's dictionary; image ids count from 1."""
        images: list[Entry] = []
        annotations: list[Entry] = []
        for number, item in enumerate(self.items, start=1):
            image: Entry = {"id": number, "file_name": item.file}
            width, height = item.size or (1, 1)
            if item.size:
                image |= {"width": width, "height": height}
            images.append(image)

            if not self.shares:
                width = height = 1
            for name, (x1, y1, x2, y2), crowd in item.boxes:
                box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
                entry = {"image_id": number, "category_id": self.ids[name], "bbox": box}
                annotations.append(entry | {"iscrowd": int(crowd)})
        categories = [{"id": i, "name": name} for name, i in self.ids.items()]
        return {"images": images, "annotations": annotations, "categories": categories}


def class_names(items: Iterable[Item]) -> set[str]:
    """The classes of their boxes."""
    return {box.name for item in items for box in item.boxes}


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Ids from 1 in alphabetical order."""
    return {name: i for i, name in enumerate(sorted(set(names)), start=1)}


def split_of(path: str) -> str:
    """The split of a file by the last of its folders that names one; "train" where none does."""
    for part in reversed(PurePath(path.lower()).parts):
        for split, names in SPLITS.items():
            if part in names:
                return split
    return "train"
