"""The formulas of communication, by hand, against what was measured, and against DDP's own buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributed as dist

from retina_dist.benchmark.communication import (
    MACHINES,
    Gradients,
    Machine,
    allreduce_ms,
    expected_maximum,
    exposed_ms,
    fill_buckets,
    step_time,
    straggler_factor,
)

# 4 GPUs a machine, 10 GB/s and 10 us inside, 1 GB/s and 100 us outside
FOUR = Machine("four", "GPU", 4, 10.0, 10.0, 1.0, 100.0, "made up")
MB = 1e6


@pytest.mark.parametrize(
    ("gpus", "algorithm", "expected"),
    [
        (1, "auto", 0.0),
        (2, "auto", 10 + 0.02),  # 2 * 1/2 * 100 MB / 10 GB/s; 2 hops
        (4, "ring", 15 + 0.06),  # 2 * 3/4; 6 hops
        (8, "ring", 175 + 0.12 + 0.2),  # 2 * 7/8 at 1 GB/s; 12 hops inside, 2 outside
        (8, "hierarchical", 15.06 + 100 + 0.2),  # 2 * 1/2 at 1 GB/s; two hops
        (8, "auto", 15.06 + 100 + 0.2),
    ],
)
def test_an_allreduce_takes_what_it_takes_by_hand(gpus: int, algorithm: str, expected: float) -> None:
    assert allreduce_ms(100 * MB, gpus, FOUR, algorithm) == pytest.approx(expected)  # type: ignore[arg-type]


def test_many_machines_use_trees_for_what_is_small_and_rings_for_what_is_large() -> None:
    inside = 6 * 0.01
    assert allreduce_ms(0, 4 * 64, FOUR, "hierarchical") == pytest.approx(
        inside + 2 * 6 * 0.1
    )  # log2(64) levels, twice
    ring = 15_000 + inside + 2 * 63 / 64 * 100_000 + 2 * 63 * 0.1
    assert allreduce_ms(1e5 * MB, 4 * 64, FOUR, "hierarchical") == pytest.approx(ring)


# GB/s at MB: https://github.com/Azure/AI-benchmarking-guide, Azure_Results/ND_A100_v4_results.md and ND_H200_v5_results.md
@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("Standard_ND96amsr_A100_v4", {16.8: 109.22, 33.6: 132.77, 67.1: 166.63, 134.2: 174.18, 1073.7: 228.10}),
        ("Standard_ND96isr_H200_v5", {16.8: 240.41, 33.6: 300.91, 67.1: 368.11, 134.2: 412.45, 1073.7: 467.58}),
    ],
)
def test_nvlink_is_as_fast_as_measured_at_the_sizes_of_buckets_and_gradients(
    name: str, measured: dict[float, float]
) -> None:
    for size, bus_bandwidth in measured.items():
        modelled = 2 * 7 / 8 * size / allreduce_ms(size * MB, 8, MACHINES[name])
        assert modelled == pytest.approx(bus_bandwidth, rel=0.16), size


@pytest.mark.parametrize(
    ("count", "published"),  # Harter 1961, table 1
    [(1, 0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (8, 1.42360), (16, 1.76599), (100, 2.50759)],
)
def test_the_expected_maximum_is_the_published_one(count: int, published: float) -> None:
    assert expected_maximum(count) == pytest.approx(published, abs=1e-5)


def test_the_slowest_of_drawn_steps_is_as_slow_as_calculated() -> None:
    drawn = np.random.default_rng(0).normal(1.0, 0.05, (20_000, 32)).max(axis=1).mean()
    assert straggler_factor(32, 0.05) == pytest.approx(drawn, abs=5e-4)
    assert straggler_factor(32, 0.0) == 1.0


def test_buckets_are_those_of_ddp() -> None:
    sizes = torch.randint(1, 9_000_000, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    gradients = [Gradients(4 * size, i / 39) for i, size in enumerate(sizes)]
    tensors = [torch.empty(size, device="meta") for size in sizes]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20])
    expected = [(sum(4 * sizes[i] for i in bucket), max(bucket) / 39) for bucket in indices]
    assert [tuple(bucket) for bucket in fill_buckets(gradients[::-1], 25)] == expected


def test_a_bucket_waits_for_its_gradients_and_for_the_bucket_before() -> None:
    def five(num_bytes: float) -> float:
        return 5.0

    early = [Gradients(1, 0.2), Gradients(1, 0.3), Gradients(1, 1.0)]
    assert exposed_ms(early, 100, five, overlap=True) == 5.0  # only the last one
    assert exposed_ms(early, 10, five, overlap=True) == 7.0  # 2..7, 7..12, 12..17
    assert exposed_ms(early, 10, five, overlap=False) == 15.0


def test_a_step_is_that_of_the_slowest_gpu_and_what_communication_adds() -> None:
    gradients = [Gradients(50 * MB, 0.5), Gradients(50 * MB, 1.0)]
    alone = step_time(100.0, 0.6, gradients, 1, FOUR, variation=0.1)
    assert alone == (100.0, 0.0, 0.0)
    two = step_time(100.0, 0.6, gradients, 2, FOUR, overlap=False, compression=0.5, variation=0.1)
    assert two.waiting_ms == pytest.approx(10 / math.sqrt(math.pi))
    assert two.exposed_ms == pytest.approx(2 * (2.5 + 0.02))  # two buckets of 25 MB at 10 GB/s
    assert two.total_ms == pytest.approx(100 + two.waiting_ms + two.exposed_ms)
    assert step_time(100.0, 0.6, gradients, 2, FOUR).exposed_ms == pytest.approx(5.02)


def test_every_machine_names_where_its_numbers_come_from() -> None:
    for name, machine in MACHINES.items():
        assert name == machine.name
        assert machine.source
        assert min(machine.gpus, machine.inside, machine.outside, machine.inside_us, machine.outside_us) > 0
