"""Equal bits on any number of ranks, and what would make them differ."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.base.errors import ConfigError
from retina_dist.engine import virtual_ranks
from retina_dist.engine.virtual_ranks import TreeSum, VirtualRankStep, sum_over_processes
from retina_dist.model.sync_batch_norm import SyncBatchNorm2d, connect
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.bits import digest_of
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks
from tests.plans import plan_of
from tests.virtual_ranks import Data, Net, bits_of, loop_of, trained_bits


def alone(**changes: Any) -> dict[str, str]:
    return trained_bits(SingleDeviceStrategy("cpu"), **changes)


@pytest.mark.parametrize("norm", [True, False])
def test_the_bits_are_the_same_on_any_number_of_ranks(norm: bool) -> None:
    expected = alone(norm=norm)
    for world_size in (2, 4):
        for found in on_ranks(world_size, partial(trained_bits, norm=norm)):
            assert found == expected, world_size


def test_another_number_of_virtual_ranks_has_other_bits() -> None:
    """The digests see a change of the last bit."""
    assert alone(virtual_ranks=8)["state"] != alone()["state"]


@pytest.mark.parametrize(("first", "then"), [(1, 4), (4, 2), (2, 1)])
def test_a_run_goes_on_with_the_same_bits_on_another_number_of_ranks(first: int, then: int) -> None:
    def part(strategy: ThreadRank, start: Any = None, stop: int = 3) -> Any:
        loop = loop_of(strategy)
        if start:
            loop.state.load_state_dict(start[0])
            loop.callbacks.rows += start[1]
        strategy.broadcast_state(loop.state)
        for micro_batches in loop.data.train_steps(loop.state.step, stop):
            values = loop.train_step(micro_batches)
            loop.state.meter.update(values, 1)
            loop.state.step += 1
        if stop == 7:
            loop.callbacks.rows.append(without_times(loop.state.meter.compute()))
            return bits_of(loop)
        return loop.state.state_dict(), loop.callbacks.rows

    begun = on_ranks(first, part)
    ended = on_ranks(then, partial(part, start=begun[0], stop=7))
    whole = on_ranks(1, partial(part, stop=7))
    assert all(found == whole[0] for found in ended)


def without_times(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("time/")}


# faults: each gives other bits on the named number of ranks


class InOneRow(TreeSum):
    """Adds each to the sum of all before."""

    def add(self, tensors: list[Tensor]) -> None:
        if self._branches:
            torch._foreach_add_(self._branches[0][1], tensors)
        else:
            self._branches.append((0, tensors))


class OtherPairs(TreeSum):
    """Shard 0 with shard 2, and 1 with 3."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves: list[list[Tensor]] = []

    def add(self, tensors: list[Tensor]) -> None:
        self.leaves.append(tensors)

    @property
    def total(self) -> list[Tensor]:
        half = len(self.leaves) // 2
        for i in range(half):
            super().add(self.leaves[i])
            super().add(self.leaves[half + i])
        return super().total


class DealtOut(Data):
    """Rank r has shards r, r + W, … in place of a run of them."""

    def train_steps(self, start: int, stop: int) -> Any:
        for step in range(start, stop):
            every = self._every(step)
            yield every[self.sampler.rank :: self.sampler.world_size]

    def _every(self, step: int) -> list[Any]:
        world_size, rank = self.sampler.world_size, self.sampler.rank
        shards: list[Any] = []
        for r in range(world_size):
            self.sampler.rank = r
            shards += next(Data.train_steps(self, step, step + 1))
        self.sampler.rank = rank
        return shards


class SwappedShards(Data):
    """The first shards of two ranks are each other's."""

    def train_steps(self, start: int, stop: int) -> Any:
        for step in range(start, stop):
            every = DealtOut._every(self, step)  # type: ignore[arg-type]
            own = len(every) // self.sampler.world_size
            every[0], every[own] = every[own], every[0]
            yield every[self.sampler.rank * own : (self.sampler.rank + 1) * own]


class UnevenShards(Data):
    """Each rank shares its images out to its own shards, as without virtual ranks."""

    def train_steps(self, start: int, stop: int) -> Any:
        own = self.sampler.virtual_ranks // self.sampler.world_size
        for step in range(start, stop):
            every = DealtOut._every(self, step)  # type: ignore[arg-type]
            x = torch.cat([s.x for s in every if s.weight])
            labels = torch.cat([s.labels for s in every if s.weight])
            mine = torch.arange(len(x)).tensor_split(self.sampler.world_size)[self.sampler.rank]
            shards = []
            for rows in mine.tensor_split(own):
                weight = len(rows) * self.sampler.virtual_ranks / len(x)
                rows = rows if len(rows) else torch.tensor([0])
                shards.append(type(every[0])(x[rows], labels[rows], weight))
            yield shards


