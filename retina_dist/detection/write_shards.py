"""Writes the images and annotations of a data set into shards."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.data.sources import sizes_of
from retina_dist.detection.readers.coco import Annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split, sized_coco, split_files, with_format
from retina_dist.files import read_bytes
from retina_dist.reporting.console import print_redacted

if TYPE_CHECKING:
    from retina_dist.shards import ShardsConfig


def write_shards(config: ShardsConfig) -> dict[str, int]:
    """Write both splits to `output`; return how many shards of each were written, not counting those that were there."""
    data = replace(with_format(config.data), keep_empty_images=True)
    train = read_split(data, "train")
    assert train is not None, "a missing train split is an error"
    parts = {"train": train, "val": read_split(data, "val", train.categories)}
    splits = {split: _split(data, split, part) for split, part in parts.items() if part is not None}
    return write_splits(config.output, splits, shard_mb=config.shard_mb, report=print_redacted)


def _split(data: DetectionData, split: str, part: Annotations) -> ShardSplit:
    sizes = sizes_of([record.path for record in part.records])
    members = [Member(r.image_id, r.path, size) for r, size in zip(part.records, sizes, strict=True)]
    return ShardSplit(members, lambda: _annotations(data, split, part), part.warnings)


def _annotations(data: DetectionData, split: str, part: Annotations) -> bytes:
    """The annotation file as it is, if it is COCO's and says how large each image is; else all of that as COCO json."""
    sized = all(entry.get("width") and entry.get("height") for entry in part.coco["images"])
    changed = data.box_format or data.val_fraction or hasattr(data, "implementation")
    if data.format in ("coco", "shards") and sized and not changed:
        files = split_files(data, split)
        assert files is not None, "the split has been read"
        return read_bytes(files[0])
    return (json.dumps(sized_coco(part)) + "\n").encode()
