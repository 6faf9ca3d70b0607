"""When a run saves beside the steps that `engine/plan.py` names: by the clock, on request, at its end; and what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from retina_dist.engine.checkpoint.store import CheckpointStore
from retina_dist.engine.preemption import StopAction
from retina_dist.engine.state import TrainState
from retina_dist.strategies.base import DistributedStrategy, Stateful


class Checkpointer:
    """Saves `state` into `store` from the main rank; without a store it saves nothing.

    A checkpoint is due where the plan has one, when all ranks stop, and `max_minutes` after the last one by the main rank's clock.
    It holds the state, `metadata` (plain Python values), the place in the data, and each rank's state of the strategy.
    """

    def __init__(
        self,
        state: TrainState,
        strategy: DistributedStrategy,
        store: CheckpointStore | None = None,
        *,
        position: Callable[[int], tuple[int, int]],
        max_minutes: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.state, self.strategy, self.store = state, strategy, store
        self.position, self.metadata, self.max_minutes = position, metadata or {}, max_minutes
        self.saved_step = state.step
        self._saved_at = time.monotonic()

    def request(self) -> StopAction:
        """What this rank asks all ranks for by its clock: SAVE, once for each interval and on the main rank only, or NONE."""
        minutes = (time.monotonic() - self._saved_at) / 60
        if self.max_minutes is None or not self.strategy.is_main or minutes < self.max_minutes:
            return StopAction.NONE
        self._saved_at = time.monotonic()
        return StopAction.SAVE

    def is_due(self, planned: bool, action: StopAction) -> bool:
        """Whether to save now, given the plan and what the ranks agreed on.

        A SAVE is one step old: it is not repeated when a checkpoint was written meanwhile.
        """
        fresh = action is StopAction.SAVE and self.saved_step < self.state.step - 1
        return planned or fresh or action is StopAction.STOP

    def content(self, metrics: dict[str, float] | None = None) -> dict[str, Any]:
        """What a checkpoint of this moment holds; `metrics` are those of this step's validation. Every rank must call it."""
        epoch, cursor = self.position(self.state.step)
        place = {"sampler": {"epoch": epoch, "cursor": cursor}, "metrics": metrics or {}}
        content = {**self.state.state_dict(), **self.metadata, **place}
        if isinstance(self.strategy, Stateful):
            own = self.strategy.state_dict()
            content["strategy"] = [
                self.strategy.broadcast_object(own, rank) for rank in range(self.strategy.world_size)
            ]
        return content

    def save(self, metrics: dict[str, float]) -> None:
        """Start to write a checkpoint; every rank must call it. Raises CheckpointError if the one before was not written."""
        self._saved_at = time.monotonic()
        content, monitored = self.content(metrics), self.state.best.name

        def save() -> None:
            if self.store:
                self.store.save(content, self.state.step, metrics.get(monitored) if monitored else None)

        self.strategy.on_main(save)
        self.saved_step = self.state.step

    def wait(self) -> None:
        """Return once every checkpoint is written; every rank must call it. Raises CheckpointError if one was not."""
        self.strategy.on_main(self.wait_here)

    def wait_here(self) -> None:
        """`wait` without the other ranks, for a run that ends by an error."""
        if self.store:
            self.store.wait()
