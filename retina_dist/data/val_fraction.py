"""Which training images `data.val_fraction` holds out for validation, by the hash of their name."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import open_regular
from retina_dist.base.seeding import derived_seed
from retina_dist.base.text import pluralize
from retina_dist.data.sources import AT_ONCE, THREADS, Source

HEAD_BYTES = 4096


def held_out(name: str, fraction: float) -> bool:
    """Whether an image is in the `fraction` that validates; adding others never moves it."""
    return derived_seed("held out", name) < fraction * 2**63


def held_out_rows(
    names: Sequence[str], sources: Sequence[Source], fraction: float
) -> dict[str, list[int]]:
    """The rows of the images of "train" and, for `fraction` of them, of "val".

    The name of the first of identical images decides. Raises DataError where that leaves either
    empty.
    """
    rows: dict[str, list[int]] = {"train": [], "val": []}
    for row, first in enumerate(first_of_same(sources)):
        rows["val" if held_out(names[first], fraction) else "train"].append(row)
    for split, chosen in rows.items():
        if not chosen:
            raise DataError(
                f"data.val_fraction={fraction} of {pluralize(len(names), 'image')} leaves none for "
                f"{split}; give another fraction, or more images."
            )
    return rows


def first_of_same(sources: Sequence[Source]) -> list[int]:
    """For each image the row of the first local file with the same content, else its own.

    Only files of one size whose first bytes are equal are read to their ends.
    """
    firsts = list(range(len(sources)))
    by_head = defaultdict(list)
    chunks = [sources[i : i + AT_ONCE] for i in range(0, len(sources), AT_ONCE)]
    with ThreadPoolExecutor(THREADS) as pool:
        for row, head in enumerate(chain.from_iterable(pool.map(_heads, chunks))):
            if head:
                by_head[head].append(row)
    for rows in by_head.values():
        found: dict[bytes, int] = {}
        for row in rows if len(rows) > 1 else ():
            firsts[row] = found.setdefault(_digest(sources[row]), row)
    return firsts


def _heads(sources: Sequence[Source]) -> list[bytes]:
    return [_digest(source, HEAD_BYTES) for source in sources]


def _digest(source: Source, most: int = -1) -> bytes:
    """Of a local file's size and first bytes; nothing of one that cannot be read."""
    if not isinstance(source, str | Path):
        return b""
    try:
        with open_regular(source) as file:
            size = os.fstat(file.fileno()).st_size
            return hashlib.sha256(b"%d " % size + file.read(most)).digest()
    except OSError:
        return b""
