"""How fast an all-reduce over all ranks is."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from retina_dist.strategies.base import DistributedStrategy

SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket
SECONDS = 2.0  # for all repetitions of a size, about
MOST = 20  # repetitions


class Link(NamedTuple):
    """An all-reduce of so many bytes (1e6 a MB) over all ranks; the slowest rank's time, the mean of the repetitions."""

    size_mb: int
    ms: float

    def gb_s(self, ranks: int) -> float:
        """Bus bandwidth as nccl-tests prints it: 2 (n-1)/n of the bytes in the time."""
        return 2 * (ranks - 1) / ranks * self.size_mb / self.ms


def measure_links(strategy: DistributedStrategy) -> list[Link]:
    """The time of an all-reduce of each of `SIZES_MB`, equal on all ranks; none with one rank. Every rank calls it.

    It includes the copy that the strategy makes of what it is given, and the wait for the device.
    """
    if strategy.world_size == 1:
        return []
    return [Link(size, _milliseconds(strategy, size)) for size in SIZES_MB]


def _milliseconds(strategy: DistributedStrategy, size_mb: int) -> float:
    x = torch.ones(size_mb * 10**6 // 4, device=strategy.device)

    def slowest_ms(repetitions: int) -> float:
        float(strategy.all_reduce(x[:1]))  # begin together
        started = time.perf_counter()
        for _ in range(repetitions):
            found = strategy.all_reduce(x, "sum")
        float(found[0])  # waits for a GPU
        own = torch.tensor([(time.perf_counter() - started) / repetitions * 1e3], device=strategy.device)
        return float(strategy.all_reduce(own, "max"))

    slowest_ms(1)  # connections are made at the first
    once = slowest_ms(1)
    return slowest_ms(max(1, min(MOST, int(SECONDS * 1e3 / max(once, 1e-3)))))
