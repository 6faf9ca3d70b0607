"""A strategy from outside the package: mpi4py's blocking collectives, on CPU tensors,
under mpirun.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor, nn

from retina_dist.base.settings import setting
from retina_dist.strategies.base import DistributedStrategy, ReduceOp
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategySettings

OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}


@dataclass
class MPISettings(StrategySettings):
    """Settings of `MPIStrategy`."""

    chunk_mb: float = setting(16.0, "MiB of gradients in one all-reduce, at most", above=0)


class MPIStrategy(DistributedStrategy):
    """One of the processes that mpirun started; gradients are averaged after the backward pass,
    parameter by parameter.
    """

    settings = MPISettings
    backend = "mpi4py"

    def __init__(self, settings: MPISettings, launch: Launch) -> None:
        self.launch, self.chunk = launch, int(settings.chunk_mb * 2**20)
        self.device = torch.device("cpu")
        self._parameters: list[nn.Parameter] = []

    @classmethod
    def supports(cls, launch: Launch) -> bool:
        return launch.launcher in ("mpirun", "python")

    @property
    def rank(self) -> int:
        return MPI.COMM_WORLD.rank

    @property
    def local_rank(self) -> int:
        return self.launch.local_rank

    @property
    def world_size(self) -> int:
        return MPI.COMM_WORLD.size

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._parameters = []

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        return model

    def reduce_gradients(self) -> None:
        for p in self._parameters:
            if p.grad is None:  # another rank may have one
                p.grad = torch.zeros_like(p)
            p.grad.copy_(self.all_reduce(p.grad))

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        found = x.detach().clone(memory_format=torch.contiguous_format)
        flat = found.view(-1).numpy()
        size = max(1, self.chunk // found.element_size())
        for start in range(0, flat.size, size):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat[start : start + size], OPS[op])
        return found / self.world_size if op == "mean" else found

    def all_gather(self, rows: Tensor) -> Tensor:
        parts: list[Any] = MPI.COMM_WORLD.allgather(np.ascontiguousarray(rows.numpy()))
        return torch.cat([torch.from_numpy(part) for part in parts])

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        values = x.contiguous()
        MPI.COMM_WORLD.Bcast(values.view(-1).numpy(), root=src)
        return x.copy_(values)
