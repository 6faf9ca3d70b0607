"""The learning rate as a pure function of the step, so checkpoints need no scheduler state. Layer 1."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from retina_dist.optim.settings import ScheduleSettings


class Decay(ABC):
    """A schedule from outside the package: the factor of the learning rate beside the warm-up's, a pure function of the step.

    `total` and `warmup` are the steps of the run and of its warm-up. `to_steps` turns a duration such as 16epochs into steps.
    """

    settings: ClassVar[type[ScheduleSettings]] = ScheduleSettings

    def __init__(self, settings: Any, total: int, warmup: int, to_steps: Callable[[str], int]) -> None:
        self.options, self.total, self.warmup, self.to_steps = settings, total, warmup, to_steps

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The factor for optimizer step `step` (0 is the first)."""


@dataclass(frozen=True)
class Schedule:
    """The factor of the base learning rate at each step; all durations are in optimizer steps.

    Warm-up runs linearly from `warmup_factor` to 1 over the first `warmup` steps. Then "constant" stays at 1, "multistep"
    multiplies by `gamma` at each milestone, and "cosine" falls from 1 to `final_factor` at `total` along half a cosine
    (Loshchilov and Hutter 2017, equation 5, https://arxiv.org/abs/1608.03983). Warm-up and decay multiply, so a milestone
    is at the same step with and without warm-up. With `decay`, that is the factor beside the warm-up's, whatever the name.

    >>> s = Schedule("multistep", total=10, warmup=2, warmup_factor=0.5, milestones=(6,), gamma=0.1)
    >>> [round(s(i), 3) for i in (0, 1, 2, 5, 6, 9)]
    [0.5, 0.75, 1.0, 1.0, 0.1, 0.1]
    """

    name: str
    total: int
    warmup: int = 0
    warmup_factor: float = 0.001
    milestones: Sequence[int] = ()
    gamma: float = 0.1
    final_factor: float = 0.0
    decay: Callable[[int], float] | None = None

    def __call__(self, step: int) -> float:
        """The factor for optimizer step `step` (0 is the first)."""
        ramp = 1.0
        if step < self.warmup:
            ramp = self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup
        if self.decay:
            return ramp * self.decay(step)
        if self.name == "multistep":
            return ramp * self.gamma ** bisect.bisect_right(self.milestones, step)
        if self.name == "cosine":
            progress = min(1.0, max(0, step - self.warmup) / max(1, self.total - self.warmup))
            cosine = (1 + math.cos(math.pi * progress)) / 2
            return ramp * (self.final_factor + (1 - self.final_factor) * cosine)
        return ramp
