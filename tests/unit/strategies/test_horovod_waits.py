"""How the ranks of a Horovod job wait for a sum; Horovod is a fake that notes what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from retina_dist.strategies import horovod
from retina_dist.strategies.horovod import HorovodStrategy
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.settings import StrategyConfig


class Horovod(SimpleNamespace):
    """Two ranks; a sum is there after three looks, and Horovod's own wait, which sleeps, must find it there."""

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


def test_a_sum_is_polled_for_under_the_name_that_horovods_cache_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name each sum is new to Horovod, and rank 0 asks all ranks about it again."""
    hvd = Horovod()
    monkeypatch.setattr(horovod, "_import_horovod", lambda: hvd)
    strategy = HorovodStrategy(StrategyConfig(device="cpu"), Launch("horovodrun", 0, 2, 0, 2))
    for shape in ((3,), (3,), (4, 2)):
        assert strategy.all_reduce(torch.ones(shape), "sum").tolist() == torch.full(shape, 2.0).tolist()
    strategy.all_reduce(torch.ones(3), "max")
    strategy.all_reduce(torch.ones(3).double(), "sum")
    assert hvd.names[0] == hvd.names[1]
    assert len(set(hvd.names)) == 4
