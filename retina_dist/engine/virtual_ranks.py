"""A step with the same bits on any number of processes: its images are split into V fixed shards,
the virtual ranks, and whatever is added up over them is added along one binary tree.

Floating-point sums depend on their order. Here the order is part of the plan: shard 0 + shard 1,
shard 2 + shard 3, then the sums of two, and so on. A process has a run of V / world_size shards,
which is a whole branch of the tree; the branches are then added in the same order, slice by slice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retina_dist.base.errors import ConfigError
from retina_dist.base.seeding import seed_step
from retina_dist.engine.replicas import (
    adds_over_ranks,
    copy_each,
    live_statistics,
    trained_parameters,
)
from retina_dist.engine.task import MicroBatches, Scalars, TrainBatch
from retina_dist.engine.train_step import TrainStep
from retina_dist.strategies.base import DistributedStrategy, in_memory_order


class TreeSum:
    """Adds up lists of tensors, given one after another, along the binary tree over them.

    Their number is a power of two. It keeps as many partial sums as a binary number of their count
    has ones; the tensors that it was given may be changed.
    """

    def __init__(self) -> None:
        self._branches: list[tuple[int, list[Tensor]]] = []  # (height in the tree, sum)

    def add(self, tensors: list[Tensor]) -> None:
        """Add the next leaf."""
        height = 0
        while self._branches and self._branches[-1][0] == height:
            _, left = self._branches.pop()
            torch._foreach_add_(left, tensors)
            tensors = left
            height += 1
        self._branches.append((height, tensors))

    @property
    def total(self) -> list[Tensor]:
        """The sum of all leaves."""
        ((_, tensors),) = self._branches
        return tensors


def sum_over_processes(tensors: Sequence[Tensor], strategy: DistributedStrategy) -> None:
    """Replace dense tensors by their sums over the processes, in the order of the tree. Collective.

    Each process adds up a slice of all, so that as many bytes travel as in a ring.
    """
    if strategy.world_size == 1:
        return
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(in_memory_order(tensor))
    for vectors in by_type.values():
        sizes = list(map(len, vectors))
        rest = vectors[0].new_zeros(-sum(sizes) % strategy.world_size)
        rows = torch.cat([*vectors, rest]).view(strategy.world_size, -1)
        rows = strategy.all_to_all(rows)  # what was sent needs no memory any more
        slices = TreeSum()
        for own in rows:
            slices.add([own])
        sums = strategy.all_gather(slices.total[0])
        copy_each(vectors, sums.split([*sizes, len(rest)])[: len(sizes)])


class VirtualRankStep(TrainStep):
    """A `TrainStep` whose micro-batches are the shards of this process, in order.

    What the model draws at random is keyed by the number of the shard. Batch norms take their
    statistics from each shard alone; running statistics become the mean over all shards, by their
    images. The values that it returns are those of the whole step, equal on all ranks. Raises
    ConfigError for data that does not have the shards, and for norms that add up over ranks.
    """

    def _prepare(self, model: nn.Module) -> nn.Module:
        self.shards = self.plan.accumulate
        for module in model.modules():
            if isinstance(module, nn.SyncBatchNorm) or adds_over_ranks(module):
                raise ConfigError(
                    "trainer.virtual_ranks adds up no statistics over ranks, as "
                    f"{type(module).__name__} does; use model.norm=bn or frozen_bn.",
                    collective=True,
                )
        return model  # sends nothing by itself

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        return values

    def _compute_gradients(self, micro_batches: MicroBatches) -> Scalars:
        trained = trained_parameters(self.state.model)
        if len(micro_batches) != self.shards:
            raise ConfigError(
                f"trainer.virtual_ranks={self.plan.virtual_ranks}: the data gives each process "
                f"{len(micro_batches)} micro-batches, not {self.shards}; "
                "give TrainSampler virtual_ranks.",
                collective=True,
            )
        statistics = live_statistics(self.state.model)
        before = [x.clone() for x in statistics]
        pairs = zip(statistics, before, strict=True)
        self._averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        tree = TreeSum()
        rows: list[Tensor] = []
        for shard, batch in enumerate(micro_batches, self.strategy.rank * self.shards):
            seed_step(self.seed, "step", self.state.step, shard)
            copy_each(statistics, before)
            batch = batch.to(self.strategy.device, non_blocking=True)
            self.timer.mark("copy")
            losses = self._forward_backward(batch)
            self.timer.mark_backward()
            tree.add(_take_gradients(trained))
            rows.append(self._row(losses, batch))
        gradients = tree.total
        sum_over_processes(gradients, self.strategy)
        # by a power of two, which is exact
        torch._foreach_div_(gradients, self.shards * self.strategy.world_size)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient
        means = self._mean_over_shards(torch.stack(rows))
        count = len(losses)
        self._weight = means[count]
        self._statistics = means[count + 1 :]
        return dict(zip(losses, means[:count], strict=True))

    def _row(self, losses: Scalars, batch: TrainBatch) -> Tensor:
        """[E] float64, what is averaged beside gradients: losses, weight, running statistics, each
        times the shard's weight.
        """
        values = torch.stack(list(losses.values())).detach().double()
        if not batch.weight:
            values = torch.zeros_like(values)  # a mean over no examples may be NaN
        statistics = [statistic.double() for statistic, _ in self._averaged]
        return torch.cat([values, values.new_ones(1), *statistics]) * batch.weight

    def _mean_over_shards(self, rows: Tensor) -> Tensor:
        """[V / world_size, E] -> [E]"""
        tree = TreeSum()
        every = self.strategy.all_gather(rows)
        for row in every:
            tree.add([row])
        return tree.total[0] / len(every)

    def _weight_of(self, micro_batches: MicroBatches, total: Tensor) -> Tensor:
        return self._weight

    def _average_statistics(self, micro_batches: MicroBatches) -> None:
        means = self._statistics.split([len(statistic) for statistic, _ in self._averaged])
        for (statistic, before), mean in zip(self._averaged, means, strict=True):
            # as before a step of which no image could be read
            statistic.copy_(torch.where(self._weight > 0, mean / self._weight, before))


def _take_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients, which leave the parameters; zeros where a pass did not reach one."""
    gradients: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        gradients.append(torch.zeros_like(parameter) if gradient is None else gradient)
        parameter.grad = None
    return gradients
