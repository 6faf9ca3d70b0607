"""How fast an all-reduce is, and how fast the hardware should make it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from retina_dist.benchmark.communication import (
    INFINIBAND_SHARE,
    INFINIBAND_US,
    MACHINES,
    NVLINK_A100,
    NVLINK_A100_US,
    NVLINK_H200,
    NVLINK_H200_US,
    PCI_3,
    PCI_4,
    PCI_US,
    TCP_SHARE,
    TCP_US,
    Machine,
    allreduce_ms,
)
from retina_dist.preflight.facts import Facts
from retina_dist.strategies.base import DistributedStrategy

SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket
SECONDS = 2.0  # for all repetitions of a size, about
MOST = 20  # repetitions

# How GPUs of a machine reach each other, by the name that torch gives them: GB/s and microseconds a hop.
INSIDE = {
    r"A100.*SXM": (NVLINK_A100, NVLINK_A100_US),
    r"H100 80GB HBM3|H200(?! NVL)": (NVLINK_H200, NVLINK_H200_US),
    r"A100.*PCI|\bA10\b|\bL4\b|L40|A40": (PCI_4, PCI_US),
    r"T4|V100-PCI|P100-PCI": (PCI_3, PCI_US),
}


class Link(NamedTuple):
    """An all-reduce of so many bytes (1e6 a MB) over all ranks; the slowest rank's time, the mean of the repetitions."""

    size_mb: int
    ms: float
    expected_ms: float | None = None  # None: what it should be is not known

    def gb_s(self, ranks: int, ms: float | None = None) -> float:
        """Bus bandwidth as nccl-tests prints it: 2 (n-1)/n of the bytes in the time."""
        return 2 * (ranks - 1) / ranks * self.size_mb / (ms or self.ms)


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


def expected_machine(ranks: Sequence[Facts], sku: str | None) -> tuple[Machine | None, str]:
    """The machine that the ranks are on, or None, and in words what was taken for it.

    `sku` is one of `MACHINES`; None: what the GPU's name and the network cards say. On a CPU nothing is expected.
    """
    hosts = {facts.host for facts in ranks}
    each = -(-len(ranks) // len(hosts))
    if sku is not None:
        return replace(MACHINES[sku], gpus=each), f"{sku}, by its documentation"
    gpus = {facts.gpu for facts in ranks}
    gpu = next(iter(gpus))
    if gpu is None or len(gpus) > 1 or len(ranks) % len(hosts):
        return None, "not known for CPUs and for unequal machines: expect_gb_s=NUMBER holds it to a number"
    inside, inside_us = next((v for k, v in INSIDE.items() if re.search(k, gpu)), (None, None))
    outside, outside_us, words = _outside(ranks)
    if (each > 1 and inside is None) or (len(hosts) > 1 and outside is None):
        what = f"the links of {gpu}" if each > 1 and inside is None else "the network cards' speed"
        return None, f"not known, as {what} could not be told: give sku=NAME or expect_gb_s=NUMBER"
    machine = Machine(
        "found", gpu, each, inside or PCI_4, inside_us or PCI_US, outside or 1.0, outside_us, source="found"
    )
    said = [f"{gpu} among each other"] * (each > 1) + [f"{words} between hosts"] * (len(hosts) > 1)
    return machine, " and ".join(said)


def _outside(ranks: Sequence[Facts]) -> tuple[float | None, float, str]:
    """GB/s and microseconds between hosts, of the slowest host's cards, and their name."""
    infiniband = [facts.infiniband_gbit or 0.0 for facts in ranks]
    if min(infiniband):
        gbit = min(infiniband)
        return gbit / 8 * INFINIBAND_SHARE, INFINIBAND_US, f"{gbit:g} Gbit/s of InfiniBand"
    gbit = min(facts.ethernet_gbit or 0.0 for facts in ranks)
    return (gbit / 8 * TCP_SHARE or None), TCP_US, f"{gbit:g} Gbit/s of Ethernet"


def with_expected(links: Sequence[Link], ranks: int, machine: Machine | None) -> list[Link]:
    """The same with what the machine should need."""
    if machine is None:
        return list(links)
    return [link._replace(expected_ms=allreduce_ms(link.size_mb * 1e6, ranks, machine)) for link in links]
