"""How fast an all-reduce is, and how fast the hardware should make it."""

from __future__ import annotations

import re
import time
from collections import Counter
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
from retina_dist.gpus import GPUS
from retina_dist.preflight.facts import Facts
from retina_dist.strategies.base import DistributedStrategy

SIZES_MB = (1, 64)  # 1e6 bytes: a latency, and more than a bucket
SECONDS = 2.0  # for all repetitions of a size, about
MOST = 20  # repetitions

# How GPUs of a machine reach each other, by the names of `gpus.GPUS`: GB/s and microseconds a hop. Those with bridges (H100
# PCIe and NVL) or of V100's NVLink have no figure here, nor have slices of a GPU.
NVLINK = {
    "A100-40GB": (NVLINK_A100, NVLINK_A100_US),
    "A100-80GB": (NVLINK_A100, NVLINK_A100_US),
    "H100-80GB": (NVLINK_H200, NVLINK_H200_US),
    "H200-141GB": (NVLINK_H200, NVLINK_H200_US),
}
PCI = {
    **dict.fromkeys(("A100-40GB", "A100-PCIe-80GB", "A10", "L4", "L40", "L40S", "A40"), (PCI_4, PCI_US)),
    **dict.fromkeys(("T4", "V100-16GB", "V100-32GB"), (PCI_3, PCI_US)),
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
    counts = Counter(facts.machine for facts in ranks)
    each = max(counts.values())
    if sku is not None:
        return _part_of(MACHINES[sku], each), f"{sku}, by its documentation"
    gpus = {facts.gpu for facts in ranks}
    gpu = next(iter(gpus))
    if gpu is None or len(gpus) > 1 or len(set(counts.values())) > 1:
        return None, "not known for CPUs and for unequal machines: expect_gb_s=NUMBER holds it to a number"
    inside, inside_us = _inside(gpu)
    outside, outside_us, words = _outside(ranks, each)
    if (each > 1 and inside is None) or (len(counts) > 1 and outside is None):
        what = f"the links of {gpu}" if each > 1 and inside is None else f"the network cards' speed{words}"
        return None, f"not known, as {what} could not be told: give sku=NAME or expect_gb_s=NUMBER"
    machine = Machine(
        "found", gpu, each, inside or PCI_4, inside_us or PCI_US, outside or 1.0, outside_us, source="found"
    )
    said = [f"{gpu} among each other"] * (each > 1) + [f"{words} between hosts"] * (len(counts) > 1)
    return machine, " and ".join(said)


def _part_of(machine: Machine, gpus: int) -> Machine:
    """A machine of which a job uses so many GPUs, and with InfiniBand the cards nearest to them."""
    share = min(1.0, gpus / machine.gpus) if machine.outside_us == INFINIBAND_US else 1.0
    return replace(machine, gpus=gpus, outside=machine.outside * share)


def _inside(gpu: str) -> tuple[float | None, float | None]:
    """GB/s and microseconds between the GPUs of a machine, where they are known."""
    name = next((known.name for known in GPUS if re.fullmatch(known.pattern, gpu)), "")
    sxm = "SXM" in gpu or (name in NVLINK and name not in PCI)
    if sxm:
        return NVLINK.get(name, (None, None))
    return PCI.get(name, (None, None))


def _outside(ranks: Sequence[Facts], each: int) -> tuple[float | None, float, str]:
    """GB/s and microseconds between hosts with so many ranks, of the slowest host's cards, and their name.

    NCCL gives each GPU the InfiniBand card nearest to it, so that GPUs of a host that the job does not use leave cards idle.
    Without a speed, the last is why, in parentheses.
    """
    infiniband = [min(f.infiniband_gbit or 0.0, each * (f.infiniband_port_gbit or 0.0)) for f in ranks]
    if min(infiniband):
        gbit = min(infiniband)
        return gbit / 8 * INFINIBAND_SHARE, INFINIBAND_US, f"{gbit:g} Gbit/s of InfiniBand"
    if reason := next((facts.shared_cards for facts in ranks if facts.shared_cards), None):
        return None, TCP_US, f" ({reason})"
    gbit = min(facts.ethernet_gbit or 0.0 for facts in ranks)
    return (gbit / 8 * TCP_SHARE, TCP_US, f"{gbit:g} Gbit/s of Ethernet") if gbit else (None, TCP_US, "")


def with_expected(links: Sequence[Link], ranks: int, machine: Machine | None, overhead_ms: float = 0.0) -> list[Link]:
    """`links` with the milliseconds that `machine` should need, plus those that the backend adds; unchanged if it is not known."""
    if machine is None:
        return list(links)
    return [link._replace(expected_ms=overhead_ms + allreduce_ms(link.size_mb * 1e6, ranks, machine)) for link in links]
