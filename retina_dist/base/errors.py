"""Errors that a user can correct, and what the process does now."""

import os
import time

from retina_dist.base.redaction import redacted
from retina_dist.base.text import escape

# torch's messages, without an exception class of their own, when the other end of a connection is
# gone or silent.
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Timed out waiting",
    "Broken pipe",
    "Read timeout",
    "NCCL communicator was aborted",
    "Socket Timeout",
)

STARTING = "starting"  # what a process does until it says otherwise
_text, _since = STARTING, time.monotonic()


class UserError(ValueError):
    """Something outside the program is wrong: input, configuration or a file.

    The text is one line, without secrets.

    `collective` says that every rank of the job raises an error at the same point, so that all
    leave in order and only the rank `reporter` prints it (None: another error is printed instead).
    """

    collective = False
    reporter: int | None = 0
    exit_code = 2
    label = "error: "

    def __init__(
        self, *arguments: object, collective: bool | None = None, reporter: int | None = 0
    ) -> None:
        shown = [escape(redacted(a)) if isinstance(a, str) else a for a in arguments]
        super().__init__(*shown)
        if collective is not None:
            self.collective = collective
        self.reporter = reporter


class CollectiveError(UserError):
    """An error that every rank raises at the same point."""

    collective = True


def is_collective(error: BaseException) -> bool:
    """Whether every rank raises `error`, so that a strategy may still communicate."""
    return isinstance(error, UserError) and error.collective


def lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone or silent."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def describe_error(error: BaseException) -> str:
    """A UserError's text; of another exception its type and the first line of its text."""
    if isinstance(error, UserError):
        return str(error)
    if lost_connection(error):
        return f"another process of the job was lost ({_text}); its own output says why."
    name = type(error).__name__
    line = redacted(first_line(error))
    if line == name:
        return name
    return f"{name}: {line}"


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or impossible together with the others."""


class DataError(UserError):
    """An annotation file or a data set is wrong."""


class ImageError(DataError):
    """One image is missing, unreadable, or not the one its annotation describes."""


class CheckpointError(UserError):
    """A checkpoint or weights file is missing, damaged, or made for something else."""


class PeerLost(UserError):
    """Another process of the job failed or is gone; that one tells why."""

    exit_code = 1


class Preempted(CollectiveError):
    """The run was asked to end, and has ended with a checkpoint, on all ranks."""

    exit_code = os.EX_TEMPFAIL
    label = ""


def set_status(text: str) -> None:
    """Say what this process does from now on, such as "validation, 40 images"."""
    global _text, _since
    if text.split(",")[0] != _text.split(",")[0]:  # what follows a comma is the progress
        _since = time.monotonic()
    _text = text


def activity() -> tuple[str, float]:
    """The last `set_status`, and its seconds so far."""
    return _text, time.monotonic() - _since
