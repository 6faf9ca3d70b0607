"""Shards: the images of a data set in a few large files.

For storage where every small file costs a request.

For each split, a folder, local or behind a URL, holds

* SPLIT-00000.tar, …: plain tar files, as WebDataset reads them, of the images, named by their ids,
* SPLIT.index.json: the length of each shard; offset, length and CRC-32 of each image,
* annotations/instances_SPLIT.json: the annotations.

The same input gives the same bytes.
"""

import io
import json
import logging
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from retina_dist.base.errors import DataError, ImageError, UserError, set_status
from retina_dist.base.files import PathOrUrl, Url, parse_path, read_bytes, write_bytes
from retina_dist.base.text import escape, pluralize
from retina_dist.data.sources import ArchiveMember, Source, read_in_turn

logger = logging.getLogger(__name__)

FORMAT = 1
# a file that is there while shards are written, and after an interruption
UNFINISHED = "shards.unfinished"
SHARD_NAME = re.compile(r"\w+-\d{5,}\.tar", re.ASCII)


Row = tuple[int, str, int, int, int]  # image id, member's name, offset, length and CRC-32


class Shard(msgspec.Struct):
    """A tar file in the index."""

    file: str
    bytes: int
    images: list[Row]


class Index(msgspec.Struct):
    """The content of SPLIT.index.json."""

    format: int
    split: str
    shards: list[Shard]


class Member(NamedTuple):
    """An image to be written into a shard."""

    image_id: int
    source: Source

    @property
    def name(self) -> str:
        """Unique among the images of a split, safe to unpack.

        The part up to the first dot is WebDataset's key.
        """
        name = str(self.source)
        if isinstance(self.source, ArchiveMember):
            name = self.source.member
        match = re.search(r"\.([A-Za-z0-9]{1,8})$", name)
        extension = match[1].lower() if match else "img"
        return f"{self.image_id:012d}.{extension}"


class ShardSplit(NamedTuple):
    """The images of a split, a function that makes its annotation file, and warnings."""

    members: Sequence[Member]
    annotations: Callable[[], Mapping[str, Any]]
    warnings: Sequence[str] = ()


def index_of(split: str) -> str:
    """Name of the index file."""
    return f"{split}.index.json"


def annotations_of(split: str) -> str:
    """Name of the annotation file."""
    return f"annotations/instances_{split}.json"


def has_shards(folder: PathOrUrl, split: str) -> bool:
    """Whether there is an index of this split."""
    return _read_index(folder, split) is not None


def read_index(folder: PathOrUrl, split: str, *, complete: bool) -> dict[int, ArchiveMember]:
    """The shard member of each image id.

    Raises DataError without shards or, if `complete`, with one missing or cut.
    """
    index = _read_index(folder, split)
    if index is None:
        raise DataError(
            f"{folder} has no {index_of(split)}; give the folder that retina_dist.shards wrote."
        )
    if complete:
        _check_lengths(folder, index.shards)
    members = {}
    for shard in index.shards:
        for image_id, name, offset, length, crc32 in shard.images:
            members[image_id] = ArchiveMember(str(folder), shard.file, offset, length, crc32, name)
    return members


def _check_lengths(folder: PathOrUrl, shards: Sequence[Shard]) -> None:
    listed: dict[str, dict[str, Any]] = {}
    if isinstance(folder, Url) and shards:
        listed = folder.all_files()
    for shard in shards:
        length: int | None = None
        path = folder / shard.file
        if shard.file in listed:
            length = int(listed[shard.file]["size"])
        elif isinstance(path, Path) and path.is_file():
            length = path.stat().st_size
        if length == shard.bytes:
            continue
        state = "is not there" if length is None else f"has {length} bytes, not {shard.bytes}"
        raise DataError(
            f"{folder}/{shard.file} {state}; "
            "copy it again, or leave its images out by data.bad_images=skip."
        )


