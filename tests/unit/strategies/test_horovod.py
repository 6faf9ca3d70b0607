"""How the ranks of a Horovod job wait for a sum and let others in; Horovod is a fake that one
process asks for all ranks.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from retina_dist.base.errors import ConfigError
from retina_dist.strategies import horovod
from retina_dist.strategies.horovod import HorovodStrategy
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import HorovodSettings, StrategyConfig


class Horovod(SimpleNamespace):
    """Two ranks.

    A sum is there after three looks, and Horovod's own wait, which sleeps, must find it there.
    """

    Sum, Min, Max = "sum", "min", "max"

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.looks = 0

    def size(self) -> int:
        return 2

    def allreduce_async(self, x: Tensor, name: str, op: Any) -> Tensor:
        self.names.append(name)
        self.looks = 0
        return x * 2

    def poll(self, handle: Tensor) -> bool:
        self.looks += 1
        return self.looks == 3

    def synchronize(self, handle: Tensor) -> Tensor:
        assert self.looks == 3, "Horovod's own wait sleeps for milliseconds"
        return handle


def test_a_sum_is_polled_for_under_the_name_that_horovods_cache_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a name each sum is new to Horovod, and rank 0 asks all ranks about it again."""
    hvd = Horovod()
    monkeypatch.setattr(horovod, "_import_horovod", lambda: hvd)
    strategy = HorovodStrategy(StrategyConfig(device="cpu"), Launch("horovodrun", 0, 2, 0, 2))
    for shape in ((3,), (3,), (4, 2)):
        assert (
            strategy.all_reduce(torch.ones(shape), "sum").tolist()
            == torch.full(shape, 2.0).tolist()
        )
    strategy.all_reduce(torch.ones(3), "max")
    strategy.all_reduce(torch.ones(3).double(), "sum")
    assert hvd.names[0] == hvd.names[1]
    assert len(set(hvd.names)) == 4


def test_a_job_on_another_device_is_refused_where_horovod_cannot_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU has a setting that a GPU lacks."""
    running = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(horovod, "_import_horovod", lambda: running)
    strategy = HorovodStrategy(HorovodSettings(device="cpu"), Launch("mpirun", 0, 2, 0, 2))
    monkeypatch.setattr(horovod, "_running_with", strategy.variables)
    strategy._start()  # the same settings
    strategy.device = torch.device("cuda")
    with pytest.raises(ConfigError, match="timeout_s and device cannot change in a process"):
        strategy.__enter__()


# elastic jobs


class HostsUpdatedInterrupt(Exception):
    """Horovod's, which has it start the job anew with the hosts that there are."""


class Wire:
    """What two ranks have asked, each of its questions under one number."""

    def __init__(self) -> None:
        self.levels: list[list[int]] = [[], []]

    def rank(self, rank: int) -> Any:
        """Horovod as one rank sees it.

        Waiting for what the other has not asked yet would be for ever, so it fails.
        """

        def ask(x: Tensor, name: str, op: Any) -> int:
            self.levels[rank].append(int(x))
            return len(self.levels[rank]) - 1

        def wait(question: int) -> Tensor:
            return Tensor([max(levels[question] for levels in self.levels)])

        return SimpleNamespace(
            size=lambda: 2,
            Max="max",
            allreduce_async_=ask,
            poll=lambda question: True,
            synchronize=wait,
        )


def test_all_ranks_of_an_elastic_job_stop_at_one_step_and_no_commit_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "horovod.common", SimpleNamespace())
    exceptions = SimpleNamespace(HostsUpdatedInterrupt=HostsUpdatedInterrupt)
    monkeypatch.setitem(sys.modules, "horovod.common.exceptions", exceptions)
    wire = Wire()
    ranks = []
    for rank in range(2):
        monkeypatch.setattr(horovod, "_import_horovod", lambda rank=rank: wire.rank(rank))
        ranks.append(
            HorovodStrategy(
                StrategyConfig(device="cpu", commit_every=3), Launch("horovodrun", rank, 2, rank, 2)
            )
        )
    stopped = []
    for step in range(7):  # finished before the commit
        if step == 5:
            ranks[1]._membership.on_hosts_updated(0.0, None)  # seen by one rank only
        for rank, strategy in enumerate(ranks):
            try:
                strategy._membership.commit(lambda step=step: {"step": step})  # type: ignore[misc]
            except HostsUpdatedInterrupt:
                stopped.append((rank, step))
        if stopped:
            break
        committed = {"step": 3} if step >= 3 else None
        assert [strategy.committed for strategy in ranks] == [committed] * 2
    assert stopped == [(0, 6), (1, 6)]
    assert [strategy.committed for strategy in ranks] == [{"step": 6}] * 2
    for strategy in ranks:
        strategy._membership.on_reset()
        strategy._membership.commit(lambda: {})  # the first step after it asks anew
    assert [levels[-1] for levels in wire.levels] == [0, 0]
