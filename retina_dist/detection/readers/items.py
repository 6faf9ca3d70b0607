"""Annotated images as every format gives them, and as COCO's dictionary."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

from retina_dist.base.errors import DataError, ImageError, UserError, first_line
from retina_dist.base.files import PathOrUrl, read_bytes
from retina_dist.base.text import parse_number, pluralize
from retina_dist.data.images import MAX_PIXELS, SUFFIXES, image_sizes
from retina_dist.data.settings import SPLITS

ENDINGS = [
    case for suffix in sorted(SUFFIXES) for case in (suffix, suffix.upper())
]  # of image files
# what parsers and the look into their results raise; LookupError is of an unknown encoding too
DAMAGED = (
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    csv.Error,
    ParseError,
)


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


@dataclass
class Items:
    """One split of a data set. `ids` has the classes of all splits, so it is the same for each."""

    items: Sequence[Item]
    ids: Mapping[str, int]
    images: PathOrUrl
    shares: bool = False  # corners are shares of the image's sides
    warnings: list[str] = field(default_factory=list)

    def as_coco(self, max_pixels: int = MAX_PIXELS) -> dict[str, Any]:
        """The split as COCO's dictionary; image ids count from 1. Images of more than `max_pixels` are not opened."""
        images: list[dict[str, Any]] = []
        boxes: list[dict[str, Any]] = []
        lost = 0
        for number, item in enumerate(self.items, start=1):
            size = item.size
            if self.shares:
                try:
                    size = image_sizes(self.images / item.file, max_pixels)[0]  # type: ignore[arg-type]
                except ImageError:
                    lost += len(item.boxes)
                    size, item = (
                        None,
                        item._replace(boxes=()),
                    )  # an error later, unless images may be missing
            images.append(
                {"id": number, "file_name": item.file, **dict(zip(("width", "height"), size or ()))}
            )
            width, height = size if size and self.shares else (1, 1)
            for name, (x1, y1, x2, y2), crowd in item.boxes:
                box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
                boxes.append(
                    {
                        "image_id": number,
                        "category_id": self.ids[name],
                        "bbox": box,
                        "iscrowd": int(crowd),
                    }
                )
        if lost:
            what = pluralize(lost, "box")
            self.warnings.append(
                f"{what} left out, of images whose size cannot be read in {self.images}; restore them"
            )
        categories = [{"id": i, "name": name} for name, i in self.ids.items()]
        return {"images": images, "annotations": boxes, "categories": categories}


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


@contextmanager
def reading(
    path: object, form: str, remedy: str = "restore the file", missing: str = ""
) -> Iterator[None]:
    """Within it, an error that a damaged file causes is a DataError: `path` cannot be read as `form`, or does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; {missing or remedy}.") from error
    except UserError:
        raise
    except (*DAMAGED, OSError) as error:
        reason = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, LookupError)
            else first_line(error)
        )
        raise DataError(f"{path} cannot be read as {form} ({reason}); {remedy}.") from error


def read_text(path: PathOrUrl) -> str:
    """A text file in UTF-8, with or without a byte-order mark. Raises DataError."""
    with reading(path, "text in UTF-8", "restore the file, or save it in UTF-8"):
        return read_bytes(path).decode("utf-8-sig")


def number_in(text: str | None, where: object, what: str) -> float:
    """A finite decimal number; DataError otherwise, which says `where` it stands and `what` belongs there."""
    value = parse_number(text or "")
    if not math.isfinite(value):
        raise DataError(
            f"{where} has {what} {(text or '')[:80]!r}, not a number; correct or remove it."
        )
    return value