class MeanOverRanks(VirtualRankStep):
    """The losses of this rank's shards, left to the meter's mean over ranks."""

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        return self.strategy.all_reduce(values)

    def _mean_over_shards(self, rows: Tensor) -> Tensor:
        own = rows.mean(0)
        means = super()._mean_over_shards(rows)
        count = len(means) - 1 - 32  # of losses
        return torch.cat([own[:count], means[count:]])


class ClippedBefore(VirtualRankStep):
    """Clips what a process has, before the sum over processes."""

    def _forward_backward(self, batch: Any) -> Any:
        losses = super()._forward_backward(batch)
        nn.utils.clip_grad_norm_(self.state.model.parameters(), 0.5 / self.strategy.world_size)
        return losses


def sum_of_all_reduce(tensors: list[Tensor], strategy: ThreadRank) -> None:
    for tensor in tensors:
        parts = strategy.all_gather(tensor[None])
        tensor.copy_(((parts[0] + parts[1]) + parts[2]) + parts[3])


def sum_in_half(tensors: list[Tensor], strategy: ThreadRank) -> None:
    """As if fp16 travelled."""
    for tensor in tensors:
        tensor.copy_(tensor.half())
    sum_over_processes(tensors, strategy)


def sum_of_reversed_ranks(tensors: list[Tensor], strategy: ThreadRank) -> None:
    """Ranks 1 and 2 in each other's place."""
    for tensor in tensors:
        parts = strategy.all_gather(tensor[None])
        tensor.copy_((parts[0] + parts[2]) + (parts[1] + parts[3]))


FAULTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "a sum in one row": (2, {"TreeSum": InOneRow}, {"virtual_ranks": 8}),
    "other pairs": (1, {"TreeSum": OtherPairs}, {}),
    "over processes in one row": (4, {"sum_over_processes": sum_of_all_reduce}, {}),
    "ranks in another order": (4, {"sum_over_processes": sum_of_reversed_ranks}, {}),
    "rounded on the wire": (2, {"sum_over_processes": sum_in_half}, {}),
    "shards dealt out": (2, {}, {"data_class": DealtOut}),
    "two shards swapped": (2, {}, {"data_class": SwappedShards}),
    "shards cut by rank": (2, {}, {"data_class": UnevenShards}),
    "statistics go from shard to shard": (2, {"copy_each": lambda to, source: None}, {}),
    "clipped before the sum": (2, {}, {"step_class": ClippedBefore}),
    "losses averaged by rank": (4, {}, {"step_class": MeanOverRanks, "virtual_ranks": 8}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_has_other_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world_size, patches, changes = FAULTS[name]
    right = alone(**{k: v for k, v in changes.items() if k == "virtual_ranks"})
    for attribute, value in patches.items():
        monkeypatch.setattr(virtual_ranks, attribute, value)
    assert on_ranks(world_size, partial(trained_bits, **changes))[0] != right


class Draws(Net):
    """Notes a random number of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, batch: Any) -> dict[str, Tensor]:
        self.drawn.append(float(torch.rand(())))
        return super().forward(batch)


class Alone(SingleDeviceStrategy):
    """One of several ranks, the others of which give what it gives."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__("cpu")
        self.launch = Launch(rank=rank, world_size=world_size)

    def all_gather(self, rows: Tensor) -> Tensor:
        return torch.cat([rows] * self.world_size)


def drawn_by(rank: int, world_size: int) -> list[float]:
    loop = loop_of(Alone(rank, world_size), model=Draws())
    loop.train_step._unchecked.clear()  # what the others would give is not known
    loop.train_step(next(loop.data.train_steps(0, 1)))
    return loop.state.model.drawn


def test_random_numbers_are_keyed_by_the_shard_whatever_rank_has_it() -> None:
    """A key of the rank would give the second shard of a rank what its first one has, or others."""
    drawn = drawn_by(0, 1)
    assert len(set(drawn)) == 4
    assert drawn_by(0, 2) + drawn_by(1, 2) == drawn
    assert [drawn_by(rank, 4)[0] for rank in range(4)] == drawn


def test_a_tree_by_hand() -> None:
    """((a + b) + (c + d)) of float32 whose other orders round to other numbers."""
    a, b, c, d = torch.tensor([1.0, 2.0**-24, 2.0**-24, 2.0**-24])
    tree = TreeSum()
    for leaf in (a, b, c, d):
        tree.add([leaf.clone()])
    assert float(tree.total[0]) == 1 + 2.0**-23
    assert float(((a + b) + c) + d) == 1.0


def test_sums_over_processes_keep_memory_formats_and_types() -> None:
    """Nine values for four ranks, which do not divide them, and a transposed matrix."""

    def one(strategy: ThreadRank) -> list[Tensor]:
        matrix = torch.arange(6.0).view(2, 3).t() + strategy.rank
        tensors = [matrix, torch.full((3,), 2.0**strategy.rank), torch.tensor(0.1).double()]
        sum_over_processes(tensors, strategy)
        return tensors

    for matrix, vector, wide in on_ranks(4, one):
        assert matrix.tolist() == (4 * torch.arange(6.0).view(2, 3).t() + 6).tolist()
        assert matrix.stride() == (1, 3)
        assert vector.tolist() == [15.0] * 3
        assert wide.dtype == torch.float64
        assert float(wide) == 4 * float(torch.tensor(0.1))


def test_a_parameter_that_a_shard_does_not_reach_has_zeros_there() -> None:
    class Half(Net):
        """Only shards of three rows reach its last layer."""

        def forward(self, batch: Any) -> dict[str, Tensor]:
            losses = super().forward(batch)
            return losses if len(batch.x) == 3 else {**losses, "loss": losses["size"]}

    expected = alone(model=Half())
    assert on_ranks(4, lambda strategy: trained_bits(strategy, model=Half())) == [expected] * 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_infinite_loss_of_one_shard_skips_the_step_on_all_ranks(world_size: int) -> None:
    def one(strategy: ThreadRank) -> Any:
        loop = loop_of(strategy, model=Net())
        before = digest_of(loop.state.model.state_dict())
        shards = next(loop.data.train_steps(0, 1))
        if strategy.rank == strategy.world_size - 1:
            shards[-1].x.fill_(torch.inf)
        assert loop.train_step(shards) == {}
        assert loop.state.skipped_steps == 1
        return digest_of(loop.state.model.state_dict()) == before

    assert all(on_ranks(world_size, one))


def test_data_without_the_shards_is_refused() -> None:
    loop = loop_of(SingleDeviceStrategy("cpu"))
    shards = next(loop.data.train_steps(0, 1))
    loop.train_step._unchecked.clear()
    with pytest.raises(ConfigError, match="gives each process 1 micro-batches, not 4"):
        loop.train_step(shards[:1])


def test_norms_over_ranks_are_refused() -> None:
    model = nn.Sequential(SyncBatchNorm2d(2))
    connect(model, torch.clone)
    for norm in (model, nn.Sequential(nn.SyncBatchNorm(2))):
        net = Net()
        net.norm = norm
        with pytest.raises(ConfigError, match="SyncBatchNorm.*; use model.norm=bn or frozen_bn"):
            loop_of(SingleDeviceStrategy("cpu"), model=net)


@pytest.mark.parametrize(
    ("virtual_ranks", "world_size", "message"),
    [
        (6, 1, "virtual_ranks=6 is not a power of two; use 4 or 8."),
        (16, 1, "virtual_ranks=16 exceeds data.batch_size=10; lower it or raise that."),
        (8, 3, "virtual_ranks=8 cannot be shared out to 3 processes; start a power of two, at most 8."),
        (2, 4, "virtual_ranks=2 cannot be shared out to 4 processes; start a power of two, at most 2."),
    ],
)  # fmt: skip
def test_a_tree_that_cannot_be(virtual_ranks: int, world_size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(
            num_images=20, batch_size=10, world_size=world_size, virtual_ranks=virtual_ranks, lr=1.0
        )


def test_the_plan_names_the_shards() -> None:
    plan = plan_of(
        num_images=21,
        batch_size=10,
        world_size=2,
        virtual_ranks=4,
        lr=1.0,
        max_duration="1epoch",
    )
    assert "10 images a step = 2 processes x 2 virtual ranks x 2 or 3" in str(plan)
    assert plan.steps_per_epoch == 3


def test_a_step_without_images_leaves_the_statistics() -> None:
    """All of its images are bad: a shard's placeholder is in no statistic."""
    loop = loop_of(SingleDeviceStrategy("cpu"))
    loop.train_step._unchecked.clear()
    norm = loop.state.model.norm
    before = norm.running_mean.clone()
    shards = next(loop.data.train_steps(0, 1))
    for shard in shards:
        shard.weight = 0.0
    values = loop.train_step(shards)
    assert torch.equal(norm.running_mean, before)
    assert float(values["train/loss"]) == 0.0
    loop.train_step(next(loop.data.train_steps(0, 1)))
    assert not torch.equal(norm.running_mean, before)
