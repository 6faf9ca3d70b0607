"""Is the data the same on every host? Digests of what a task names."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

from retina_dist.files import Place, Url, check_regular, first_line, names_in
from retina_dist.text import pluralize

MOST_BYTES = 2**30  # read of a file; the rest counts by its size
MOST_BYTES_OF_URL = 2**26
MOST_SECONDS = 20.0  # of reading all files
PIECE = 2**22


def digests(files: Iterable[Place]) -> dict[str, str]:
    """The `digest` of each file; "error: ..." if it cannot be read, "slow: ..." once reading all files has taken 20 s."""
    found, until = {}, time.monotonic() + MOST_SECONDS
    for file in files:
        try:
            found[str(file)] = digest(file, until)
        except Exception as error:  # whatever a storage answers is a finding, not the end
            found[str(file)] = f"error: {first_line(error)}"
    return found


def digest(source: Place, until: float) -> str:
    """What two hosts must agree on: a file's SHA-256 and size, or the names in a folder. Raises OSError or UserError.

    Of a file beyond 1 GiB, or 64 MiB behind a URL, the size and so much of its begin. "slow: ..." where reading does not end by
    `until`, as the others would wait.
    """
    if isinstance(source, Url) and not source.is_dir():
        if time.monotonic() > until:
            return _slow(0, 0.0)
        (content,) = source.parent.read_parts([(source.name, 0, MOST_BYTES_OF_URL)])
        if isinstance(content, FileNotFoundError):
            raise content
        size = len(content) if len(content) < MOST_BYTES_OF_URL else source.size()
        return _named(hashlib.sha256(content).hexdigest(), size)
    if isinstance(source, Url) or source.is_dir():
        names = names_in(source)
        return _named(hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest(), None, len(names))
    return _digest_of_file(source, until)


def _digest_of_file(path: Path, until: float) -> str:
    check_regular(path)
    found, done, started = hashlib.sha256(), 0, time.monotonic()
    with open(path, "rb") as file:
        while done < MOST_BYTES and (piece := file.read(PIECE)):
            found.update(piece)
            done += len(piece)
            if (now := time.monotonic()) > until:
                return _slow(done, now - started)
    return _named(found.hexdigest(), path.stat().st_size)


def _slow(done: int, seconds: float) -> str:
    speed = f" at {done / 1e6 / seconds:.1f} MB/s" if seconds > 0 else ""
    return f"slow: {done / 1e6:.1f} MB{speed} until the {MOST_SECONDS:g} s for all files had passed, and it was not compared"


def _named(sha256: str, size: int | None, names: int = 0) -> str:
    return f"SHA-256 {sha256[:16]}… of {f'{size} bytes' if size is not None else pluralize(names, 'name')}"