def write_splits(
    output: str, splits: Mapping[str, ShardSplit], shard_mb: int, report: Callable[[str], object]
) -> None:
    """Write the splits to `output` and replace what an interrupted call wrote.

    Raises DataError if others are there.
    """
    folder = parse_path(output)
    interrupted = any(folder.glob(UNFINISHED))
    for split, part in splits.items():
        _clear(folder, split, interrupted)
        for text in part.warnings:
            logger.warning(f"{split}: {text}")
    write_bytes(folder / UNFINISHED, b"run the same command again\n")
    last = {}
    # train, which every training needs, is complete last
    for split, part in reversed(list(splits.items())):
        shards: list[Shard] = []
        for content, rows in _tars(part.members, shard_mb * 2**20):
            name = f"{split}-{len(shards):05d}.tar"
            set_status(f"writing {name}")
            write_bytes(folder / name, content)
            shards.append(Shard(name, len(content), rows))
        last[annotations_of(split)] = (json.dumps(part.annotations()) + "\n").encode()
        last[index_of(split)] = msgspec.json.encode(Index(FORMAT, split, shards)) + b"\n"
        size = sum(shard.bytes for shard in shards) / 2**20
        images = pluralize(len(part.members), "image")
        report(f"{split}: {images} in {pluralize(len(shards), 'shard')}, {size:.1f} MiB")
    for name, content in last.items():
        write_bytes(folder / name, content)
    (folder / UNFINISHED).unlink()


def _clear(folder: PathOrUrl, split: str, interrupted: bool) -> None:
    """Delete what an interrupted call wrote of a split.

    Raises DataError if something else is there.
    """
    found = [*folder.glob(index_of(split)), *folder.glob(f"{split}-*.tar")]
    if not interrupted:
        found += folder.glob(annotations_of(split))
        if found:
            raise DataError(f"output={folder} holds {found[0].name} already; give an empty folder.")
    for path in found:
        path.unlink()


def _tars(members: Sequence[Member], limit: int) -> Iterator[tuple[bytes, list[Row]]]:
    """Tar files of at most `limit` bytes unless a single image is larger, and what is in each."""
    buffer, archive = _new_tar()
    rows: list[Row] = []
    contents = read_in_turn(member.source for member in members)
    for member, content in zip(members, contents, strict=True):
        if isinstance(content, ImageError):
            raise content
        end = archive.offset + tarfile.BLOCKSIZE + _padded(len(content), tarfile.BLOCKSIZE)
        if rows and _padded(end + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE) > limit:
            archive.close()
            yield buffer.getvalue(), rows
            buffer, archive = _new_tar()
            rows = []
        info = tarfile.TarInfo(member.name)  # time 0, owner 0, mode 0644
        info.size = len(content)
        offset = archive.offset + tarfile.BLOCKSIZE
        crc32 = zlib.crc32(content)
        rows.append((member.image_id, member.name, offset, info.size, crc32))
        archive.addfile(info, io.BytesIO(content))
    archive.close()
    yield buffer.getvalue(), rows


def _new_tar() -> tuple[io.BytesIO, tarfile.TarFile]:
    buffer = io.BytesIO()
    return buffer, tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT)


def _read_index(folder: PathOrUrl, split: str) -> Index | None:
    """The content of the index file; None if there is none. Raises DataError if it is damaged."""
    path = folder / index_of(split)
    try:
        index = msgspec.json.decode(read_bytes(path), type=Index)
        if index.format != FORMAT:
            raise ValueError(f"it has format {index.format}, not {FORMAT}")
        if index.split != split:
            raise ValueError(f"it is of split {escape(index.split)[:80]}")
        for shard in index.shards:
            _check_shard(shard)
        return index
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError:  # of a place that cannot be reached
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not an index of shards ({error}); copy or write it again."
        ) from error


def _check_shard(shard: Shard) -> None:
    """Raise ValueError for a name that may be outside of the folder, and for images beyond the
    file's end.
    """
    if not SHARD_NAME.fullmatch(shard.file):
        raise ValueError(f"an entry is of {escape(shard.file[:80])}")
    for image_id, _, offset, length, crc32 in shard.images:
        if min(offset, length, crc32) < 0 or offset + length > shard.bytes:
            raise ValueError(f"image {image_id} reaches out of {shard.file}")


def _padded(length: int, block: int) -> int:
    return length + -length % block
