"""Ranks that are threads of this process: to test what communicates without a launcher."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from retina_dist.engine.replicas import trained_parameters
from retina_dist.strategies.base import ReduceOp
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.single_device import SingleDeviceStrategy

T = TypeVar("T")
OPS: dict[str, Callable[..., Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class Job:
    """Where the ranks of a job meet; a wait for a rank that never comes fails after two minutes."""

    def __init__(self, world_size: int) -> None:
        self.slots: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=120)


class ThreadRank(SingleDeviceStrategy):
    """One rank of a job in threads, on the CPU. `calls` names the collectives it took part in."""

    backend = "threads"

    def __init__(self, rank: int, job: Job) -> None:
        super().__init__("cpu")
        self.launch = Launch(rank=rank, world_size=len(job.slots))
        self.job = job
        self.calls: list[str] = []
        self.averaged: list[nn.Parameter] = []

    def exchange(self, name: str, x: Tensor) -> list[Tensor]:
        """Every rank's tensor, in rank order."""
        self.calls.append(name)
        self.job.slots[self.rank] = x.clone()
        self.job.barrier.wait()
        everyone = list(self.job.slots)
        self.job.barrier.wait()
        return everyone

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self.averaged = trained_parameters(model)
        return model

    def reduce_gradients(self) -> None:
        for parameter in self.averaged:
            if parameter.grad is not None:
                parameter.grad.copy_(self.all_reduce(parameter.grad))

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        return OPS[op](torch.stack(self.exchange(f"all_reduce {op}", x)), dim=0)

    def all_gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self.exchange("all_gather", rows))

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return x.copy_(self.exchange(f"broadcast {src}", x)[src])


def on_ranks(world_size: int, function: Callable[[ThreadRank], T]) -> list[T]:
    """What `function(strategy)` returns on each rank, all at once.

    Raises what the first rank to fail raises.
    """
    job = Job(world_size)
    errors: list[BaseException] = []

    def one(rank: int) -> T:
        try:
            return function(ThreadRank(rank, job))
        except BaseException as error:
            errors.append(error)
            job.barrier.abort()  # the other ranks wait for this one
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(one, rank) for rank in range(world_size)]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
