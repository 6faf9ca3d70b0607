"""How long gradients take between GPUs: an alpha-beta model of all-reduce, and of what the backward pass hides of it.

Pure functions and a table of machines. Every transfer costs a latency and its bytes over a bandwidth (alpha and beta); what the
model leaves out is named where it is left out. `published` holds it against published results, which gave `LEAVING_MS` and
`VARIATION`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal, NamedTuple

Algorithm = Literal["auto", "ring", "hierarchical"]


@dataclass(frozen=True)
class Machine:
    """A virtual machine: its GPUs, how fast they average gradients among themselves, and how fast machines do.

    `inside` and `outside` are bus bandwidths in GB/s (1e9 bytes), as nccl-tests prints them: of an all-reduce among the GPUs of
    one, and of one between machines over all network cards of each. The latencies, in microseconds, are of one hop.
    """

    name: str
    gpu: str
    gpus: int
    inside: float
    inside_us: float
    outside: float
    outside_us: float
    source: str
    infiniband: bool = False  # or RoCE and alike, as in MLPerf's submissions


# What an all-reduce reaches of a network card's nominal bandwidth. TCP: 1.7 GB/s of 25 Gbit/s between two Azure VMs of four
# GPUs, https://github.com/NVIDIA/nccl-tests/issues/83; it can be more (0.95 with one GPU a machine and several sockets each,
# https://github.com/NVIDIA/nccl/issues/209), for which there are custom machines. InfiniBand: 46 to 48 GB/s of 400 Gbit/s,
# https://github.com/NVIDIA/nccl-tests/issues/290.
TCP_SHARE = 1.7 / (25 / 8)
INFINIBAND_SHARE = 47 / (400 / 8)

# Microseconds of a hop. TCP: 8 bytes between two Azure VMs, https://github.com/NVIDIA/nccl-tests/issues/82. InfiniBand and PCIe:
# what NCCL itself reckons with (Ring, Simple), https://github.com/NVIDIA/nccl/blob/v2.18.3-1/src/graph/tuning.cc
TCP_US, INFINIBAND_US, PCI_US = 45.8, 14.0, 5.7

# Eight GPUs joined by NVLink: bandwidth at 8 GB, latency of a hop such that 33 MB, about a bucket, takes what was measured there
# (132.8 and 300.9 GB/s). https://github.com/Azure/AI-benchmarking-guide, Azure_Results/ND_{A100_v4,H200_v5}_results.md
NVLINK_A100, NVLINK_A100_US = 231.58, 13.5
NVLINK_H200, NVLINK_H200_US = 479.98, 5.2

PCI_3 = 12.0  # GB/s of 16 lanes as NCCL reckons, https://github.com/NVIDIA/nccl/blob/v2.18.3-1/src/graph/topo.h
PCI_4 = 20.0  # GB/s between A100s without NVLink, https://github.com/NVIDIA/nccl-tests/issues/178
H100_PAIR = 115.0  # GB/s, two H100 PCIe with bridges, https://github.com/NVIDIA/nccl/issues/1161

# What the formulas below leave out, fitted to MLPerf Training 2.0 to 3.1; `published.fit` finds the same numbers again.
LEAVING_MS = 2.1  # a step, once gradients leave the machine
VARIATION = 0.034  # deviation over mean of GPUs' step times

SIZES = "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated"


def _over_tcp(name: str, gpu: str, gpus: int, inside: float, inside_us: float, gbit: float, source: str) -> Machine:
    return Machine(name, gpu, gpus, inside, inside_us, gbit / 8 * TCP_SHARE, TCP_US, source)


def _over_infiniband(name: str, gpu: str, inside: float, inside_us: float, gbit: float, source: str) -> Machine:
    outside = 8 * gbit / 8 * INFINIBAND_SHARE  # a card for each of the eight GPUs
    return Machine(name, gpu, 8, inside, inside_us, outside, INFINIBAND_US, source, infiniband=True)


MACHINES = {
    machine.name: machine
    for machine in (
        _over_tcp(
            "Standard_NC24", "K80 (half a board)", 4, PCI_3, PCI_US, 25,
            "the machine of 2018, since retired; no bandwidth is published: that of nccl-tests#83 assumed, and PCIe 3",
        ),
        _over_tcp("Standard_NC16as_T4_v3", "T4", 1, PCI_3, PCI_US, 8, f"8 Gbit/s, {SIZES}/ncast4v3-series"),
        _over_tcp("Standard_NC64as_T4_v3", "T4", 4, PCI_3, PCI_US, 32, f"32 Gbit/s, PCIe 3, {SIZES}/ncast4v3-series"),
        _over_tcp("Standard_NC24ads_A100_v4", "A100 80 GB", 1, PCI_4, PCI_US, 20, f"20 Gbit/s, {SIZES}/nca100v4-series"),
        _over_tcp(
            "Standard_NC48ads_A100_v4", "A100 80 GB", 2, PCI_4, PCI_US, 40,
            f"40 Gbit/s, {SIZES}/nca100v4-series; PCIe 4, since no NVLink is documented",
        ),
        _over_tcp(
            "Standard_NC96ads_A100_v4", "A100 80 GB", 4, PCI_4, PCI_US, 80,
            f"80 Gbit/s, {SIZES}/nca100v4-series; PCIe 4, since no NVLink is documented",
        ),
        _over_tcp("Standard_NC40ads_H100_v5", "H100 NVL", 1, PCI_4, PCI_US, 40, f"40 Gbit/s, {SIZES}/ncadsh100v5-series"),
        _over_tcp(
            "Standard_NC80adis_H100_v5", "H100 NVL", 2, H100_PAIR, NVLINK_H200_US, 80,
            f"80 Gbit/s, {SIZES}/ncadsh100v5-series; NVLink as of two H100 PCIe",
        ),
        _over_infiniband(
            "Standard_ND96asr_v4", "A100 40 GB", NVLINK_A100, NVLINK_A100_US, 200,
            f"8 x 200 Gbit/s InfiniBand, {SIZES}/ndasra100v4-series; NVLink as measured on its sister of 80 GB",
        ),
        _over_infiniband(
            "Standard_ND96amsr_A100_v4", "A100 80 GB", NVLINK_A100, NVLINK_A100_US, 200,
            f"8 x 200 Gbit/s InfiniBand, {SIZES}/ndma100v4-series; NVLink as measured on it",
        ),
        _over_infiniband(
            "Standard_ND96isr_H100_v5", "H100", NVLINK_H200, NVLINK_H200_US, 400,
            f"8 x 400 Gbit/s InfiniBand, {SIZES}/ndh100v5-series; NVLink 4 as measured on the H200 machine",
        ),
        _over_infiniband(
            "Standard_ND96isr_H200_v5", "H200", NVLINK_H200, NVLINK_H200_US, 400,
            f"8 x 400 Gbit/s InfiniBand, {SIZES}/nd-h200-v5-series; NVLink as measured on it",
        ),
    )
}  # fmt: skip


def ring_ms(num_bytes: float, members: int, gb_s: float, hop_us: float) -> float:
    """Milliseconds of an all-reduce around a ring: 2 (n-1)/n S/B + 2 (n-1) a.

    Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002; B is nccl-tests' bus bandwidth,
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

    >>> ring_ms(1e9, 4, gb_s=1.0, hop_us=0.0)
    1500.0
    """
    hops = 2 * (members - 1)
    return (hops / members * num_bytes / (gb_s * 1e9) + hops * hop_us * 1e-6) * 1e3


def tree_ms(num_bytes: float, members: int, gb_s: float, hop_us: float) -> float:
    """Milliseconds of an all-reduce by two binary trees, each for half of the bytes: 2 S/B + 2 log2(n) a.

    Sanders, Speck and Träff 2009, https://doi.org/10.1016/j.parco.2009.09.001; NCCL's choice among many machines,
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/

    >>> tree_ms(1e9, 4, gb_s=1.0, hop_us=1000.0)
    2004.0
    """
    if members == 1:
        return 0.0
    return (2 * num_bytes / (gb_s * 1e9) + 2 * math.ceil(math.log2(members)) * hop_us * 1e-6) * 1e3


def allreduce_ms(num_bytes: float, gpus: int, machine: Machine, algorithm: Algorithm = "auto") -> float:
    """Milliseconds until all of `gpus` GPUs have the sum of `num_bytes` each.

    "ring" goes through all GPUs, machine after machine: its bandwidth is that of the slower link, and the latencies of its hops
    add up, as in NCCL's tuning.cc. "hierarchical" sums within each machine (reduce-scatter and all-gather, together a ring
    all-reduce), and between machines by ring or tree, whichever is faster; the stages are not overlapped, although libraries do
    that in part. "auto" is the faster of the two. `gpus` fill whole machines unless one holds them all.
    """
    if gpus <= machine.gpus:
        return ring_ms(num_bytes, gpus, machine.inside, machine.inside_us)
    machines = gpus // machine.gpus
    narrowest = machine.outside if machine.gpus == 1 else min(machine.inside, machine.outside)
    hops_outside = 2 * (machines - 1)
    hops_inside = 2 * (gpus - 1) - hops_outside
    ring = ring_ms(num_bytes, gpus, narrowest, 0.0)
    ring += (hops_inside * machine.inside_us + hops_outside * machine.outside_us) * 1e-3
    between = min(way(num_bytes, machines, machine.outside, machine.outside_us) for way in (ring_ms, tree_ms))
    hierarchical = ring_ms(num_bytes, machine.gpus, machine.inside, machine.inside_us) + between
    return {"ring": ring, "hierarchical": hierarchical, "auto": min(ring, hierarchical)}[algorithm]


class Gradients(NamedTuple):
    """Gradients of `num_bytes`, the last of them complete when `ready` of the backward pass, 0 to 1, is done."""

    num_bytes: float
    ready: float


FIRST_BUCKET_MB = 1.0  # DDP's own, so that the first all-reduce starts early


def fill_buckets(gradients: Sequence[Gradients], bucket_mb: float) -> list[Gradients]:
    """What is averaged together: gradients in the order in which they are ready, a bucket ends once it holds `bucket_mb` MiB.

    As DDP does from the second step on: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    buckets: list[Gradients] = []
    size, limit = 0.0, FIRST_BUCKET_MB
    for gradient in sorted(gradients, key=lambda g: g.ready):
        size += gradient.num_bytes
        if size >= min(limit, bucket_mb) * 2**20:
            buckets.append(Gradients(size, gradient.ready))
            size, limit = 0.0, bucket_mb
    if size:
        buckets.append(Gradients(size, max(g.ready for g in gradients)))
    return buckets


