"""Where the lines of the logger "retina_dist" go: the console and the log file of a rank. Layer 1.

A module logs with `logger = logging.getLogger(__name__)`. INFO and WARNING are for the user, DEBUG is for the log file only.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from retina_dist.redaction import redacted

LOGGER = logging.getLogger("retina_dist")
RANK_ZERO_ONLY = {"rank_zero_only": True}  # as `extra` of a warning that every rank gives: printed once


def tell(text: str, file: TextIO | None = None) -> None:
    """`print(redacted(text), file=file, flush=True)` that ignores BrokenPipeError.

    Ctrl-C ends `| tee` too; the run must still save its checkpoint and give its exit code.
    """
    file = file or sys.stdout
    try:
        print(redacted(text), file=file, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # what Python's manual advises


class LogFile(Protocol):
    """Takes lines for the log file of one rank."""

    def write(self, text: str) -> None: ...


class Console(logging.Handler):
    """Prints INFO of rank 0 and WARNING of any rank; writes all of them, and DEBUG, into `log_file` where there is one.

    `write` prints one line: to stdout, or above the progress bar once `Progress.write` has taken its place.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.reset(rank)

    def reset(self, rank: int) -> None:
        """Begin anew, as another rank: without a log file, and printing to stdout."""
        self.rank = rank
        self.write: Callable[[str], None] = tell
        self.log_file: LogFile | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = redacted(record.getMessage())
        warns = record.levelno >= logging.WARNING
        if warns:
            text = f"{record.levelname.lower()}: {text}"
        if self.log_file:
            self.log_file.write(text)
        if self.rank == 0 and record.levelno >= logging.INFO:
            self.write(text)
        elif warns and not getattr(record, "rank_zero_only", False):
            self.write(f"[rank {self.rank}] {text}")


@contextmanager
def configure_logging(rank: int) -> Iterator[Console]:
    """Send the lines of the logger "retina_dist" to a `Console`, and to no other handler, until the context ends.

    An OSError of the log file, and any other error of the console, is raised where the line is logged.
    """
    console = Console(rank)
    before = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    LOGGER.handlers[:], LOGGER.propagate = [console], False
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield console
    finally:
        LOGGER.handlers[:], level, LOGGER.propagate = before
        LOGGER.setLevel(level)
