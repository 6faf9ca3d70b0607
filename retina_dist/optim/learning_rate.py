"""The learning rate: scaled to the batch by the rule of `lr_rule`, then a pure function of the step
without state.
"""

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of
from retina_dist.optim.settings import (
    ConstantSettings,
    CosineSettings,
    MultiStepSettings,
    OptimizerSettings,
    ScheduleSettings,
)

AUTO_WARMUP_STEPS = 50
ToSteps = Callable[
    [str, str], int
]  # (key, duration), such as 16epochs, to optimizer steps; raises ConfigError


class Decay(ABC):
    """The factor of the learning rate beside the warm-up's, a pure function of the step.

    `total` and `warmup` are the steps of the run and of its warm-up. A class below has its
    dataclass below `ScheduleSettings` as `settings`, an instance its values.
    """

    settings: Any

    def __init__(self, settings: object, total: int, warmup: int, to_steps: ToSteps) -> None:
        self.settings, self.total, self.warmup = settings, total, warmup

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The factor for optimizer step `step` (0 is the first)."""

    def describe(self, lr: float) -> str:
        """For the plan's line, after the learning rate itself, such as "cosine to 0"; `lr` is the
        rate of factor 1.
        """
        return str(self.settings.name)


class Constant(Decay):
    """The factor 1."""

    settings = ConstantSettings

    def __call__(self, step: int) -> float:
        return 1.0


class MultiStep(Decay):
    """Multiplied by `gamma` at each milestone, which is at the same step with and
    without warm-up.
    """

    settings = MultiStepSettings

    def __init__(self, settings: Any, total: int, warmup: int, to_steps: ToSteps) -> None:
        super().__init__(settings, total, warmup, to_steps)
        to_step = partial(to_steps, "schedule.milestones")
        self.milestones = tuple(map(to_step, settings.milestones))
        given = f"schedule.milestones={list(settings.milestones)}"
        if not all(0 < step < total for step in self.milestones):
            raise ConfigError(
                f"{given} must be between 0 and the end at step {total}; "
                "give earlier ones, or raise trainer.max_duration."
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigError(f"{given} do not rise; list them in order, each once.")

    def __call__(self, step: int) -> float:
        return float(self.settings.gamma ** bisect.bisect_right(self.milestones, step))

    def describe(self, lr: float) -> str:
        return (
            f"multistep, x{self.settings.gamma:g} at steps {', '.join(map(str, self.milestones))}"
        )


class Cosine(Decay):
    """From 1 to `final_factor` at `total` along half a cosine: https://arxiv.org/abs/1608.03983,
    equation 5.
    """

    settings = CosineSettings

    def __call__(self, step: int) -> float:
        progress = min(1.0, max(0, step - self.warmup) / max(1, self.total - self.warmup))
        final = self.settings.final_factor
        return float(final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)

    def describe(self, lr: float) -> str:
        return f"cosine to {lr * self.settings.final_factor:g}"


@dataclass(frozen=True)
class Schedule:
    """The factor of the base learning rate: `decay`, times a line from `warmup_factor` to 1 over
    the first `warmup` steps.
    """

    decay: Decay
    warmup: int
    warmup_factor: float

    def __call__(self, step: int) -> float:
        """The factor for optimizer step `step` (0 is the first)."""
        ramp = 1.0
        if step < self.warmup:
            ramp = self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup
        return ramp * self.decay(step)


def build_schedule(settings: ScheduleSettings, total: int, to_steps: ToSteps) -> Schedule:
    """Warm-up and decay of the settings' entry. Raises ConfigError where the run is too short."""
    duration = settings.warmup.removesuffix(" or auto")
    warmup = automatic = min(AUTO_WARMUP_STEPS, total // 10)
    if duration != "auto":
        warmup = to_steps("schedule.warmup", duration)
    if warmup >= total and duration != settings.warmup:
        warmup = automatic
    decay = class_of(settings)(settings, total, warmup, to_steps)
    if warmup >= total:
        raise ConfigError(
            f"schedule.warmup={settings.warmup} fills all {total} steps; "
            f"give schedule.warmup=auto, or at most {total - 1}steps."
        )
    return Schedule(decay, warmup, settings.warmup_factor)


def base_lr(settings: OptimizerSettings, batch_size: int) -> float:
    """`optimizer.lr` times batch_size / lr_reference_batch ("linear",
    https://arxiv.org/abs/1706.02677) or its root ("sqrt").
    """
    ratio = batch_size / settings.lr_reference_batch
    return settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_rule]
