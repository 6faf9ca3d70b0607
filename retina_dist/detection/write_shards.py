"""Writes the images and annotations of a data set into shards.

Layer 4. An interrupted command continues when it is given again.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from retina_dist.config.commands import ShardsConfig
from retina_dist.data.shards import Member, ShardWriter
from retina_dist.data.sources import sizes_of
from retina_dist.detection.readers.coco import Annotations
from retina_dist.detection.settings import DataConfig
from retina_dist.detection.splits import read_split, split_files
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import Place, place, read_bytes
from retina_dist.reporting.console import tell
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.words import pluralize

logger = logging.getLogger(__name__)

MOST_MB = 1024


def write_shards(config: ShardsConfig) -> dict[str, int]:
    """Write both splits to `output`; return how many shards of each were written, not counting those that were there."""
    if detect_launch().world_size > 1:
        raise ConfigError("shards are written by one process; start it without a launcher.")
    if config.shard_mb > MOST_MB:
        raise ConfigError(f"shard_mb={config.shard_mb} is too large; {MOST_MB} is where larger shards gain nothing.")
    output = place(config.output)
    data = replace(config.data, keep_empty_images=True)
    train = read_split(data, "train")
    assert train is not None, "a missing train split is an error"
    parts = {"train": train, "val": read_split(data, "val", train.categories)}
    writers = {}
    for split, part in reversed(parts.items()):  # train, which no training does without, is complete last
        if part is not None:
            sizes = sizes_of([record.path for record in part.records])
            members = [Member(r.image_id, r.path, size) for r, size in zip(part.records, sizes, strict=True)]
            writers[split] = ShardWriter(output, split, members, config.shard_mb * 2**20)
            for text in part.warnings:
                logger.warning(f"{split}: {text}")
    _check_space(output, list(writers.values()))

    written = {}
    for split, writer in writers.items():
        with _bar(f"writing {split}", writer) as bar:
            annotations = _annotations(data, split, parts[split])  # type: ignore[arg-type]
            written[split] = writer.write(annotations, progress=bar.update)
        if config.verify:
            with _bar(f"verifying {split}", writer) as bar:
                writer.verify(bar.update)
        tell(_summary(split, writer, written[split], config))
    return written


def _annotations(data: DataConfig, split: str, part: Annotations) -> bytes:
    """The annotation file as it is, if it is COCO's and says how large each image is; else all of that as COCO json."""
    sized = all(entry.get("width") and entry.get("height") for entry in part.coco["images"])
    if data.format in ("coco", "shards") and sized and not hasattr(data, "implementation"):
        files = split_files(data, split)
        assert files is not None, "the split has been read"
        return read_bytes(files[0])
    size_of = {record.image_id: (record.width, record.height) for record in part.records}
    images = []
    for entry in part.coco["images"]:
        width, height = size_of.get(entry["id"], (None, None))
        images.append({**entry, "width": width, "height": height} if width else entry)
    return (json.dumps({**part.coco, "images": images}) + "\n").encode()


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


def _summary(split: str, writer: ShardWriter, written: int, config: ShardsConfig) -> str:
    images, size = sum(map(len, writer.planned)), sum(writer.lengths) / 2**20
    state = f"{written} of {len(writer.planned)} shards written" if written else "all shards were there"
    return (
        f"{split}: {pluralize(images, 'image')} in {pluralize(len(writer.planned), 'shard')}, {size:.1f} MiB; {state}"
        + (", all read back and compared" if config.verify else "")
    )
