"""What every strategy does by its collectives alone, with ranks that are threads of
this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from retina_dist.base.errors import DataError, PeerLost
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.testing import thread_ranks
from retina_dist.testing.thread_ranks import Job, ThreadRank


def on_ranks(world_size: int, function: Callable[[ThreadRank], Any]) -> list[Any]:
    """What `function(strategy)` returns on each rank, or the error it raises there."""

    def one(strategy: ThreadRank) -> Any:
        try:
            return function(strategy)
        except Exception as error:
            return error

    return thread_ranks.on_ranks(world_size, one)


@pytest.mark.parametrize("ranks", [{1}, {0, 2}])
def test_the_lowest_rank_that_failed_raises_its_own_error_and_the_others_that_it_stopped(
    ranks: set[int],
) -> None:
    def call(strategy: ThreadRank) -> Any:
        def work() -> None:
            if strategy.rank in ranks:
                raise DataError(f"rank {strategy.rank} cannot read")

        return strategy.run_collectively(work)

    errors = on_ranks(3, call)
    first = min(ranks)
    for rank, error in enumerate(errors):
        assert error.collective  # so that all leave in order
        if rank == first:
            assert type(error) is DataError
            assert (str(error), error.reporter) == (f"rank {rank} cannot read", rank)
        else:
            assert type(error) is PeerLost
            assert (str(error), error.reporter) == (
                f"rank {first} stopped; its message says why.",
                None,
            )


def test_a_tensor_of_another_ranks_gpu_arrives_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 of a GPU job writes it.

    Without a GPU, torch.load refuses such a tensor unless it is sent to the CPU.
    """
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    _, received = on_ranks(2, lambda strategy: strategy.broadcast_object({"x": torch.arange(3)}))
    assert (received["x"].device.type, received["x"].tolist()) == ("cpu", [0, 1, 2])


def test_only_tensors_and_plain_values_are_unpickled() -> None:
    _, other = on_ranks(2, lambda strategy: strategy.broadcast_object(Job))
    assert isinstance(other, Exception)
    assert "eights" in str(other)  # torch's "Weights only load failed"


def test_the_contract_stays_small() -> None:
    members = [
        name
        for name, value in vars(DistributedStrategy).items()
        if callable(value) or hasattr(value, "fget")
    ]
    assert len(members) <= 22, sorted(members)
