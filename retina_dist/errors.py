"""What a user can mend: one sentence that names the thing, the value and the remedy.

Layer 0. Entry points print these without a traceback and exit with their code (`debug=true` shows the traceback).
"""

import os

from retina_dist.redaction import redacted


class UserError(ValueError):
    """Something outside the program is wrong: input, configuration or a file.

    `everywhere` says that every process of a job raises an error at the same point, so that they can leave in order and only
    `speaker`, a rank, needs to speak.
    """

    everywhere = False
    speaker: int | None = 0
    exit_code = 2
    label = "error: "

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(a) if isinstance(a, str) else a for a in arguments))


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


class Preempted(UserError):
    """The run was asked to end, and has ended with a checkpoint, on all ranks; a scheduler may start it again."""

    everywhere = True
    exit_code = os.EX_TEMPFAIL
    label = ""
