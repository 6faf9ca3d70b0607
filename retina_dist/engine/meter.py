"""Means of a training's values over steps and ranks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict


class StepMeter:
    """Sums named scalars on the device and gives their means with one transfer and one collective.

    `mean_over_ranks` averages a tensor over ranks. Time within `paused` does not count in the
    throughput.
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

    def state_dict(self) -> StateDict:
        """What `compute` has not returned yet; {} when there is nothing. Every rank must
        call it.
        """
        if self.sums is None:
            return {}
        self._stop_clock()
        sums = self.mean_over_ranks(self.sums) if self._differs else self.sums
        return {
            "names": self.names,
            "sums": sums.cpu(),
            "steps": self.steps,
            "images": self.images,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Load what `state_dict` returned, on any number of ranks."""
        self._clear()
        if state:
            self.names = list(state["names"])
            self.sums = state["sums"].clone()
            self.steps = state["steps"]
            self.images = state["images"]
            self.seconds = state["seconds"]

    def update(self, values: dict[str, Tensor], images: int) -> None:
        """Add one step's values (scalars, equal in meaning on every rank; none of a step left out)
        and its images.
        """
        if values and self.names not in ([], list(values)):  # of a checkpoint of another version
            self._clear()
        self.images += images
        if not values:
            return
        stacked = torch.stack([v.detach().double() for v in values.values()])
        self.names = list(values)
        self._differs = True
        if self.sums is not None:
            stacked = stacked + self.sums.to(stacked.device)
        self.sums = stacked
        self.steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For validation and checkpoints."""
        self._stop_clock()
        yield
        self._started = time.perf_counter()

    def _stop_clock(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._started
        self._started = now  # once, where pauses overlap

    def compute(self) -> dict[str, float]:
        """Mean of each value since the last call, and `time/images_per_s`; then start over. Every
        rank must call it.
        """
        if self.sums is None:
            return {}
        means = self.mean_over_ranks(self.sums / self.steps).tolist()
        self._stop_clock()
        metrics = dict(zip(self.names, means, strict=True))
        metrics["time/images_per_s"] = self.images / max(self.seconds, 1e-9)
        self._clear()
        return metrics
