"""Is the data the same on every host? Digests of what a task names."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from retina_dist.errors import UserError
from retina_dist.files import Place, Url, check_regular, names_in, read_bytes
from retina_dist.words import pluralize

MOST_BYTES = 2**30  # read of a file; the rest counts by its size
MOST_SECONDS = 20.0  # of reading one
PIECE = 2**22


def digest(source: Place) -> str:
    """What two hosts must agree on: a file's SHA-256 and size, or the names in a folder. Raises OSError or UserError.

    Of a file beyond 1 GiB, the size and the first GiB. A disk that gives less in 20 s is an error, as the others would wait.
    """
    if isinstance(source, Url) and not source.is_dir():
        return _named(hashlib.sha256(content := read_bytes(source)).hexdigest(), len(content))
    if isinstance(source, Url) or source.is_dir():
        names = names_in(source)
        return _named(hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest(), None, len(names))
    return _digest_of_file(source)


def _digest_of_file(path: Path) -> str:
    check_regular(path)
    found, done, started = hashlib.sha256(), 0, time.monotonic()
    with open(path, "rb") as file:
        while done < MOST_BYTES and (piece := file.read(PIECE)):
            found.update(piece)
            done += len(piece)
            if time.monotonic() - started > MOST_SECONDS:
                raise UserError(f"only {done / 1e6:.0f} MB could be read in {MOST_SECONDS:g} s")
    return _named(found.hexdigest(), path.stat().st_size)


def _named(sha256: str, size: int | None, names: int = 0) -> str:
    return f"SHA-256 {sha256[:16]}… of {f'{size} bytes' if size is not None else pluralize(names, 'name')}"
