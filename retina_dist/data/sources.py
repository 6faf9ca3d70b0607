"""Sources of image bytes: a local file, a file behind a URL, or a part of a larger file.

A source is a small value that can be sent to data workers; files and connections are opened in the worker. Only a
`DatasetItem` has no bytes: `read_image` asks its dataset for the pixels.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retina_dist.errors import DataError, ImageError, UserError
from retina_dist.files import Url, place, read_bytes

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 64  # images per request when many are read
PIECE = 8 * 2**20  # bytes per read of a large file


class RemoteFile(NamedTuple):
    """A file behind a URL. `version` changes with its content, as far as the folder's listing shows; "" if unknown."""

    folder: str
    name: str  # relative to the folder; separate, so that it is never parsed as part of a URL
    version: str = ""

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"


class ArchiveMember(NamedTuple):
    """A part of a file, local or behind a URL, such as the member of an uncompressed tar."""

    folder: str
    file: str
    offset: int  # bytes
    length: int
    crc32: int  # of the part
    member: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.file} (member {self.member}, {self.length} bytes from byte {self.offset})"


class PixelSource(Protocol):
    """Makes images in Python."""

    def pixels(self, number: int) -> Tensor:
        """Image `number`, uint8 [3, h, w] RGB. Raises ImageError."""


class DatasetItem(NamedTuple):
    """An image that a Python object makes; data workers get a copy of the object."""

    dataset: PixelSource
    number: int

    def __str__(self) -> str:
        return f"{self.dataset}[{self.number}]"


Source = str | Path | RemoteFile | ArchiveMember | DatasetItem  # str and Path: a local file


def as_source(source: Source) -> str | RemoteFile | ArchiveMember | DatasetItem:
    """The same source; a local path as text, which is smaller when sent to a worker."""
    return str(source) if isinstance(source, (str, Path)) else source


def is_remote(source: Source) -> bool:
    """Whether reading it waits for a network: then read several at once."""
    return isinstance(source, RemoteFile) or (
        isinstance(source, ArchiveMember) and isinstance(place(source.folder), Url)
    )


def read(source: Source) -> bytes:
    """The bytes of one image. Raises DataError as `read_all` does, and ImageError."""
    (found,) = read_all([source])
    if isinstance(found, ImageError):
        raise found
    return found


def read_all(sources: Sequence[Source]) -> list[bytes | ImageError]:
    """The bytes of each image; those in one folder behind a URL are fetched together.

    The entry of an image that is missing or damaged is an ImageError. Raises DataError if the storage cannot be reached; that is no
    reason to skip the image.
    """
    answers: dict[int, bytes | OSError] = {}
    behind: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        if isinstance(source, (RemoteFile, ArchiveMember)) and is_remote(source):
            behind.setdefault(source.folder, []).append(i)
        else:
            answers[i] = _read_local(source)
    for folder, rows in behind.items():
        parts = [_part(sources[i]) for i in rows]
        try:
            answers |= zip(rows, Url(folder).read_parts(parts), strict=True)
        except UserError as error:
            names = ", ".join(name for name, *_ in parts[:3]) + (", …" if len(parts) > 3 else "")
            raise DataError(f"{error} Requested: {names}") from error
    return [_checked(source, answers[i]) for i, source in enumerate(sources)]


def read_in_turn(sources: Iterable[Source]) -> Iterator[bytes | ImageError]:
    """As `read_all`, for any number of sources, with few in memory at a time."""
    sources = iter(sources)
    while some := list(islice(sources, AT_ONCE)):
        yield from read_all(some)


def sha256_of(path: Path) -> str:
    """SHA-256 of a local file, which may be larger than the memory."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(PIECE):
            found.update(part)
    return found.hexdigest()


def version_of(source: Source) -> tuple[object, ...] | None:
    """A key that changes whenever the content does; None if there is none."""
    if isinstance(source, DatasetItem):
        return None
    if isinstance(source, ArchiveMember):
        return tuple(source)
    if isinstance(source, RemoteFile):
        return tuple(source) if source.version else None
    try:
        found = os.stat(source)
    except OSError:
        return None
    return os.path.abspath(source), found.st_size, found.st_mtime_ns


def sizes_of(sources: Sequence[Source]) -> list[int]:
    """Bytes of each, from one listing per folder behind a URL. Raises ImageError for a missing one."""
    folders = {source.folder for source in sources if isinstance(source, RemoteFile)}
    listed = {folder: Url(folder).all_files() for folder in folders}
    return [_size(source, listed) for source in sources]


def _size(source: Source, listed: dict[str, dict[str, dict[str, Any]]]) -> int:
    if isinstance(source, ArchiveMember):
        return source.length
    try:
        if isinstance(source, RemoteFile):
            return int(listed[source.folder][source.name]["size"])
        return os.stat(str(source)).st_size
    except (KeyError, OSError) as error:
        raise ImageError(f"{source} cannot be found ({error}); check the images folder.") from error


def objects_in(folder: Url) -> dict[str, RemoteFile]:
    """Each file in a folder and its subfolders by relative name, from a single listing. Raises DataError."""
    try:
        listed = folder.all_files()
    except UserError as error:
        raise DataError(str(error)) from error
    return {name: RemoteFile(str(folder), name, _version(facts)) for name, facts in listed.items()}


def _version(facts: dict[str, object]) -> str:
    """A file's ETag, or modification time, and size, as fsspec's file systems give them; "" if they give neither."""
    for key in ("etag", "ETag", "last_modified", "LastModified", "mtime", "created"):
        if facts.get(key):
            return f"{facts[key]} {facts.get('size')}"
    return ""


def _part(source: Source) -> tuple[str, int | None, int | None]:
    if isinstance(source, ArchiveMember):
        return source.file, source.offset, source.offset + source.length
    return (source.name if isinstance(source, RemoteFile) else str(source)), None, None


def _read_local(source: Source) -> bytes | OSError:
    try:
        if not isinstance(source, ArchiveMember):
            return read_bytes(Path(str(source)))
        # a pipe would wait for its writer
        descriptor = os.open(f"{source.folder}/{source.file}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, source.length, source.offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error


def _checked(source: Source, answer: bytes | OSError) -> bytes | ImageError:
    if isinstance(answer, FileNotFoundError) and not isinstance(source, ArchiveMember):
        error = ImageError(f"{source} does not exist; check the images folder, or set data.missing_images=skip.")
        error.__cause__ = answer
        return error
    if isinstance(answer, OSError):
        return ImageError(f"{source} cannot be read ({answer}); restore the file, or set data.bad_images=skip.")
    if isinstance(source, ArchiveMember) and (len(answer) != source.length or zlib.crc32(answer) != source.crc32):
        what = f"only {len(answer)} bytes are there" if len(answer) != source.length else "its CRC-32 differs"
        return ImageError(
            f"{source} is damaged: {what}; copy the shard again, write it again with retina_dist.shards, or set "
            "data.bad_images=skip."
        )
    return answer
