"""A strategy from outside the package that loses something: gradients of 8 bits under torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from retina_dist.base.settings import setting
from retina_dist.strategies.ddp import DDPStrategy
from retina_dist.strategies.settings import DDPSettings


@dataclass
class RoundingSettings(DDPSettings):
    """Those of DDP, whose collectives it uses."""

    name: str = "rounding"
    bits: int = setting(8, "of each gradient on the wire", at_least=2, at_most=16)


class RoundingStrategy(DDPStrategy):
    """Rounds each rank's gradients to a grid of the parameter's own before they are added up."""

    settings = RoundingSettings

    def __init__(self, settings: RoundingSettings, launch: Any) -> None:
        super().__init__(settings, launch)
        self.levels = 2 ** (settings.bits - 1) - 1

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        return model

    def reduce_gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:  # another rank may have one
                parameter.grad = torch.zeros_like(parameter)
            step = parameter.grad.abs().max().clamp(min=1e-30) / self.levels
            parameter.grad.copy_(self.all_reduce((parameter.grad / step).round() * step))
