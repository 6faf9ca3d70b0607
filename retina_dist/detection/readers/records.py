"""The images that annotations name, none outside their folder: where each is, whether it is there, how large it is."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import PathOrUrl, Url
from retina_dist.base.text import escape, truncate
from retina_dist.data.images import image_sizes
from retina_dist.data.sources import (
    ArchiveMember,
    DatasetItem,
    RemoteFile,
    objects_in,
    read_in_turn,
)

MAX_SIDE = 2**31


@dataclass(frozen=True)
class ImageRecord:
    """One image of a data set; width and height are those its boxes are in, in pixels."""

    image_id: int
    path: Path | RemoteFile | ArchiveMember | DatasetItem
    file_name: str
    width: int
    height: int

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height), if known."""
        return (self.width, self.height) if self.width and self.height else None


def make_record(
    entry: dict[str, Any],
    images: PathOrUrl,
    source: PathOrUrl,
    slices: dict[int, ArchiveMember] | None = None,
) -> ImageRecord:
    """An entry of `images` in COCO's form, read from `source`, whose file lies in the folder `images` or is one of `slices`.

    Raises DataError.
    """
    name = entry["file_name"]
    if slices is not None:  # the file's name names no file
        inside: str | None = f"(no shard holds image {entry['id']})"
    else:
        inside = (
            _within_url(name, images) if isinstance(images, Url) else _within_folder(name, images)
        )
    where = f"{source}: image {entry['id']}"
    if inside is None:
        raise DataError(
            f"{where} has file_name {name[:120]!r}, which is outside {images}; write a path below that."
        )
    size = []
    for side in ("width", "height"):
        value = entry.get(side)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_SIDE):
            raise DataError(f"{where} has {side} {escape(value, 80)}, not a number of pixels.")
        size.append(value or 0)
    path = RemoteFile(str(images), inside) if isinstance(images, Url) else images / inside
    return ImageRecord(entry["id"], (slices or {}).get(entry["id"], path), name, size[0], size[1])


def _within_folder(name: str, images: Path) -> str | None:
    # By the letters, links unresolved: the folder may be a link, and absolute paths, which keras-retinanet's CSV files
    # have, may lie in it.
    folder = os.path.join(os.path.normpath(images.absolute()), "")
    path = os.path.normpath(os.path.join(folder, name.replace("\\", "/")))
    if not os.path.join(path, "").startswith(folder) or re.match(r"[A-Za-z]:[/\\]", name):
        return None
    return path[len(folder) :]


def _within_url(name: str, images: Url) -> str | None:
    name = name.removeprefix(f"{images}/").replace("\\", "/")
    inside = posixpath.normpath(name)
    if "://" in name or inside.startswith("/") or re.match(r"[A-Za-z]:/", name):
        return None
    return (
        None if ".." in unquote(inside).split("/") else inside
    )  # a web server takes %2e%2e for ..


def drop_missing(
    records: list[ImageRecord],
    images: PathOrUrl,
    policy: str,
    warnings: list[str],
    split: str | None,
) -> list[ImageRecord]:
    """The records of a split whose files are there. Others are an error, or are left out with a warning ("skip").

    `split` is None where no setting names the folder of the images. Behind a URL one listing of the folder gives them.
    """
    remote = any(isinstance(record.path, RemoteFile) for record in records)
    listed = objects_in(images) if remote and isinstance(images, Url) else {}
    missing = [record for record in records if not _is_there(record.path, listed)]
    if not missing:
        return records
    names = truncate([record.file_name for record in missing])
    text = f"{len(missing)} of {len(records)} images are not in {images}: {names}"
    if policy == "error":
        setting = f"name their folder with data.{split}_images=FOLDER (evaluate: images=FOLDER)"
        remedy = setting if split else "put each image where docs/data.md shows it"
        raise DataError(
            f"{text}; correct the names, {remedy}, or leave them out with data.missing_images=skip."
        )
    warnings.append(f"{text}; left out, also of the metrics")
    gone = {record.image_id for record in missing}
    return [record for record in records if record.image_id not in gone]


def _is_there(
    path: Path | RemoteFile | ArchiveMember | DatasetItem, listed: Collection[str]
) -> bool:
    if isinstance(path, RemoteFile):
        return path.name in listed
    try:
        return isinstance(path, ArchiveMember) or (isinstance(path, Path) and path.is_file())
    except OSError:  # a name that is too long for any file, for one
        return False


def fill_sizes(
    records: list[ImageRecord], policy: str, max_pixels: int, warnings: list[str]
) -> list[ImageRecord]:
    """The records with width and height, from the files' headers where the annotations have none."""
    sized: list[ImageRecord] = []
    unreadable: list[str] = []
    unsized = [record.path for record in records if not record.size]
    contents = read_in_turn(path for path in unsized if not isinstance(path, Path))
    for record in records:
        if not record.size:
            content = None if isinstance(record.path, Path) else next(contents)
            try:
                if isinstance(content, ImageError):
                    raise content
                width, height = image_sizes(record.path, max_pixels, content)[0]
            except ImageError as error:
                if policy == "error":
                    raise DataError(
                        f"image {record.image_id} has no size in its annotations, and {error}"
                    ) from error
                unreadable.append(record.file_name)
                continue
            record = replace(record, width=width, height=height)
        sized.append(record)
    if unsized:
        warnings.append("some images have no size in the annotations; it was read from the files")
    if unreadable:
        bad = f"{len(unreadable)} of {len(records)} images cannot be read: {truncate(unreadable)}"
        warnings.append(f"{bad}; left out, also of the metrics")
    return sized
