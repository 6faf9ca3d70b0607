"""A task of your own in one file: fit y = 3x - 1, with resume, launchers and reports.

PYTHONPATH=examples python -m retina_dist.train --config-dir examples/conf task=line optimizer.lr=.3
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from retina_dist.engine.task import Task, Validator


@dataclass
class LineSettings:
    """Sections of the configuration; `data` (below `DataSettings`) and `model` may be added."""


class Points(NamedTuple):
    x: Tensor  # [n, 1]
    weight: float = 1.0  # n * ranks / batch size

    def to(self, device: torch.device, non_blocking: bool = False) -> "Points":
        return Points(self.x.to(device), self.weight)


class Line(nn.Linear):
    def forward(self, points: Points) -> Any:
        error = (super().forward(points.x) - (3 * points.x - 1)).square().mean()
        return {"square": error} if self.training else error


class LineTask(Task):
    settings = LineSettings
    num_images = 64

    def build_data(self) -> "LineTask":
        return self

    def train_steps(self, start: int, stop: int) -> Iterator[list[Points]]:
        size, ranks = self.config.data.batch_size, self.strategy.world_size
        for step in range(start, stop):  # the batch depends on the step, not on the ranks
            x = torch.rand(size, 1, generator=torch.Generator().manual_seed(step))
            part = x.tensor_split(ranks)[self.strategy.rank]
            yield [Points(part, len(part) * ranks / size)]

    def position(self, step: int) -> tuple[int, int]:
        return divmod(step * self.config.data.batch_size, self.num_images)

    def build_model(self, resumed: bool = False, checkpoint: Any = None) -> nn.Module:
        return Line(1, 1)

    def build_evaluator(self, data: Any) -> Validator:
        points = Points(torch.linspace(0, 1, 11)[:, None]).to(self.strategy.device)
        return torch.no_grad()(lambda model: {"val/loss": float(model.eval()(points))})

    def fingerprint(self) -> str:
        return "points of y = 3x - 1"
