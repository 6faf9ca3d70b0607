"""When the ranks of an elastic Horovod job let others in; Horovod is a fake whose ranks are called one after the other."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from retina_dist.strategies import horovod
from retina_dist.strategies.horovod import HorovodStrategy
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategyConfig


class HostsUpdatedInterrupt(Exception):
    """Horovod's, which has it start the job anew with the hosts that there are."""


class Wire:
    """What two ranks have asked, each of its questions under one number."""

    def __init__(self) -> None:
        self.levels: list[list[int]] = [[], []]

    def rank(self, rank: int) -> Any:
        """Horovod as one rank sees it; waiting for what the other has not asked yet would be for ever, so it fails."""

        def ask(x: Tensor, name: str, op: Any) -> int:
            self.levels[rank].append(int(x))
            return len(self.levels[rank]) - 1

        def wait(question: int) -> Tensor:
            return Tensor([max(levels[question] for levels in self.levels)])

        return SimpleNamespace(
            size=lambda: 2, Max="max", allreduce_async_=ask, poll=lambda question: True, synchronize=wait
        )


def test_all_ranks_of_an_elastic_job_stop_at_one_step_and_no_commit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
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
            HorovodStrategy(StrategyConfig(device="cpu", commit_every=3), Launch("horovodrun", rank, 2, rank, 2))
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
        assert [strategy._membership.kept for strategy in ranks] == [{"step": 3} if step >= 3 else None] * 2
    assert stopped == [(0, 6), (1, 6)]
    assert [strategy._membership.kept for strategy in ranks] == [{"step": 6}] * 2
    for strategy in ranks:
        strategy._membership.on_reset()
        strategy._membership.commit(lambda: {})  # the first step after it asks anew
    assert [levels[-1] for levels in wire.levels] == [0, 0]
