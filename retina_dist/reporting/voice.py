"""Words for the user: the main rank speaks, the others only to warn. Layer 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Log(Protocol):
    """A file of this rank's own."""

    def write(self, text: str) -> None: ...


class Voice:
    """Where one rank's sentences go: to `out` (print, or the progress line) and, if there is one, to the rank's own `log`."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.out: Callable[[str], None] = lambda text: print(text, flush=True)
        self.log: Log | None = None

    def say(self, text: str) -> None:
        """What every rank would say: heard once."""
        self.note(text)
        if self.rank == 0:
            self.out(text)

    def warn(self, text: str) -> None:
        """What concerns this rank: heard with its number."""
        self.note(text)
        self.out(text if self.rank == 0 else f"[rank {self.rank}] {text}")

    def note(self, text: str) -> None:
        """For the rank's log only."""
        if self.log:
            self.log.write(text)
