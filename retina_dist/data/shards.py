"""Shards: the images of a data set in a few large files, for storage where every small file costs a request.

For each split, a folder, local or behind a URL, holds

    SPLIT-00000.tar, …                   plain tar files, as WebDataset reads them, of the images, named after their ids
    SPLIT.index.json                     length of each shard; offset, length and CRC-32 of each image
    annotations/instances_SPLIT.json     the annotations

The same input gives the same bytes.
"""

from __future__ import annotations

import io
import json
import logging
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retina_dist.base.errors import DataError, ImageError, UserError, set_status
from retina_dist.base.files import PathOrUrl, Url, parse_path, read_bytes, write_bytes
from retina_dist.base.text import escape, pluralize
from retina_dist.data.sources import ArchiveMember, Source, read_in_turn

logger = logging.getLogger(__name__)

FORMAT = 1
UNFINISHED = (
    "shards.unfinished"  # a file that is there while shards are written, and after an interruption
)
SHARD_NAME = re.compile(r"\w+-\d{5,}\.tar", re.ASCII)


class Member(NamedTuple):
    """An image to be written into a shard."""

    image_id: int
    source: Source

    @property
    def name(self) -> str:
        """Unique among the images of a split, safe to unpack; the part up to the first dot is WebDataset's key."""
        name = self.source.member if isinstance(self.source, ArchiveMember) else str(self.source)
        extension = re.search(r"\.([A-Za-z0-9]{1,8})$", name)
        return f"{self.image_id:012d}.{extension[1].lower() if extension else 'img'}"


class ShardSplit(NamedTuple):
    """The images of a split, a function that makes its annotation file, and warnings."""

    members: Sequence[Member]
    annotations: Callable[[], bytes]
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


def read_index(folder: PathOrUrl, split: str, *, complete: bool = True) -> dict[int, ArchiveMember]:
    """The shard member of each image id. Raises DataError without shards or, if `complete`, with one missing or cut."""
    index = _read_index(folder, split)
    if index is None:
        raise DataError(
            f"{folder} has no {index_of(split)}; give the folder that retina_dist.shards wrote."
        )
    lengths = _lengths(folder, index["shards"]) if complete else {}
    for shard in index["shards"] if complete else ():
        name, there = shard["file"], lengths.get(shard["file"])
        if there != shard["bytes"]:
            state = "is not there" if there is None else f"has {there} bytes, not {shard['bytes']}"
            raise DataError(
                f"{folder}/{name} {state}; copy it again, or leave its images out by data.bad_images=skip."
            )
    return {
        image_id: ArchiveMember(str(folder), shard["file"], offset, length, crc32, name)
        for shard in index["shards"]
        for image_id, name, offset, length, crc32 in shard["images"]
    }


def write_splits(
    output: str, splits: Mapping[str, ShardSplit], shard_mb: int, report: Callable[[str], object]
) -> None:
    """Write the splits to `output` and replace what an interrupted call wrote. Raises DataError if others are there."""
    folder = parse_path(output)
    interrupted = any(folder.glob(UNFINISHED))
    for split, part in splits.items():
        there = [path for name in (index_of(split), f"{split}-*.tar") for path in folder.glob(name)]
        if not interrupted and (there := there + list(folder.glob(annotations_of(split)))):
            raise DataError(f"output={folder} holds {there[0].name} already; give an empty folder.")
        for path in there:
            path.unlink()
        for text in part.warnings:
            logger.warning(f"{split}: {text}")
    write_bytes(folder / UNFINISHED, b"run the same command again\n")
    last: dict[str, bytes] = {}
    for split, part in reversed(
        list(splits.items())
    ):  # train, which every training needs, is complete last
        shards: list[dict[str, Any]] = []
        for content, rows in _tars(part.members, shard_mb * 2**20):
            name = f"{split}-{len(shards):05d}.tar"
            set_status(f"writing {name}")
            write_bytes(folder / name, content)
            shards.append({"file": name, "bytes": len(content), "images": rows})
        index = {"format": FORMAT, "split": split, "shards": shards}
        last[annotations_of(split)] = part.annotations()
        last[index_of(split)] = (json.dumps(index, separators=(",", ":")) + "\n").encode()
        size = sum(shard["bytes"] for shard in shards) / 2**20
        report(
            f"{split}: {pluralize(len(part.members), 'image')} in {pluralize(len(shards), 'shard')}, {size:.1f} MiB"
        )
    for name, content in last.items():
        write_bytes(folder / name, content)
    (folder / UNFINISHED).unlink()


def _tars(members: Sequence[Member], limit: int) -> Iterator[tuple[bytes, list[list[Any]]]]:
    """Tar files of at most `limit` bytes unless a single image is larger; id, name, offset, length and CRC-32 of each image."""
    buffer, rows, archive = _new_tar()
    for member, content in zip(members, read_in_turn(m.source for m in members), strict=True):
        if isinstance(content, ImageError):
            raise content
        end = archive.offset + tarfile.BLOCKSIZE + _padded(len(content), tarfile.BLOCKSIZE)
        if rows and _padded(end + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE) > limit:
            archive.close()
            yield buffer.getvalue(), rows
            buffer, rows, archive = _new_tar()
        info = tarfile.TarInfo(member.name)  # time 0, owner 0, mode 0644
        info.size = len(content)
        rows.append(
            [
                member.image_id,
                member.name,
                archive.offset + tarfile.BLOCKSIZE,
                info.size,
                zlib.crc32(content),
            ]
        )
        archive.addfile(info, io.BytesIO(content))
    archive.close()
    yield buffer.getvalue(), rows


def _new_tar() -> tuple[io.BytesIO, list[list[Any]], tarfile.TarFile]:
    buffer = io.BytesIO()
    return buffer, [], tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT)


def _read_index(folder: PathOrUrl, split: str) -> dict[str, Any] | None:
    """The content of the index file; None if there is none. Raises DataError if it is damaged."""
    path = folder / index_of(split)
    try:
        index: dict[str, Any] = json.loads(read_bytes(path))
        if index["format"] != FORMAT:
            raise ValueError(f"it has format {index['format']}, not {FORMAT}")
        for shard in index["shards"]:
            if not SHARD_NAME.fullmatch(shard["file"]) or type(shard["bytes"]) is not int:
                raise ValueError(f"an entry is of {escape(shard['file'][:80])}")
            for row in shard["images"]:
                if [type(value) for value in row] != [int, str, int, int, int]:
                    raise ValueError(f"a row of {shard['file']} is of other types")
                if min(row[2:]) < 0 or row[2] + row[3] > shard["bytes"]:
                    raise ValueError(f"image {row[0]} reaches out of {shard['file']}")
        if index["split"] != split:
            raise ValueError(f"it is of split {escape(index['split'])[:80]}")
        return index
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError:  # of a place that cannot be reached
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not an index of shards ({error}); copy or write it again."
        ) from error


def _lengths(folder: PathOrUrl, shards: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of each of these shards' files that exists."""
    names = [shard["file"] for shard in shards]
    if isinstance(folder, Url):
        listed = folder.all_files() if names else {}
        return {name: int(listed[name]["size"]) for name in names if name in listed}
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block
