"""All splits of a data set into shards, with a progress bar."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from retina_dist.data.shards import Member, ShardWriter
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import Place
from retina_dist.text import pluralize

logger = logging.getLogger(__name__)

MOST_MB = 1024


class ShardSplit(NamedTuple):
    """What of a split is written into shards: its images, what makes its annotation file, and warnings."""

    members: Sequence[Member]
    annotations: Callable[[], bytes]
    warnings: Sequence[str] = ()


def write_splits(
    output: Place, splits: Mapping[str, ShardSplit], *, shard_mb: int, verify: bool, report: Callable[[str], object]
) -> dict[str, int]:
    """Write the splits to `output`; return how many shards of each were written, not counting those that were there."""
    if shard_mb > MOST_MB:
        raise ConfigError(f"shard_mb={shard_mb} is too large; {MOST_MB} is where larger shards gain nothing.")
    writers = {}
    for split, part in reversed(list(splits.items())):  # train, which every training needs, is complete last
        writers[split] = ShardWriter(output, split, part.members, shard_mb * 2**20)
        for text in part.warnings:
            logger.warning(f"{split}: {text}")
    _check_space(output, list(writers.values()))
    written = {}
    for split, writer in writers.items():
        with _bar(f"writing {split}", writer) as bar:
            written[split] = writer.write(splits[split].annotations(), progress=bar.update)
        if verify:
            with _bar(f"verifying {split}", writer) as bar:
                writer.verify(bar.update)
        report(_summary(split, writer, written[split], verify))
    return written


def _check_space(output: Place, writers: list[ShardWriter]) -> None:
    """Raise UserError when the disk has no room for what is to be written."""
    wanted = [writer.lengths[i] for writer in writers for i in writer.missing]
    if isinstance(output, Path):
        folder, needed = output.absolute(), sum(wanted)
        folder = next(there for there in (folder, *folder.parents) if there.is_dir())
    else:  # each shard is made on the local disk before it goes there
        folder, needed = Path(tempfile.gettempdir()), max(wanted, default=0)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder} has {free / 2**20:.1f} MiB free, and {needed / 2**20:.1f} MiB are needed; make room, or "
            + ("give another output." if isinstance(output, Path) else "name another folder with TMPDIR=….")
        )


def _bar(what: str, writer: ShardWriter) -> tqdm:
    return tqdm(
        desc=what,
        total=sum(writer.lengths),
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        leave=False,
        disable=not sys.stderr.isatty(),
    )


def _summary(split: str, writer: ShardWriter, written: int, verify: bool) -> str:
    images, size = sum(map(len, writer.planned)), sum(writer.lengths) / 2**20
    state = f"{written} of {len(writer.planned)} shards written" if written else "all shards were there"
    return (
        f"{split}: {pluralize(images, 'image')} in {pluralize(len(writer.planned), 'shard')}, {size:.1f} MiB; {state}"
        + (", all read back and compared" if verify else "")
    )
