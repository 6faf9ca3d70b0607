"""Annotated images as the formats of a folder give them, and as COCO's dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retina_dist.base.errors import ImageError
from retina_dist.base.files import PathOrUrl
from retina_dist.base.text import pluralize, truncate
from retina_dist.data.images import image_sizes
from retina_dist.detection.readers.categories import Entry


class Box(NamedTuple):
    """An object: its class, and x1, y1, x2, y2 in pixels or in shares of the image's sides."""

    name: str
    corners: Sequence[float]
    crowd: bool = False


def with_sides(name: object, x: Any, y: Any, width: Any, height: Any) -> Box:
    """A box of its corner and its sides."""
    left = float(x)
    top = float(y)
    return Box(str(name), (left, top, left + float(width), top + float(height)))


class Item(NamedTuple):
    """An image, its boxes, and its (width, height) in pixels if the annotations have it.

    Args:
        file: as the annotations name it, then from the data set's folder.
        split: the one that the annotations name.
        without_box: how many of its shapes have none, such as points.
        listed: its name in the lists of a split.
    """

    file: str
    boxes: Sequence[Box]
    size: tuple[int, int] | None = None
    split: str | None = None
    without_box: int = 0
    listed: str = ""


class LeftOut(NamedTuple):
    """What of a data set is not read.

    Args:
        noun: what each is, "image". why: what it lacks. names: of each.
        remedy: what to do about them.
    """

    noun: str
    why: str
    names: Sequence[str]
    remedy: str

    def __str__(self) -> str:
        count = pluralize(len(self.names), self.noun)
        return f"{count} {self.why}: {truncate(self.names, 1)} ({self.remedy})"


def with_sizes(
    items: Iterable[Item], images: PathOrUrl, max_pixels: int
) -> tuple[list[Item], list[str]]:
    """The items with the sizes of the files in the folder `images`, where they have none.

    An image that cannot be read, or that has more than `max_pixels`, loses its boxes, with a
    warning: it is an error later, unless images may be missing.
    """
    sized = []
    lost = 0
    for item in items:
        try:
            if item.size is None:
                path = images / item.file
                size = image_sizes(path, max_pixels)[0]  # type: ignore[arg-type]
                item = item._replace(size=size)
        except ImageError:
            lost += len(item.boxes)
            item = item._replace(boxes=())
        sized.append(item)
    if not lost:
        return sized, []
    what = f"{pluralize(lost, 'box')} left out, of images whose size cannot be read"
    return sized, [f"{what} in {images}; restore them"]


def coco_of(items: Iterable[Item], ids: Mapping[str, int], *, shares: bool) -> Entry:
    """The items as COCO's dictionary; image ids count from 1.

    Args:
        items: one split of a data set.
        ids: of the classes of all splits, so the same for each.
        shares: corners are shares of the image's sides.
    """
    images: list[Entry] = []
    annotations: list[Entry] = []
    for number, item in enumerate(items, start=1):
        image: Entry = {"id": number, "file_name": item.file}
        width = height = 1
        if item.size:
            image |= {"width": item.size[0], "height": item.size[1]}
        if item.size and shares:
            width, height = item.size
        images.append(image)
        for name, (x1, y1, x2, y2), crowd in item.boxes:
            box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
            entry = {"image_id": number, "category_id": ids[name], "bbox": box}
            annotations.append(entry | {"iscrowd": int(crowd)})
    categories = [{"id": i, "name": name} for name, i in ids.items()]
    return {"images": images, "annotations": annotations, "categories": categories}
