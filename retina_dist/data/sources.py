"""Sources of image bytes: a local file, a file behind a URL, or a part of a larger file.

A `DatasetItem` has pixels instead.

A source is a small value that can be sent to data workers; files and connections are opened in the
worker.
"""

import hashlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from retina_dist.base.errors import ConfigError, DataError, ImageError, UserError
from retina_dist.base.files import Url, open_regular, parse_path, read_bytes
from retina_dist.base.text import truncate

AT_ONCE = 64  # images per request when many are read
THREADS = 16  # a call to a network's file system waits for it


class RemoteFile(NamedTuple):
    """A file behind a URL."""

    folder: str
    name: str  # relative to the folder; separate, so that it is never parsed as part of a URL

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
        where = f"member {self.member}, {self.length} bytes from byte {self.offset}"
        return f"{self.folder}/{self.file} ({where})"


class DatasetItem(NamedTuple):
    """An image that a Python object makes, as uint8 [3, h, w] RGB by `pixels(number)`.

    Data workers get a copy of the object.
    """

    dataset: Any
    number: int

    def __str__(self) -> str:
        return f"{self.dataset}[{self.number}]"


class ByValue:
    """Pickles an object with the classes of the main script or notebook that it needs: data workers
    do not import those.
    """

    def __init__(self, value: object, name: str) -> None:
        self.value = value
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        import cloudpickle

        try:
            content = cloudpickle.dumps(self.value)
        except Exception as error:  # whatever the dataset holds refuses in its own way
            raise ConfigError(
                f"{self.name} cannot be sent to data workers ({type(error).__name__}: {error}); "
                "open files in __getitem__ or __call__, or set data.num_workers=0."
            ) from error
        return pickle.loads, (content,)  # in the worker, of what this process has sent


# of a file: its name, first byte and the byte after the last
Part = tuple[str, int | None, int | None]
ImageSource = Path | RemoteFile | ArchiveMember | DatasetItem
Source = str | ImageSource  # str and Path: a local file


def is_remote(source: Source) -> TypeGuard[RemoteFile | ArchiveMember]:
    """Whether reading it waits for a network: then read several at once."""
    if not isinstance(source, RemoteFile | ArchiveMember):
        return False
    return isinstance(parse_path(source.folder), Url)


def read(source: Source) -> bytes:
    """The bytes of one image. Raises DataError as `read_all` does, and ImageError."""
    (content,) = read_all([source])
    if isinstance(content, ImageError):
        raise content
    return content


def read_all(sources: Sequence[Source]) -> list[bytes | ImageError]:
    """The bytes of each image, or an ImageError if it is missing or damaged.

    Those behind one URL are fetched together.

    Raises DataError if the storage cannot be reached, which does not make an image bad.
    """
    contents = {}
    remote: dict[str, dict[int, Part]] = {}  # by folder and number of the source
    for i, source in enumerate(sources):
        if is_remote(source):
            remote.setdefault(source.folder, {})[i] = _part_of(source)
        else:
            contents[i] = _read_local(source)
    for folder, parts in remote.items():
        try:
            contents |= zip(parts, Url(folder).read_parts(list(parts.values())), strict=True)
        except UserError as error:
            names = [name for name, _, _ in parts.values()]
            raise DataError(f"{error} Requested: {truncate(names)}") from error
    return [_checked(source, contents[i]) for i, source in enumerate(sources)]


def _part_of(source: RemoteFile | ArchiveMember) -> Part:
    if isinstance(source, RemoteFile):
        return source.name, None, None
    return source.file, source.offset, source.offset + source.length


def read_in_turn(sources: Iterable[Source]) -> Iterator[bytes | ImageError]:
    """As `read_all`, for any number of sources, with few in memory at a time."""
    sources = iter(sources)
    batch = list(islice(sources, AT_ONCE))
    while batch:
        yield from read_all(batch)
        batch = list(islice(sources, AT_ONCE))


def _read_local(source: Source) -> bytes | OSError:
    try:
        if not isinstance(source, ArchiveMember):
            return read_bytes(Path(str(source)))
        with open_regular(f"{source.folder}/{source.file}") as file:
            file.seek(source.offset)
            return file.read(source.length)
    except OSError as error:
        return error


def _checked(source: Source, content: bytes | OSError) -> bytes | ImageError:
    if isinstance(content, FileNotFoundError) and not isinstance(source, ArchiveMember):
        missing = ImageError(
            f"{source} does not exist; check its folder, or set data.missing_images=skip."
        )
        missing.__cause__ = content  # by which the doctor tells missing files from damaged ones
        return missing
    if isinstance(content, OSError):
        return ImageError(
            f"{source} cannot be read ({content}); restore the file, or set data.bad_images=skip."
        )
    if not isinstance(source, ArchiveMember):
        return content
    if len(content) != source.length:
        damage = f"only {len(content)} bytes are there"
    elif zlib.crc32(content) != source.crc32:
        damage = "its CRC-32 differs"
    else:
        return content
    return ImageError(
        f"{source} is damaged: {damage}; copy the shard again, or set data.bad_images=skip."
    )


def files_digest(sources: Sequence[Source]) -> str:
    """A digest of each file's size and time of change, and of a shard member's checksum.

    Files are not read. One behind a URL, and what Python makes, is not looked at.
    """
    return _digest(_stamp, sources)


def contents_digest(sources: Sequence[Source]) -> str:
    """A digest of the bytes of each local file; of others as `files_digest`."""
    return _digest(_content_stamp, sources)


def _digest(stamp: Callable[[Source], str], sources: Sequence[Source]) -> str:
    with ThreadPoolExecutor(THREADS) as pool:
        return hashlib.sha256("\n".join(pool.map(stamp, sources)).encode()).hexdigest()


def _content_stamp(source: Source) -> str:
    if is_remote(source) or isinstance(source, RemoteFile | DatasetItem):
        return _stamp(source)
    content = _read_local(source)
    if isinstance(content, OSError):
        return "absent"
    return hashlib.sha256(content).hexdigest()


def _stamp(source: Source) -> str:
    if isinstance(source, ArchiveMember):
        return f"{source.length} {source.crc32}"
    if not isinstance(source, str | Path):
        return ""
    try:
        found = os.stat(source)
    except (OSError, ValueError):
        return "absent"
    return f"{found.st_size} {found.st_mtime_ns}"
