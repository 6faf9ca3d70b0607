"""One process on one device: every collective is the identity."""

from __future__ import annotations

from torch import Tensor, nn

from retina_dist.strategies.base import DistributedStrategy, ReduceOp
from retina_dist.strategies.devices import resolve_device


class SingleDeviceStrategy(DistributedStrategy):
    """Trains in this process alone, on the `device` that `resolve_device` gives, which raises ConfigError for an impossible one."""

    backend = "one process"

    def __init__(self, device: str = "auto") -> None:
        self.device = resolve_device(device)

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        return model

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        return x.clone()

    def all_gather(self, rows: Tensor) -> Tensor:
        return rows

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return x