def exposed_ms(
    buckets: Sequence[Gradients], backward_ms: float, cost_ms: Callable[[float], float], overlap: bool
) -> float:
    """Milliseconds from the end of the backward pass to that of the last all-reduce.

    Buckets are averaged one after another, in order, from the moment each is ready, or all after the backward pass without
    `overlap`. That averaging slows the computation down, as it does on a busy GPU, is left out.

    >>> exposed_ms([Gradients(1, 0.5), Gradients(1, 1.0)], 10.0, lambda num_bytes: 6.0, overlap=True)
    7.0
    """
    free = 0.0
    for bucket in buckets:
        ready = bucket.ready if overlap else 1.0
        free = max(free, ready * backward_ms) + cost_ms(bucket.num_bytes)
    return max(0.0, free - backward_ms)


@cache
def expected_maximum(count: int) -> float:
    """Expected value of the greatest of `count` independent standard normal values.

    The integral of x n phi(x) Phi(x)^(n-1), Harter 1961, https://doi.org/10.1093/biomet/48.1-2.151, by the trapezoidal rule,
    which for such a function is exact to rounding.

    >>> [round(expected_maximum(n), 4) for n in (1, 2, 8)]
    [0.0, 0.5642, 1.4236]
    """
    if count == 1:
        return 0.0
    normal, width = NormalDist(), 0.02
    grid = [i * width for i in range(-500, 501)]
    return width * sum(x * count * normal.pdf(x) * normal.cdf(x) ** (count - 1) for x in grid)


