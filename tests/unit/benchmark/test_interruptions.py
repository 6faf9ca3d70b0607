"""Expected time under interruptions against a simulation, and the intervals against a search for the best one."""

from __future__ import annotations

import math
import random

import pytest

from retina_dist.benchmark.interruptions import daly_interval, expected_hours, young_interval


def simulated_hours(work: float, interval: float, checkpoint: float, restart: float, mtbi: float, seed: int) -> float:
    """A training of segments; each interruption, also of a restart, costs what was done since the last checkpoint."""
    rng = random.Random(seed)
    clock, done, left = 0.0, 0.0, rng.expovariate(1 / mtbi)

    def spend(hours: float) -> bool:
        nonlocal clock, left
        whole = hours <= left
        clock, left = clock + min(hours, left), left - min(hours, left)
        if not whole:
            left = rng.expovariate(1 / mtbi)
        return whole

    while done < work - 1e-9:
        if spend(interval + checkpoint):
            done += interval
        else:
            while not spend(restart):
                pass
    return clock


@pytest.mark.parametrize("given", [(20.0, 1.0, 0.05, 0.2, 5.0), (10.0, 2.0, 0.1, 0.5, 2.0)])
def test_the_expected_time_is_that_of_many_trainings(given: tuple[float, float, float, float, float]) -> None:
    times = [simulated_hours(*given, seed=seed) for seed in range(3000)]
    assert sum(times) / len(times) == pytest.approx(expected_hours(*given), rel=0.03)


def test_the_expected_time_by_hand() -> None:
    assert expected_hours(10, 1, 0.1, 0, 1e9) == pytest.approx(11, rel=1e-6)  # no interruption: ten checkpoints
    assert expected_hours(1, 5, 0.1, 0.5, 2) == expected_hours(1, 1, 0.1, 0.5, 2)  # no interval is longer than the work
    assert expected_hours(1, 1, 0.1, 0, 1e-4) == math.inf
    assert expected_hours(1, 1, 0.1, 1, 0.1) == math.inf  # 21 times without an interruption
    assert expected_hours(1, 1, 0.1, 0.8, 0.1) < math.inf


@pytest.mark.parametrize(("checkpoint", "mtbi"), [(0.001, 100.0), (0.05, 10.0), (0.2, 2.0)])
def test_daly_s_interval_loses_least(checkpoint: float, mtbi: float) -> None:
    def lost(interval: float) -> float:
        return expected_hours(1000, interval, checkpoint, 0.1, mtbi)

    found = daly_interval(checkpoint, mtbi)
    best = min((0.01 * i * mtbi for i in range(1, 300)), key=lost)
    assert lost(found) <= lost(best) * 1.0005
    assert lost(found) <= lost(young_interval(checkpoint, mtbi))


def test_a_checkpoint_as_long_as_two_interruptions_is_written_once_between_them() -> None:
    assert daly_interval(4.0, 2.0) == 2.0
