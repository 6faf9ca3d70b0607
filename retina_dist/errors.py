"""Errors that a user can correct: one sentence that names the thing, the value and the remedy.

Entry points print these without a traceback and exit with their code (`debug=true` shows the traceback).
"""

import os

from retina_dist.redaction import redacted


class UserError(ValueError):
    """Something outside the program is wrong: input, configuration or a file.

    `collective` says that every rank of the job raises an error at the same point, so that all leave in order and only the
    rank `reporter` prints it (None: another error is printed instead).
    """

    collective = False
    reporter: int | None = 0
    exit_code = 2
    label = "error: "

    def __init__(self, *arguments: object, collective: bool | None = None, reporter: int | None = 0) -> None:
        super().__init__(*(redacted(a) if isinstance(a, str) else a for a in arguments))
        if collective is not None:
            self.collective = collective
        self.reporter = reporter


class CollectiveError(UserError):
    """An error that every rank raises at the same point."""

    collective = True


def is_collective(error: BaseException) -> bool:
    """Whether every rank raises `error`, so that a strategy may still communicate while it leaves."""
    return isinstance(error, UserError) and error.collective


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
    """The run was asked to end, and has ended with a checkpoint, on all ranks; a scheduler may start it again."""

    exit_code = os.EX_TEMPFAIL
    label = ""
