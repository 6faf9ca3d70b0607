"""Parts of the time, by a clock of our own and by the real one."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retina_dist.engine import phase_timer as module
from retina_dist.engine.phase_timer import (
    IN_A_STEP,
    PhaseTimer,
    cpu_seconds,
    format_timings,
    summary,
)
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks
from tests.unit.engine.test_train_loop import trainer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time on."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_after_the_last_gradient_the_backward_pass_waits_for_others(
    clock: Callable[[float], None],
) -> None:
    timer = PhaseTimer(torch.device("cpu"))
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, above: Tensor) -> Tensor:
            clock(2.0)
            return above

    timer.watch([first, second])
    timer.start()
    (SlowBackward.apply(first) * second).backward()
    clock(0.5)
    timer.mark_backward()
    timer.end_step()
    timer.settle()
    assert timer.seconds == {"backward": 2.0, "communication": 0.5}


def test_the_slowest_rank_is_named(clock: Callable[[float], None]) -> None:
    def times(strategy: ThreadRank) -> dict[str, Any]:
        timer = PhaseTimer(torch.device("cpu"))
        timer.steps["forward"], timer.num_steps = [(0.5, 1.0, 0.75)[strategy.rank]], 1
        return summary(timer, strategy)

    found, *others = on_ranks(3, times)
    assert (found["slowest"], others) == (1, [found, found])
    assert format_timings(found).endswith("; rank 1 takes 2.00 times the fastest's 500 ms a step")


def burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def test_cpu_seconds_count_processes_of_the_fork_server() -> None:
    """As data workers are, once they have ended."""
    worker = get_context("forkserver").Process(target=burn, args=(0.5,))
    before = cpu_seconds()
    worker.start()
    worker.join()
    assert cpu_seconds() - before > 0.4
    own = cpu_seconds()
    burn(time.process_time() + 0.2)
    assert cpu_seconds() - own > 0.1


def test_the_parts_of_a_training_add_up_to_its_time(tmp_path: Path) -> None:
    one = trainer(tmp_path, validate=lambda model: time.sleep(0.05) or {}, max_duration="8epochs")
    started = time.perf_counter()
    one.fit()
    seconds = time.perf_counter() - started
    found = summary(one.timer, one.strategy)["ranks"][0]
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_s"], rel=1e-3)
    assert seconds / 2 < found["wall_s"] <= seconds
    assert found["seconds"]["evaluation"] >= 8 * 0.05
    assert found["steps"] == one.state.step == 24
    assert all(found["seconds"][part] > 0 for part in IN_A_STEP)
