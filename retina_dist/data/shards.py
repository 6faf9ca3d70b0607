"""Shards: the images of a data set in a few large files, for storage where every small file costs a request.

For each split, a folder, local or behind a URL, holds

    SPLIT-00000.tar, …                   plain tar files of the image files, named after the image ids
    SPLIT.index.json                     length of each shard; offset, length and CRC-32 of each image
    annotations/instances_SPLIT.json     the annotations

The same input gives the same bytes. tar and WebDataset read the shards sequentially; training reads images by offset, in any order.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from retina_dist.data.sources import ArchiveMember, Source, read_in_turn
from retina_dist.errors import ConfigError, DataError, ImageError, UserError
from retina_dist.files import PathOrUrl, Url, read_bytes, write_atomically, write_bytes
from retina_dist.text import escape, pluralize

logger = logging.getLogger(__name__)

FORMAT = 1
MEMBER_NAME = re.compile(r"(\d{12,20})\.[a-z0-9]{1,8}", re.ASCII)
SHARD_NAME = re.compile(r"\w+-\d{5,}\.tar", re.ASCII)
MOST_MB = 1024
COMMAND = "python -m retina_dist.shards"

Progress = Callable[[int], object]  # called with numbers of bytes


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

    @property
    def space(self) -> int:
        """Bytes in the tar file."""
        return tarfile.BLOCKSIZE + _padded(self.size, tarfile.BLOCKSIZE)


def index_of(split: str) -> str:
    """Name of the index file."""
    return f"{split}.index.json"


def annotations_of(split: str) -> str:
    """Name of the annotation file."""
    return f"annotations/instances_{split}.json"


def has_shards(folder: PathOrUrl, split: str) -> bool:
    """Whether there is an index of this split."""
    return _raw_index(folder, split) is not None


def read_index(folder: PathOrUrl, split: str, *, complete: bool = True) -> dict[int, ArchiveMember]:
    """The shard member of each image id.

    Raises DataError if there are no shards, if writing them was not finished, and, with `complete`, if one is missing or has
    another length than the index says.
    """
    index = _raw_index(folder, split)
    if index is None:
        raise DataError(
            f"{folder} has no {index_of(split)}, so it holds no shards; give the folder of the shards, or write them: {COMMAND} "
            f"data=NAME data.root={folder} output=OTHER."
        )
    if not index["complete"]:
        raise DataError(f"the {split} shards in {folder} are incomplete; run the same {COMMAND} again to finish them.")
    if complete:
        lengths = _lengths(folder, [shard["file"] for shard in index["shards"]])
        for shard in index["shards"]:
            there = lengths.get(shard["file"])
            if there != shard["bytes"]:
                state = "is not there" if there is None else f"has {there} bytes, not {shard['bytes']}"
                raise DataError(
                    f"{folder}/{shard['file']} {state}; copy it again, run the same {COMMAND} again, or train without "
                    "its images (data.bad_images=skip)."
                )
    return {row[0]: _slice(folder, shard["file"], row) for shard in index["shards"] for row in shard["images"]}


def plan_shards(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Members in order, grouped into shards of at most `limit` bytes unless a single image is larger."""
    shards: list[list[Member]] = []
    length = 0
    for member in members:
        if not shards or _tar_length(length + member.space) > limit:
            shards.append([])
            length = 0
        shards[-1].append(member)
        length += member.space
    return shards


class ShardSplit(NamedTuple):
    """The images of a split, a function that makes its annotation file, and warnings."""

    members: Sequence[Member]
    annotations: Callable[[], bytes]
    warnings: Sequence[str] = ()


def write_splits(
    output: PathOrUrl, splits: Mapping[str, ShardSplit], *, shard_mb: int, verify: bool, report: Callable[[str], object]
) -> dict[str, int]:
    """Write the splits to `output`; return how many shards of each were written, not counting those that were there."""
    if shard_mb > MOST_MB:
        raise ConfigError(f"shard_mb={shard_mb} is too large; {MOST_MB} is where larger shards gain nothing.")
    writers = {}
    for split, part in reversed(list(splits.items())):  # train, which every training needs, is complete last
        writers[split] = ShardWriter(output, split, part.members, shard_mb * 2**20)
        for text in part.warnings:
            logger.warning(f"{split}: {text}")
    _check_space(output, [writer.lengths[i] for writer in writers.values() for i in writer.missing])
    written = {}
    for split, writer in writers.items():
        bar = {"total": sum(writer.lengths), "unit": "B", "unit_scale": True, "unit_divisor": 1024, "leave": False}
        bar["disable"] = not sys.stderr.isatty()
        with tqdm(desc=f"writing {split}", **bar) as shown:
            written[split] = count = writer.write(splits[split].annotations(), shown.update)
        if verify:
            with tqdm(desc=f"verifying {split}", **bar) as shown:
                writer.verify(shown.update)
        shards, size = len(writer.planned), sum(writer.lengths) / 2**20
        report(
            f"{split}: {pluralize(len(splits[split].members), 'image')} in {pluralize(shards, 'shard')}, {size:.1f} MiB; "
            + (f"{count} of {shards} shards written" if count else "all shards were there")
            + (", all read back and compared" if verify else "")
        )
    return written


