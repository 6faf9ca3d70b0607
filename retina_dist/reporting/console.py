"""The logging handler of the logger "retina_dist": console and log file of a rank.

A module logs with `logger = logging.getLogger(__name__)`. INFO and WARNING are printed, DEBUG goes to the log file only.
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


def print_redacted(text: str, file: TextIO | None = None) -> None:
    """`print(redacted(text), file=file, flush=True)` that ignores BrokenPipeError.

    Ctrl-C ends `| tee` too; the run must still save its checkpoint and set its exit code.
    """
    file = file or sys.stdout
    try:
        print(redacted(text), file=file, flush=True)
    except BrokenPipeError:
        # https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


class LogFile(Protocol):
    """The log file of one rank."""

    def write(self, text: str) -> None: ...


class Console(logging.Handler):
    """Prints INFO of rank 0 and WARNING of every rank; writes these and DEBUG to `log_file`, if there is one.

    A warning with `extra={"rank_zero_only": True}`, which every rank logs, is printed by rank 0 only.

    `write` prints one line to stdout; the assembler replaces it by `Progress.write`, which prints above the progress bar.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.reset(rank)

    def reset(self, rank: int) -> None:
        """Restart as another rank: no log file, output to stdout."""
        self.rank = rank
        self.write: Callable[[str], None] = print_redacted
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
    """Make a `Console` the only handler of the logger "retina_dist" until the context ends.

    Errors of the console, such as an OSError of the log file, are raised by the logging call.
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
