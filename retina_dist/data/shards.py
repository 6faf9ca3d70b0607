"""Shards: the images of a data set in a few large files, for storage where every small file costs a request.

For each split, a folder, local or behind a URL, holds

    SPLIT-00000.tar, …                   plain tar files of the image files, named after the image ids
    SPLIT.index.json                     length of each shard; offset, length and CRC-32 of each image
    annotations/instances_SPLIT.json     the annotations

The same input gives the same bytes. tar and WebDataset read the shards sequentially; training reads images by offset, in any order.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from retina_dist.data.sources import ArchiveMember, Source, read_in_turn
from retina_dist.errors import ConfigError, DataError, ImageError, doing
from retina_dist.files import PathOrUrl, Url, parse_path, read_bytes, write_atomically, write_bytes
from retina_dist.text import escape, pluralize

logger = logging.getLogger(__name__)

FORMAT = 1
SHARD_NAME = re.compile(r"\w+-\d{5,}\.tar", re.ASCII)
MOST_MB = 1024
COMMAND = "python -m retina_dist.shards"


@dataclass(frozen=True)
class Member:
    """An image to be written into a shard."""

    image_id: int
    source: Source
    size: int  # bytes

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
    """The shard member of each image id.

    Raises DataError if there are no shards, if writing them was not finished, and, with `complete`, if one is missing or has
    another length than the index says.
    """
    index = _read_index(folder, split)
    if index is None:
        raise DataError(
            f"{folder} has no {index_of(split)}, so it holds no shards; give the folder of the shards, or write them: {COMMAND} "
            f"data=NAME data.root={folder} output=OTHER."
        )
    if not index["complete"]:
        raise DataError(f"the {split} shards in {folder} are incomplete; run the same {COMMAND} again to finish them.")
    lengths = _lengths(folder, index["shards"]) if complete else {}
    for shard in index["shards"] if complete else ():
        there = lengths.get(shard["file"])
        if there != shard["bytes"]:
            state = "is not there" if there is None else f"has {there} bytes, not {shard['bytes']}"
            raise DataError(
                f"{folder}/{shard['file']} {state}; copy it again, run the same {COMMAND} again, or train without "
                "its images (data.bad_images=skip)."
            )
    return {
        image_id: ArchiveMember(str(folder), shard["file"], offset, length, crc32, name)
        for shard in index["shards"]
        for image_id, name, offset, length, crc32 in shard["images"]
    }


def write_splits(
    output: str, splits: Mapping[str, ShardSplit], *, shard_mb: int, report: Callable[[str], object]
) -> dict[str, int]:
    """Write the splits to `output`; return how many shards of each were written, not counting those that were there."""
    if shard_mb > MOST_MB:
        raise ConfigError(f"shard_mb={shard_mb} is too large; {MOST_MB} is where larger shards gain nothing.")
    folder = parse_path(output)
    writers = {}
    for split, part in reversed(list(splits.items())):  # train, which every training needs, is complete last
        writers[split] = ShardWriter(folder, split, part.members, shard_mb * 2**20)
        for text in part.warnings:
            logger.warning(f"{split}: {text}")
    written = {}
    for split, writer in writers.items():
        written[split] = count = writer.write(splits[split].annotations())
        shards, size = len(writer.planned), sum(member.size for member in splits[split].members) / 2**20
        report(
            f"{split}: {pluralize(len(splits[split].members), 'image')} in {pluralize(shards, 'shard')}, {size:.1f} MiB; "
            + (f"{count} of {shards} shards written" if count else "all shards were there")
        )
    return written


class ShardWriter:
    """Writes the shards of one split; a second writer of the same images resumes where the first one was interrupted.

    `planned` are the images of each shard, of at most `limit` bytes unless a single image is larger. Raises DataError when the
    folder holds shards of other images, or of other sizes.
    """

    def __init__(self, folder: PathOrUrl, split: str, members: Sequence[Member], limit: int) -> None:
        self.folder, self.split = folder, split
        self.planned: list[list[Member]] = []
        length = 0
        for member in members:
            space = tarfile.BLOCKSIZE + _padded(member.size, tarfile.BLOCKSIZE)
            if not self.planned or _padded(length + space + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE) > limit:
                self.planned.append([])
                length = 0
            self.planned[-1].append(member)
            length += space
        listed = "\n".join(f"{m.image_id} {m.name} {m.size}" for m in members)
        self._input = hashlib.sha256(f"{limit}\n{listed}".encode()).hexdigest()
        before = _read_index(folder, split) or {"input": self._input, "shards": []}
        if before["input"] != self._input:
            raise DataError(
                f"output={folder} holds {split} shards of other images, or of another shard_mb; give another folder, or empty it."
            )
        self._shards: list[dict[str, Any]] = before["shards"]

    def write(self, annotations: bytes) -> int:
        """Write the missing shards, the annotations and, last, the complete index; return how many shards were written."""
        written = 0
        lengths = _lengths(self.folder, self._shards)
        for i, members in enumerate(self.planned):
            doing(f"writing {self.split}, shard {i + 1} of {len(self.planned)}")
            name = f"{self.split}-{i:05d}.tar"
            if i < len(self._shards) and lengths.get(name) == self._shards[i]["bytes"]:
                continue
            self._shards[i : i + 1] = [self._write_shard(name, members)]
            written += 1
            self._write_index(complete=False)
        write_bytes(self.folder / annotations_of(self.split), annotations)
        self._write_index(complete=True)
        return written

    def _write_shard(self, name: str, members: list[Member]) -> dict[str, Any]:
        shard: dict[str, Any] = {}
        target = self.folder / name
        if isinstance(target, Path):
            write_atomically(target, lambda temporary: shard.update(_write_tar(temporary, members)))
        else:  # first on the local disk: a shard may be larger than the memory
            with tempfile.NamedTemporaryFile(suffix=".tar") as file:
                shard = _write_tar(Path(file.name), members)
                target.upload(Path(file.name))
        return {"file": name, **shard}

    def _write_index(self, *, complete: bool) -> None:
        index = {"format": FORMAT, "split": self.split, "complete": complete, "input": self._input}
        text = json.dumps(index | {"shards": self._shards}, separators=(",", ":")) + "\n"
        write_bytes(self.folder / index_of(self.split), text.encode())


def _write_tar(path: Path, members: list[Member]) -> dict[str, Any]:
    """Write a tar file; return its length, and id, name, offset, length and CRC-32 of each member."""
    rows: list[list[Any]] = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for member, content in zip(members, read_in_turn(m.source for m in members), strict=True):
            if isinstance(content, ImageError):
                raise content
            if len(content) != member.size:
                raise DataError(
                    f"{member.source} changed while it was read; run the command again when no other process writes to it."
                )
            info = tarfile.TarInfo(member.name)  # time 0, owner 0, mode 0644
            info.size = member.size
            offset = archive.offset + tarfile.BLOCKSIZE
            archive.addfile(info, io.BytesIO(content))
            rows.append([member.image_id, member.name, offset, member.size, zlib.crc32(content)])
    return {"bytes": path.stat().st_size, "images": rows}


def _read_index(folder: PathOrUrl, split: str) -> dict[str, Any] | None:
    """The content of the index file; None if there is none. Raises DataError if it is damaged."""
    path = folder / index_of(split)
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); make it readable.") from error
    try:
        index: dict[str, Any] = json.loads(data)
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
        return {"complete": index["complete"] is True, "input": str(index["input"]), "shards": list(index["shards"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not an index of shards ({error}); copy or write it again.") from error


def _lengths(folder: PathOrUrl, shards: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of each of these shards' files that exists."""
    names = [shard["file"] for shard in shards]
    if isinstance(folder, Url):
        listed = folder.all_files() if names else {}
        return {name: int(listed[name]["size"]) for name in names if name in listed}
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block