def _check_space(output: PathOrUrl, lengths: list[int]) -> None:
    """Raise UserError when the disk has no room for shards of these lengths."""
    folder, needed, remedy = Path(tempfile.gettempdir()), max(lengths, default=0), "name another folder with TMPDIR=…."
    if isinstance(output, Path):  # else each shard is made on the local disk before it goes there
        folder, needed, remedy = output.absolute(), sum(lengths), "give another output."
        folder = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    if needed > (free := shutil.disk_usage(folder).free):
        raise UserError(
            f"{folder} has {free / 2**20:.1f} MiB free, and {needed / 2**20:.1f} MiB are needed; make room, or {remedy}"
        )


class ShardWriter:
    """Writes the shards of one split; a second writer of the same images resumes where the first one was interrupted.

    `names`, `lengths` and `planned` are file name, bytes and images of each shard, `missing` the numbers of those that no earlier
    writer finished, by the lengths of the files. Raises DataError when the folder holds shards of other images, or of other sizes.
    """

    def __init__(self, folder: PathOrUrl, split: str, members: Sequence[Member], limit: int) -> None:
        self.folder, self.split = folder, split
        self.planned = plan_shards(members, limit)
        self.names = [f"{split}-{i:05d}.tar" for i in range(len(self.planned))]
        self.lengths = [_tar_length(sum(member.space for member in shard)) for shard in self.planned]
        listed = "\n".join(f"{m.image_id} {m.name} {m.size}" for m in members)
        self._input = hashlib.sha256(f"{limit}\n{listed}".encode()).hexdigest()
        before = _raw_index(folder, split) or {"input": self._input, "shards": []}
        if before["input"] != self._input:
            raise DataError(
                f"output={folder} holds {split} shards of other images, or of another shard_mb; give another folder, or empty it."
            )
        self._shards: list[dict[str, Any]] = before["shards"]
        there = _lengths(folder, self.names)
        facts = enumerate(zip(self.names, self.lengths, strict=True))
        self.missing = {i for i, (name, length) in facts if i >= len(self._shards) or there.get(name) != length}

    def write(self, annotations: bytes, progress: Progress) -> int:
        """Write the missing shards, the annotations and, last, the complete index; return how many shards were written.

        A shard with a damaged image is written again.
        """
        written = 0
        for i, (name, members) in enumerate(zip(self.names, self.planned, strict=True)):
            if i not in self.missing:
                damage = damage_of(self.folder, self._shards[i])
                if damage is None:
                    progress(self.lengths[i])
                    continue
                logger.warning(f"{damage} It is written again.")
            self._shards[i : i + 1] = [self._write_one(name, members, progress)]
            written += 1
            self._write_index(complete=False)
        write_bytes(self.folder / annotations_of(self.split), annotations)
        self._write_index(complete=True)
        self.missing = set()
        return written

    def verify(self, progress: Progress) -> None:
        """Read all shards back and compare them with the images. Raises DataError for the first difference."""
        for shard, members in zip(self._shards, self.planned, strict=True):
            if damage := damage_of(self.folder, shard):
                raise DataError(f"{damage} Run the same {COMMAND} again to write it again.")
            contents = read_in_turn(member.source for member in members)
            for member, row, content in zip(members, shard["images"], contents, strict=True):
                if isinstance(content, ImageError) or zlib.crc32(content) != row[4]:
                    raise DataError(
                        f"{member.source} differs from its copy in {self.folder}/{shard['file']}; remove that shard and run the "
                        f"{COMMAND} again."
                    )
            progress(shard["bytes"])

    def _write_one(self, name: str, members: list[Member], progress: Progress) -> dict[str, Any]:
        rows: list[list[Any]] = []
        target = self.folder / name
        if isinstance(target, Path):
            write_atomically(target, lambda temporary: rows.extend(_write_tar(temporary, members, progress)))
        else:
            with tempfile.NamedTemporaryFile(
                suffix=".tar"
            ) as file:  # on the disk: a shard may be larger than the memory
                rows = _write_tar(Path(file.name), members, progress)
                target.upload(Path(file.name))
        return {"file": name, "bytes": _tar_length(sum(member.space for member in members)), "images": rows}

    def _write_index(self, *, complete: bool) -> None:
        index = {"format": FORMAT, "split": self.split, "complete": complete, "input": self._input}
        text = json.dumps(index | {"shards": self._shards}, separators=(",", ":")) + "\n"
        write_bytes(self.folder / index_of(self.split), text.encode())


