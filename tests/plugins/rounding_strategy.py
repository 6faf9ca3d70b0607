"""A strategy from outside the package that loses something: gradients of 8 bits under torchrun, with error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.settings import setting
from retina_dist.strategies.ddp import DDPStrategy
from retina_dist.strategies.settings import StrategyConfig


@dataclass
class RoundingSettings(StrategyConfig):
    """Those of DDP, whose collectives it uses."""

    name: str = "rounding"
    bits: int = setting(8, "of each gradient on the wire", at_least=2, at_most=16)


class RoundingStrategy(DDPStrategy):
    """What rounding takes from a gradient is added to the next step's; each rank keeps its own."""

    settings = RoundingSettings

    def __init__(self, settings: RoundingSettings, launch: Any) -> None:
        super().__init__(settings, launch)
        self.levels = 2 ** (settings.bits - 1) - 1

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.left: dict[str, Tensor] = {}
        return model

    def reduce_gradients(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is None:  # another rank may have one
                parameter.grad = torch.zeros_like(parameter)
            whole = parameter.grad + self.left.get(name, 0)
            step = whole.abs().max().clamp(min=1e-30) / self.levels
            sent = (whole / step).round() * step
            self.left[name] = (whole - sent).nan_to_num(0.0)  # a step that is not finite is skipped
            parameter.grad.copy_(self.all_reduce(sent))

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = {name: x.to(self.device) for name, x in state["left"].items()}
