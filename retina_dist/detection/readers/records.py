"""The images that annotations name: where each is, none outside its folder, and how large."""

import os
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.files import PathOrUrl, Url, is_packed, names_in
from retina_dist.base.text import truncate
from retina_dist.data.images import image_sizes, is_image
from retina_dist.data.sources import ImageSource, RemoteFile, read_in_turn
from retina_dist.data.tree import NEUTRAL, local_part
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.ground_truth import CocoImage

MAX_SIDE = 2**31
MAX_LOOKED_AT = 100_000  # files for one with another name, in seconds
UNREAD = re.compile(
    r"\.(heic|heif|avif|jxl|dng|cr2|nef|arw|svg|psd|dcm|nd2|czi|svs)$", re.IGNORECASE
)
PLAIN = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*")  # a path that leaves no folder


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image of a data set; width and height are those its boxes are in, in pixels."""

    image_id: int
    path: ImageSource
    file_name: str
    width: int
    height: int

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height), if known."""
        return (self.width, self.height) if self.width and self.height else None


class Found(NamedTuple):
    """The records of a split whose images can be used, and warnings about the others."""

    records: list[ImageRecord]
    warnings: list[str]


def find_records(
    images: Sequence[CocoImage], content: Content, *, missing: str, bad: str, max_pixels: int
) -> Found:
    """The record of each image whose file is there and readable, as far as that is wanted.

    Args:
        images: of a split.
        content: has their folder, or where their bytes are.
        missing: "error", "skip", or "ignore": nothing is looked for.
        bad: "error" or "skip" for a file whose size has to be read and cannot be.
        max_pixels: of a file.

    Raises DataError.
    """
    records = [make_record(image, content) for image in images]
    if missing == "ignore":
        return Found(records, [])
    by_setting = "name their folder with data.train_images=FOLDER or data.val_images=FOLDER"
    remedy = content.remedy or by_setting
    there = drop_missing(records, content.images, missing, remedy)
    sized = fill_sizes(there.records, bad, max_pixels)
    return Found(sized.records, [*there.warnings, *sized.warnings])


def make_record(image: CocoImage, content: Content) -> ImageRecord:
    """The record of an image: a file in the folder of `content`, or where that says by its id.

    Raises DataError.
    """
    images = content.images
    source = content.source
    name = image.file_name
    known = (content.sources or {}).get(image.id)
    inside: str | None = name  # of a known source it names no file
    if known is None:
        within = _within_url if isinstance(images, Url) else _within_folder
        inside = within(name, images)  # type: ignore[arg-type]
    if inside is None:
        raise DataError(
            f"{source}: image {image.id} has file_name {name[:120]!r}, which is outside {images}; "
            "write a path below that, or copy the images there by these names."
        )

    for side, value in (("width", image.width), ("height", image.height)):
        if value is not None and not 1 <= value <= MAX_SIDE:
            raise DataError(
                f"{source}: image {image.id} has {side} {value}, not a number of pixels; "
                "correct it, or leave width and height out."
            )
    path: ImageSource
    if known is not None:
        path = known
    elif isinstance(images, Path):
        path = images / inside
    else:
        path = RemoteFile(str(images), inside)
    return ImageRecord(image.id, path, name, image.width or 0, image.height or 0)


def _within_folder(name: str, images: Path) -> str | None:
    if PLAIN.fullmatch(name):
        return name
    # By the letters, links unresolved: the folder may be a link, and absolute paths, which
    # keras-retinanet's CSV files have, may lie in it.
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
    if ".." in unquote(inside).split("/"):  # a web server takes %2e%2e for ..
        return None
    return inside


def drop_missing(records: list[ImageRecord], images: PathOrUrl, policy: str, remedy: str) -> Found:
    """The records of a split whose files are there.

    Others are an error, which says the `remedy`, or with the `policy` "skip" left out with a
    warning. Behind a URL one listing of the folder gives them.
    """
    listed: Collection[str] = ()
    remote = any(isinstance(record.path, RemoteFile) for record in records)
    if remote and isinstance(images, Url):
        listed = images.all_files()
    folders: dict[str, set[str]] = {}
    missing = [record for record in records if not _is_there(record.path, listed, folders)]
    if not missing:
        return Found(records, [])

    names = truncate([record.file_name[-80:] for record in missing])
    text = f"{len(missing)} of {len(records)} images are not in {images}: {names}"
    if policy == "error":
        raise DataError(f"{text}; {_remedy_of(missing[0], images, remedy)}.")
    gone = {record.image_id for record in missing}
    kept = [record for record in records if record.image_id not in gone]
    return Found(kept, [f"{text}; left out, also of the metrics"])


