"""What a rank prints, and signs of life during long work."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from retina_dist.base.errors import activity
from retina_dist.base.redaction import redacted
from retina_dist.base.text import format_duration

LOGGER = logging.getLogger("retina_dist")
SILENCE_S = 10.0  # the longest time without a line
_printed_at = 0.0


def print_redacted(text: str, file: TextIO | None = None) -> None:
    """`print(redacted(text), file=file, flush=True)` that ignores BrokenPipeError.

    Ctrl-C ends `| tee` too; the run must still save its checkpoint and set its exit code.
    """
    note_output()
    file = file or sys.stdout
    try:
        print(redacted(text), file=file, flush=True)
    except BrokenPipeError:
        # https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def note_output() -> None:
    """Note that something was shown now, so that `heartbeat` stays silent for a while."""
    global _printed_at
    _printed_at = time.monotonic()


class Console(logging.Handler):
    """Prints INFO of rank 0, and WARNING of every rank.

    With `extra={"rank_zero_only": True}` a warning of rank 0 alone is printed.

    A training replaces `write`, which prints a line, and `beat`, which `heartbeat` calls, by those
    of `Progress`.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.reset(rank)

    def reset(self, rank: int) -> None:
        """Restart as another rank: output to stdout."""
        self.rank = rank
        self.write: Callable[[str], None] = print_redacted
        self.beat: Callable[[str, float, bool], None] = self._beat

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        elif self.rank:
            return
        if self.rank == 0:
            self.write(text)
        elif "rank_zero_only" not in vars(record):
            self.write(f"[rank {self.rank}] {text}")

    def _beat(self, text: str, seconds: float, silent: bool) -> None:
        if silent:
            self.write(f"{text}: {format_duration(seconds)} so far")


@contextmanager
def configure_logging(rank: int) -> Iterator[Console]:
    """Make a `Console` the only handler of the logger "retina_dist" until the context ends."""
    console = Console(rank)
    before = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    LOGGER.handlers[:], LOGGER.propagate = [console], False
    LOGGER.setLevel(logging.INFO)
    try:
        yield console
    finally:
        LOGGER.handlers[:], level, LOGGER.propagate = before
        LOGGER.setLevel(level)


@contextmanager
def heartbeat() -> Iterator[None]:
    """Until the context ends, a thread of rank 0 calls `console.beat` twice a second.

    `text` and `seconds` are of `activity`; `silent` says that nothing was printed for ten seconds.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(min(0.5, SILENCE_S / 4)):
            for console in LOGGER.handlers:
                if isinstance(console, Console) and console.rank == 0:
                    console.beat(*activity(), time.monotonic() - _printed_at >= SILENCE_S)

    note_output()
    thread = threading.Thread(target=watch, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