def damage_of(folder: PathOrUrl, shard: dict[str, Any]) -> str | None:
    """A sentence about the first image of a shard that is missing or damaged; None if all are sound."""
    images = read_in_turn(_slice(folder, shard["file"], row) for row in shard["images"])
    error = next((image for image in images if isinstance(image, ImageError)), None)
    return f"{str(error).split(';')[0]}." if error else None


def _write_tar(path: Path, members: list[Member], progress: Progress) -> list[list[Any]]:
    """Write a tar file; return id, name, offset, length and CRC-32 of each member."""
    rows: list[list[Any]] = []
    with path.open("wb") as file:
        for member, content in zip(members, read_in_turn(m.source for m in members), strict=True):
            if isinstance(content, ImageError):
                raise content
            if len(content) != member.size:
                raise DataError(
                    f"{member.source} changed while it was read; run the command again when no other process writes to it."
                )
            info = tarfile.TarInfo(member.name)  # time 0, owner 0, mode 0644
            info.size = member.size
            file.write(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
            rows.append([member.image_id, member.name, file.tell(), member.size, zlib.crc32(content)])
            file.write(content.ljust(_padded(member.size, tarfile.BLOCKSIZE), b"\0"))
            progress(member.space)
        file.write(bytes(_tar_length(file.tell()) - file.tell()))
    return rows


def _raw_index(folder: PathOrUrl, split: str) -> dict[str, Any] | None:
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
            raise DataError(f"{path} has format {index['format']}, not {FORMAT}; write it again with this version.")
        seen: set[int] = set()
        for shard in index["shards"]:
            if not SHARD_NAME.fullmatch(shard["file"]) or not shard["file"].startswith(f"{split}-"):
                raise ValueError(f"an entry is of {escape(shard['file'][:80])}")
            if type(shard["bytes"]) is not int:
                raise ValueError(f"the length of {shard['file']} is not a number")
            for row in shard["images"]:
                _check_row(row, shard)
                if row[0] in seen:
                    raise ValueError(f"image {row[0]} is in it twice")
                seen.add(row[0])
        if type(index["complete"]) is not bool or index["split"] != split:
            raise ValueError(f"it is of split {escape(index['split'])[:80]}, complete {escape(index['complete'])[:80]}")
        return {"complete": index["complete"], "input": str(index["input"]), "shards": list(index["shards"])}
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not an index of shards ({error}); copy or write it again.") from error


def _check_row(row: Any, shard: dict[str, Any]) -> None:
    """Raise ValueError or TypeError for an invalid row of the index; a name must begin with its image's id."""
    if [type(value) for value in row] != [int, str, int, int, int]:
        raise ValueError(f"a row of {shard['file']} is of other types")
    image_id, name, offset, length, crc32 = row
    named = MEMBER_NAME.fullmatch(name)
    if named is None or int(named[1]) != image_id:
        raise ValueError(f"image {image_id} has the member {escape(name, 80)}")
    if min(offset, length, crc32) < 0 or offset + length > shard["bytes"]:
        raise ValueError(f"image {image_id} reaches out of {shard['file']}")


def _slice(folder: PathOrUrl, file: str, row: list[Any]) -> ArchiveMember:
    return ArchiveMember(str(folder), file, row[2], row[3], row[4], row[1])


def _lengths(folder: PathOrUrl, names: list[str]) -> dict[str, int]:
    """Bytes of each of these files that exists."""
    if isinstance(folder, Url):
        listed = folder.all_files()
        return {name: int(listed[name]["size"]) for name in names if name in listed}
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def _tar_length(content: int) -> int:
    """Length of a tar file in bytes: with two empty blocks at the end, rounded up to whole records."""
    return _padded(content + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE)


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block
