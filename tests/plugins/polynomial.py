"""A schedule from outside the package: polynomial decay to 0."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.base.settings import setting
from retina_dist.optim.learning_rate import Decay
from retina_dist.optim.settings import ScheduleSettings


@dataclass
class PolynomialSettings(ScheduleSettings):
    power: float = setting(1.0, "1: a straight line", above=0)


class PolynomialDecay(Decay):
    settings = PolynomialSettings

    def __call__(self, step: int) -> float:
        done = max(0, step - self.warmup) / (self.total - self.warmup)
        return float((1 - done) ** self.settings.power)
