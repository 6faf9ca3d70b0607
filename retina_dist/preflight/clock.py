"""How far the clocks of two hosts are apart, by collectives alone, with a bound that holds whatever the network does.

No rank leaves an all-reduce before every rank has entered it. So what one clock shows after it is later than what another showed
before it, but for the difference of the two: each all-reduce bounds that from both sides, as a request and its answer do in
Cristian 1989, https://doi.org/10.1007/BF01784024.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from retina_dist.strategies.base import DistributedStrategy

ROUNDS = 20

Readings = Sequence[Sequence[float]]  # (before, after) each all-reduce, in seconds since 1970


class Offset(NamedTuple):
    """Seconds by which a clock is ahead of another: `ahead_s`, give or take `bound_s`."""

    ahead_s: float
    bound_s: float

    @property
    def at_least_s(self) -> float:
        """How far apart the clocks are at least."""
        return max(0.0, abs(self.ahead_s) - self.bound_s)


def read_clock(strategy: DistributedStrategy) -> list[tuple[float, float]]:
    """This host's time before and after each of `ROUNDS` all-reduces. Every rank calls it."""
    readings = []
    for _ in range(ROUNDS):
        before = time.time()
        float(strategy.all_reduce(torch.zeros(1), "sum"))  # on the CPU, as the GPUs' network is not measured yet
        readings.append((before, time.time()))
    return readings


def offset(reference: Readings, other: Readings) -> Offset:
    """How far `other` is ahead of `reference`.

    >>> offset([(0.0, 2.0)], [(10.5, 12.0)])
    Offset(ahead_s=10.25, bound_s=1.75)
    """
    rounds = list(zip(reference, other, strict=True))
    least = max(there[0] - here[1] for here, there in rounds)
    most = min(there[1] - here[0] for here, there in rounds)
    return Offset((least + most) / 2, abs(most - least) / 2)
