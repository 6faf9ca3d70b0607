"""When and what a training saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retina_dist.engine.checkpoint_store import CheckpointStore
from retina_dist.engine.duration import IntervalTimer
from retina_dist.engine.state import TrainState
from retina_dist.strategies.base import DistributedStrategy


class Checkpointer:
    """Saves `state` into `store` from the main rank; without a store it saves nothing.

    A checkpoint holds the state, `metadata` (plain Python values only) and the place in the data that `position` gives for a step.
    `max_minutes` is the longest time between two checkpoints by the main rank's clock, None for any.
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
        self.position, self.metadata = position, metadata or {}
        self.interval = IntervalTimer(max_minutes)
        self.saved_step = state.step

    @property
    def due(self) -> bool:
        """Whether the time since the last checkpoint is up; true once for each interval, and on the main rank only."""
        return self.strategy.is_main and self.interval.due()

    def content(self, metrics: dict[str, float] | None = None) -> dict[str, Any]:
        """What a checkpoint of this moment holds; `metrics` are those of this step's validation."""
        epoch, cursor = self.position(self.state.step)
        place = {"sampler": {"epoch": epoch, "cursor": cursor}, "metrics": metrics or {}}
        return {**self.state.state_dict(), **self.metadata, **place}

    def save(self, metrics: dict[str, float]) -> None:
        """Start to write a checkpoint; every rank must call it. Raises CheckpointError if the one before was not written."""
        self.interval.reset()

        def save() -> None:
            if self.store:
                name = self.state.best.name
                self.store.save(self.content(metrics), self.state.step, metrics.get(name) if name else None)

        self.strategy.on_main(save)
        self.saved_step = self.state.step

    def wait(self) -> None:
        """Return once every checkpoint is written; every rank must call it. Raises CheckpointError if one was not."""
        self.strategy.on_main(self.wait_here)

    def wait_here(self) -> None:
        """`wait` without the other ranks, for a run that ends by an error."""
        if self.store:
            self.store.wait()
