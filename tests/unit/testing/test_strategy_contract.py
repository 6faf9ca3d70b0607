"""Each bug that a strategy from outside may have is caught by the contract, and right ones pass;
ranks are threads.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.strategy_contract import strategy_contract
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks
from tests.plugins.rounding_strategy import RoundingStrategy


class Rounding(ThreadRank):
    """`RoundingStrategy` in threads."""

    prepare: Any = RoundingStrategy.prepare
    reduce_gradients: Any = RoundingStrategy.reduce_gradients
    levels = 127


class Forgetful(ThreadRank):
    """Adds a part of each step's gradients to the next step's; no checkpoint holds it."""

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self.left: dict[nn.Parameter, Tensor] = {}
        return super().prepare(model, accumulate)

    def reduce_gradients(self) -> None:
        super().reduce_gradients()
        for p in self.averaged:
            whole = p.grad + self.left.get(p, 0)  # type: ignore[operator]
            p.grad = 0.99 * whole
            self.left[p] = (whole - p.grad).nan_to_num(0.0)


class Reversed(ThreadRank):
    def all_gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self.exchange("all_gather", rows)[::-1])


class ForRank0(ThreadRank):
    def all_to_all(self, rows: Tensor) -> Tensor:
        return self.all_gather(rows[None])[:, 0]


class Padded(ThreadRank):
    def all_gather(self, rows: Tensor) -> Tensor:
        longest = int(self.all_reduce(torch.tensor(len(rows)), "max"))
        return super().all_gather(
            torch.cat((rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])))
        )


class Sums(ThreadRank):
    def all_reduce(self, x: Tensor, op: Any = "sum") -> Tensor:
        return super().all_reduce(x, op)


class InPlace(ThreadRank):
    def all_reduce(self, x: Tensor, op: Any = "mean") -> Tensor:
        return x.copy_(super().all_reduce(x, op))


class Float32(ThreadRank):
    def all_reduce(self, x: Tensor, op: Any = "mean") -> Tensor:
        return super().all_reduce(x.float(), op).to(x.dtype)


class MinIsMax(ThreadRank):
    def all_reduce(self, x: Tensor, op: Any = "mean") -> Tensor:
        return super().all_reduce(x, "max" if op == "min" else op)


class FromRank0(ThreadRank):
    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return super().broadcast(x, 0)


class LeavesInput(ThreadRank):
    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return super().broadcast(x.clone(), src)


class FirstModelOnly(ThreadRank):
    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        return super().prepare(model, accumulate) if not self.averaged else model


class Renames(ThreadRank):
    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        super().prepare(model, accumulate)
        model.add_module("module", model.layers)  # type: ignore[arg-type]
        return model


class SumsGradients(ThreadRank):
    def reduce_gradients(self) -> None:
        for p in self.averaged:
            p.grad = self.all_reduce(p.grad, "sum")  # type: ignore[arg-type]


class WholeGroupsOnly(ThreadRank):
    """Reduces once it has counted as many backward passes as `accumulate`."""

    passes = 0

    def prepare(self, model: nn.Module, accumulate: int = 1) -> nn.Module:
        self.accumulate, self.passes = accumulate, 0
        return super().prepare(model, accumulate)

    def gradient_sync(self, net: nn.Module, enabled: bool) -> Any:
        self.passes += 1
        return super().gradient_sync(net, enabled)

    def reduce_gradients(self) -> None:
        if self.passes % self.accumulate == 0:
            super().reduce_gradients()


class EachMicroBatch(ThreadRank):
    """Sends the micro-batches but for the last one, which `gradient_sync` enables."""

    def gradient_sync(self, net: nn.Module, enabled: bool) -> Any:
        if not enabled or not hasattr(self, "early"):
            self.early = True
            super().reduce_gradients()
        return super().gradient_sync(net, enabled)

    def reduce_gradients(self) -> None: ...


class HidesInfinity(ThreadRank):
    def reduce_gradients(self) -> None:
        for p in self.averaged:
            p.grad.copy_(self.all_reduce(p.grad.nan_to_num(0.0, 1.0, -1.0)))  # type: ignore[union-attr]


class OwnLevel(ThreadRank):
    def all_reduce_max_async(self, level: int, question: str = "stop") -> Any:
        return lambda: level


class EveryoneIsMain(ThreadRank):
    @property
    def is_main(self) -> bool:
        return True


class EndsAlone(ThreadRank):
    def run_collectively(self, function: Any, device: Any = None) -> Any:
        return function()


LOSSY = 0.05
MUTANTS = {
    Reversed: "all_gather of",
    ForRank0: "all_to_all",
    Padded: "all_gather of",
    Sums: "whose default is the mean",
    InPlace: "must stay as it is",
    Float32: "all_reduce min",
    MinIsMax: "all_reduce min",
    FromRank0: "broadcast from rank 1",
    LeavesInput: "must be overwritten",
    FirstModelOnly: "a second model",
    Renames: "prepare renames",
    SumsGradients: "training, plain",
    WholeGroupsOnly: "fewer micro-batches",
    EachMicroBatch: "training, plain",
    HidesInfinity: "reduce first",
    OwnLevel: "highest level",
    EveryoneIsMain: "is_main is True on rank 1",
    EndsAlone: "must raise on every rank|the error is collective",
    Forgetful: "resumed",
}


def check(kind: type[ThreadRank], world_size: int, tolerance: float) -> None:
    on_ranks(
        world_size,
        lambda strategy: strategy_contract(lambda: kind(strategy.rank, strategy.job), tolerance),
    )


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_right_strategies_keep_the_contract(world_size: int) -> None:
    check(ThreadRank, world_size, 1e-12)
    check(Rounding, world_size, LOSSY)
    if world_size == 1:
        strategy_contract(lambda: SingleDeviceStrategy("cpu"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda kind: kind.__name__)
def test_each_bug_is_caught(mutant: type[ThreadRank]) -> None:
    """At two ranks, as someone tries a strategy first."""
    with pytest.raises(AssertionError, match=MUTANTS[mutant]):
        check(mutant, 2, LOSSY if mutant is Forgetful else 1e-12)