def straggler_factor(count: int, variation: float) -> float:
    """How much longer the slowest of `count` GPUs takes than the average one, whose step times vary by `variation`.

    `variation` is a coefficient of variation, deviation over mean. Steps are taken as normal and independent.
    """
    return 1 + variation * expected_maximum(count)


class Step(NamedTuple):
    """One step of `gpus` GPUs, in milliseconds."""

    total_ms: float
    waiting_ms: float  # for the slowest GPU
    exposed_ms: float  # communication that the backward pass does not hide


def step_time(
    alone_ms: float,
    backward_share: float,
    gradients: Sequence[Gradients],
    gpus: int,
    machine: Machine,
    *,
    bucket_mb: float = 25.0,
    algorithm: Algorithm = "auto",
    overlap: bool = True,
    compression: float = 1.0,
    variation: float = 0.0,
    leaving_ms: float = 0.0,
) -> Step:
    """The step of `gpus` GPUs, when one alone takes `alone_ms`, of which `backward_share` is the backward pass.

    An all-reduce ends when the slowest GPU has joined it, so the slowest one's time counts. `compression` is the share of the
    gradients' bytes that is sent; making and undoing it is left out. `leaving_ms` is added, as exposed, on more than one machine.
    """
    slowest = alone_ms * straggler_factor(gpus, variation)
    exposed = exposed_ms(
        fill_buckets(gradients, bucket_mb),
        backward_share * slowest,
        lambda num_bytes: allreduce_ms(compression * num_bytes, gpus, machine, algorithm),
        overlap,
    )
    if gpus == 1:
        exposed = 0.0
    if gpus > machine.gpus:
        exposed += leaving_ms
    return Step(slowest + exposed, slowest - alone_ms, exposed)
