"""The metrics of a training: gathered at each step, logged now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from retina_dist.engine.plan import Plan
from retina_dist.strategies.base import DistributedStrategy

if TYPE_CHECKING:
    from retina_dist.engine.state import TrainState
    from retina_dist.engine.task import TaskData

WEIGHT = "train/weight"  # the share of the step's images that this rank trained on; its mean over ranks is 1 unless some were bad


class StepMeter:
    """Sums named scalars on the device and gives their means with one transfer and one collective.

    `mean_over_ranks` averages a tensor over ranks. Time within `paused` does not count in the throughput.
    """

    def __init__(self, mean_over_ranks: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        self.mean_over_ranks = mean_over_ranks
        self._clear()

    def _clear(self) -> None:
        self._differs = False  # between ranks
        self.names: list[str] = []
        self.sums: Tensor | None = None
        self.steps = 0
        self.images = 0
        self.seconds = 0.0
        self._started = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """What `compute` has not returned yet; {} when there is nothing. Every rank must call it."""
        if self.sums is None:
            return {}
        self._stop_clock()
        sums = (self.mean_over_ranks(self.sums) if self._differs else self.sums).cpu()
        return {
            "names": self.names,
            "sums": sums,
            "steps": self.steps,
            "images": self.images,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned, on any number of ranks."""
        self._clear()
        if state:
            self.names, self.sums = list(state["names"]), state["sums"].clone()
            self.steps, self.images, self.seconds = (
                state["steps"],
                state["images"],
                state["seconds"],
            )

    def update(self, values: dict[str, Tensor], images: int) -> None:
        """Add one step's values (scalars, equal in meaning on every rank; none of a step left out) and its images."""
        if (
            values and self.names and self.names != list(values)
        ):  # of a checkpoint of another version
            self._clear()
        self.images += images
        if not values:
            return
        stacked = torch.stack([v.detach().double() for v in values.values()])
        self.names, self._differs = list(values), True
        self.sums = stacked if self.sums is None else self.sums.to(stacked.device) + stacked
        self.steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For validation and checkpoints."""
        self._stop_clock()
        yield
        self._started = time.perf_counter()

    def _stop_clock(self) -> None:
        now = time.perf_counter()
        self.seconds, self._started = (
            self.seconds + now - self._started,
            now,
        )  # once, where pauses overlap

    def compute(self) -> dict[str, float]:
        """Mean of each value since the last call, and `time/images_per_s`; then start over. Every rank must call it."""
        if self.sums is None:
            return {}
        means = self.mean_over_ranks(self.sums / self.steps).tolist()
        self._stop_clock()
        metrics = dict(zip(self.names, means, strict=True))
        metrics["time/images_per_s"] = self.images / max(self.seconds, 1e-9)
        self._clear()
        return metrics


class MetricLogger(Protocol):
    """Where metrics go."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...


class TrainLogger:
    """Averages the values of steps over time and ranks, and logs them to `metric_logger` with learning rate, epoch and throughput.

    `data` gives the place of a step, by which the images of an epoch's last step are counted.
    """

    def __init__(
        self,
        state: TrainState,
        plan: Plan,
        strategy: DistributedStrategy,
        metric_logger: MetricLogger,
        data: TaskData,
    ) -> None:
        self.state, self.plan, self.strategy = state, plan, strategy
        self.metric_logger, self.data = metric_logger, data
        state.meter.mean_over_ranks = partial(strategy.all_reduce, op="mean")
        self.last_loss = math.nan
        self.speeds: list[float] = []  # of each log line, in images per second

    def update(self, values: dict[str, Tensor]) -> None:
        """Add the values of the step that begins at `state.step`; every rank sees the images of all ranks."""
        _, begin = self.data.position(self.state.step)
        self.state.meter.update(values, min(self.plan.batch_size, self.plan.num_images - begin))

    def flush(self) -> None:
        """Log the means since the last call; every rank must call it."""
        state, plan, step = self.state, self.plan, self.state.step
        metrics = state.meter.compute()
        if not metrics:
            return
        weight = metrics.pop(WEIGHT, 1.0)
        if weight < 1 - 1e-9:  # bad images were left out
            losses = {
                name: value for name, value in metrics.items() if name.startswith("train/loss")
            }
            metrics |= {
                name: value / weight if weight else math.nan for name, value in losses.items()
            }
        self.last_loss = metrics["train/loss"]
        self.speeds.append(metrics["time/images_per_s"])
        if state.skipped_steps:
            metrics["train/skipped_steps"] = state.skipped_steps
        if self.strategy.fp16_overflows:
            metrics["comm/fp16_overflows"] = self.strategy.fp16_overflows
        metrics |= {"train/lr": plan.lr_at(step - 1), "train/epoch": plan.epoch_at(step)}
        self.metric_logger.log(metrics, step)
