"""Digests by which a resumed run sees that its data has changed since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retina_dist.data.sources import ArchiveMember, Source

THREADS = 16  # a call to a network's file system waits for it


def files_digest(sources: Sequence[Source]) -> str:
    """A digest of each file's size and time of change, and of a shard member's checksum.

    Files are not read. One behind a URL, and what Python makes, is not looked at.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        stamps = pool.map(_stamp, sources)
        return hashlib.sha256("\n".join(stamps).encode()).hexdigest()


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
