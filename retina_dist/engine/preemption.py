"""Signals that ask a run to end, and how all ranks save or stop at the same step."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType
from typing import Any

from typing_extensions import Self

from retina_dist.strategies.base import DistributedStrategy

# SIGUSR1 is what Slurm sends ahead of a time limit (sbatch --signal); SIGTERM follows when that has
# come.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_S = 2.0  # launchers pass on a signal that the terminal has already sent to everyone


class PreemptionWatch:
    """While entered, `reason` says why this process should end, and is None until it should.

    A second SIGTERM or SIGINT, more than two seconds after the first, ends the process at once.
    SIGUSR1 never does.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._noticed: float | None = None  # when the first signal came
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # elsewhere Python takes no handlers
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            if self.reason is None:
                self.reason = name
                _tell(f"{name}: stopping with a checkpoint after this step")
        elif self._noticed is None:
            self.reason = self.reason or name
            self._noticed = now
            _tell(f"{name}: stopping with a checkpoint after this step; once more ends at once")
        elif now - self._noticed > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _tell(text: str) -> None:
    """From a signal's handler, which may have interrupted a print."""
    with contextlib.suppress(OSError):  # the same signal may have ended the reader of the pipe
        os.write(2, f"\n{text}\n".encode())


class StopAction(IntEnum):
    """What a rank requests after a step; the highest request of any rank wins."""

    NONE = 0
    SAVE = 1
    STOP = 2  # with a checkpoint


@dataclass
class StopConsensus:
    """Agrees on one action for all ranks with an asynchronous maximum, known one step later, so
    that no rank waits for it.
    """

    strategy: DistributedStrategy
    _pending: Callable[[], int] | None = None

    def poll(self, request: StopAction) -> StopAction:
        """Submit this rank's request and return the action agreed on at the previous call; with one
        process, the request.
        """
        if self.strategy.world_size == 1:
            return request
        action = StopAction(self._pending()) if self._pending else StopAction.NONE
        self._pending = self.strategy.all_reduce_max_async(request)
        return action

    def close(self) -> None:
        """Fetch the last result, so that no collective is left in flight."""
        if self._pending:
            self._pending()
        self._pending = None
