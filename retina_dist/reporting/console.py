"""Words for the user: the main rank speaks, the others only to warn. Layer 1."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Protocol, TextIO

from retina_dist.redaction import redacted


def tell(text: str, file: TextIO | None = None) -> None:
    """`print(redacted(text), file=file, flush=True)` that goes on unheard when the reader of a pipe has gone.

    Ctrl-C ends `| tee` too; the run must still save its checkpoint and give its exit code.
    """
    file = file or sys.stdout
    try:
        print(redacted(text), file=file, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # what Python's manual advises


class Log(Protocol):
    """A file of this rank's own."""

    def write(self, text: str) -> None: ...


class Voice:
    """Where one rank's sentences go, without secrets: to `out` (print, or the progress line) and the rank's own `log`, if any."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.out: Callable[[str], None] = tell
        self.log: Log | None = None

    def say(self, text: str) -> None:
        """What every rank would say: heard once."""
        self.note(text)
        if self.rank == 0:
            self.out(redacted(text))

    def warn(self, text: str) -> None:
        """What concerns this rank: heard with its number."""
        self.note(text)
        self.out(redacted(text if self.rank == 0 else f"[rank {self.rank}] {text}"))

    def note(self, text: str) -> None:
        """For the rank's log only."""
        if self.log:
            self.log.write(redacted(text))