def _remedy_of(missing: ImageRecord, images: PathOrUrl, otherwise: str) -> str:
    """What to do about images of which this one is missing in a folder."""
    path = missing.path
    if isinstance(path, Path) and os.path.islink(path):
        target = f"{path.name} is a link to {os.readlink(path)}, which is not there"
        return f"{target}: restore it, or leave such out with data.missing_images=skip"
    near = "" if isinstance(images, Url) else _named_alike(missing.file_name, images)
    ending = UNREAD.search(near or missing.file_name)
    if ending:
        return f"{ending[0]} is not read: convert them to .jpg beside them"
    if near:
        if Path(near).stem not in missing.file_name:
            otherwise = "give the files the names that are annotated"
        return f"there is {near}: {otherwise}"
    packed = list(filter(is_packed, names_in(images)))
    if packed:
        otherwise = f"unpack {truncate(packed, 1)} if they are in it, {otherwise}"
    return (
        f"{otherwise}, copy them there, give images and annotations the same names, or leave "
        "them out with data.missing_images=skip"
    )


def _named_alike(name: str, folder: Path) -> str:
    """An image whose name has that of a missing one in it, below a folder or, where its name says
    nothing, below the one above; "" for none among the first files.
    """
    stem = re.escape(Path(local_part(name)).stem)
    word = re.compile(rf"(?<![^\W_]){stem}(?![^\W_])", re.IGNORECASE)
    if folder.name.lower() in NEUTRAL:
        folder = folder.absolute().parent
    for near in islice(folder.rglob("*"), MAX_LOOKED_AT):
        if word.search(near.stem) and (is_image(near) or UNREAD.search(near.name)):
            return str(near)
    return ""


def _is_there(path: ImageSource, listed: Collection[str], folders: dict[str, set[str]]) -> bool:
    """Whether an image is there; `folders` gains the files of its folder, which is listed once."""
    if isinstance(path, RemoteFile):
        return path.name in listed
    if not isinstance(path, Path):
        return True
    folder, _, name = str(path).rpartition(os.sep)
    if folder not in folders:
        folders[folder] = set()
        with suppress(OSError, ValueError):  # it is not there, or may not be listed
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    folders[folder].add(entry.name)
    # of a link, or a name that a disk takes in another case; False for one that no file can have
    return name in folders[folder] or os.path.isfile(path)


def fill_sizes(records: Sequence[ImageRecord], policy: str, max_pixels: int) -> Found:
    """The records with width and height, from the files' headers where the annotations have none.

    An image that cannot be read is an error, or with the `policy` "skip" left out with a warning.
    """
    unsized = [record.path for record in records if not record.size]
    if not unsized:
        return Found(list(records), [])

    sized: list[ImageRecord] = []
    unreadable: list[str] = []
    contents = read_in_turn(path for path in unsized if not isinstance(path, Path))
    for record in records:
        try:
            if not record.size:
                shown = _size_of(record.path, contents, max_pixels)
                record = replace(record, width=shown[0], height=shown[1])
            sized.append(record)
        except ImageError as error:
            if policy == "error":
                raise DataError(
                    f"image {record.image_id} has no size in its annotations, and {error}"
                ) from error
            unreadable.append(record.file_name)
    warnings = ["some images have no size in the annotations; it was read from the files"]
    if unreadable:
        warnings.append(
            f"{len(unreadable)} of {len(records)} images cannot be read: {truncate(unreadable)}; "
            "left out, also of the metrics"
        )
    return Found(sized, warnings)


def _size_of(
    path: ImageSource, contents: Iterator[bytes | ImageError], max_pixels: int
) -> tuple[int, int]:
    """The size of an image as shown; `contents` has those that are no local files, in turn."""
    content = None if isinstance(path, Path) else next(contents)
    if isinstance(content, ImageError):
        raise content
    return image_sizes(path, max_pixels, content)[0]
