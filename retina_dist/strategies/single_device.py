"""One process on one device: every collective is the identity. Layer 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retina_dist.errors import ConfigError
from retina_dist.strategies.base import DistributedStrategy, ReduceOp


class SingleDeviceStrategy(DistributedStrategy):
    """Trains in this process alone.

    `device` is "auto" (the first GPU if there is one, else the CPU) or a torch device such as "cuda:1"; one that this
    machine does not have raises ConfigError.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = _resolve(device)

    def prepare(self, model: nn.Module, optimizer: Optimizer, accumulate: int = 1) -> nn.Module:
        return model

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        return x.clone()

    def all_gather(self, rows: Tensor) -> Tensor:
        return rows

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return x


def _resolve(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"strategy.device={name} cannot be used ({reason}); use auto or cpu.") from error
    return device
