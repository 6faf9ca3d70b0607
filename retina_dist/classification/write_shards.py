"""Writes labelled images into shards."""

from __future__ import annotations

import json
from typing import Any

from retina_dist.classification.data.samples import Samples
from retina_dist.classification.splits import read_splits
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.data.sources import sizes_of
from retina_dist.errors import ConfigError
from retina_dist.files import parse_path
from retina_dist.reporting.console import print_redacted
from retina_dist.strategies.launch_environment import detect_launch


def write_shards(config: Any) -> dict[str, int]:
    """Write both splits to `output`; return how many shards of each were written, not counting those that were there."""
    if detect_launch().world_size > 1:
        raise ConfigError("shards are written by one process; start it without a launcher.")
    parts = zip(("train", "val"), read_splits(config.data), strict=True)
    splits = {split: _split(part) for split, part in parts if part is not None}
    return write_splits(
        parse_path(config.output), splits, shard_mb=config.shard_mb, verify=config.verify, report=print_redacted
    )


def _split(part: Samples) -> ShardSplit:
    members = [Member(i, *facts) for i, facts in enumerate(zip(part.sources, sizes_of(part.sources), strict=True))]
    return ShardSplit(members, lambda: _annotations(part), part.warnings)


def _annotations(part: Samples) -> bytes:
    """COCO's form of a list of images, with a label for each."""
    rows = enumerate(zip(part.names, part.labels.tolist(), strict=True))
    images = [{"id": i, "file_name": name, "label": part.classes[label]} for i, (name, label) in rows]
    return (json.dumps({"images": images}) + "\n").encode()
