"""The metrics of a training: gathered at each step, logged now and then."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor

from retina_dist.engine.plan import Plan
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import TaskData
from retina_dist.engine.train_step import WEIGHT
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.tracking.callbacks import Callback


class TrainLogger:
    """Averages the values of steps over time and ranks, and gives them to `callbacks` with learning
    rate, epoch and throughput.

    `data` gives the place of a step, by which the images of an epoch's last step are counted.
    """

    def __init__(
        self,
        state: TrainState,
        plan: Plan,
        strategy: DistributedStrategy,
        callbacks: Callback,
        data: TaskData,
    ) -> None:
        self.state = state
        self.plan = plan
        self.strategy = strategy
        self.callbacks = callbacks
        self.data = data
        state.meter.mean_over_ranks = partial(strategy.all_reduce, op="mean")
        self.last_loss = math.nan
        self.speeds: list[float] = []  # of each log line, in images per second

    def update(self, values: dict[str, Tensor]) -> None:
        """Add the values of the step that begins at `state.step`; every rank sees the images of all
        ranks.
        """
        _, begin = self.data.position(self.state.step)
        self.state.meter.update(values, min(self.plan.batch_size, self.plan.num_images - begin))

    def flush(self) -> None:
        """Log the means since the last call; every rank must call it."""
        state = self.state
        step = state.step
        metrics = state.meter.compute()
        if not metrics:
            return
        weight = metrics.pop(WEIGHT, 1.0)
        if weight < 1 - 1e-9:  # bad images were left out
            for name, value in metrics.items():
                if name.startswith("train/loss"):
                    metrics[name] = value / weight if weight else math.nan
        self.last_loss = metrics["train/loss"]
        self.speeds.append(metrics["time/images_per_s"])
        if state.skipped_steps:
            metrics["train/skipped_steps"] = state.skipped_steps
        if self.strategy.fp16_overflows:
            metrics["comm/fp16_overflows"] = self.strategy.fp16_overflows
        metrics["train/lr"] = self.plan.lr_at(step - 1)
        metrics["train/epoch"] = self.plan.epoch_at(step)
        self.callbacks.on_log(metrics, step)
