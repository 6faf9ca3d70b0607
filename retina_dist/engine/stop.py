"""All ranks save or stop at the same step."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from retina_dist.strategies.base import DistributedStrategy


class StopAction(IntEnum):
    """What a rank requests after a step; the highest request of any rank wins."""

    NONE = 0
    SAVE = 1
    STOP = 2  # with a checkpoint


class StopConsensus:
    """Agrees on one action for all ranks with an asynchronous maximum, known one step later, so that no rank waits for it."""

    def __init__(self, strategy: DistributedStrategy) -> None:
        self.strategy = strategy
        self._pending: Callable[[], int] | None = None

    def poll(self, request: StopAction) -> StopAction:
        """Submit this rank's request and return the action agreed on at the previous call; with one process, the request."""
        if self.strategy.world_size == 1:
            return request
        previous, self._pending = self._pending, None
        action = StopAction(previous()) if previous else StopAction.NONE
        self._pending = self.strategy.all_reduce_max_async(request)
        return action

    def close(self) -> None:
        """Fetch the last result, so that no collective is left in flight."""
        if self._pending:
            self._pending()
        self._pending = None
