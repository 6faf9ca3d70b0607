"""An optimizer from outside the package: Lion (Chen et al. 2023, algorithm 2, https://arxiv.org/abs/2302.06675)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from retina_dist.base.settings import setting
from retina_dist.optim.settings import OptimizerSettings


@dataclass
class LionSettings(OptimizerSettings):
    beta1: float = setting(0.9, "of the update", at_least=0, below=1)
    beta2: float = setting(0.99, "of the momentum", at_least=0, below=1)


class Lion(torch.optim.Optimizer):
    settings = LionSettings

    def __init__(self, groups: list[dict[str, Any]], settings: LionSettings) -> None:
        super().__init__(
            groups, {"lr": settings.lr, "beta1": settings.beta1, "beta2": settings.beta2}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                update = momentum.lerp(p.grad, 1 - group["beta1"]).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
                momentum.lerp_(p.grad, 1 - group["beta2"])
