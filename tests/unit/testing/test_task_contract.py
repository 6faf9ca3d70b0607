"""Each bug that a task from outside may have is caught by the contract, and right ones pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.config.compose import load_config
from retina_dist.data.samplers import BatchSpec
from retina_dist.testing.task_contract import task_contract
from tests.plugins.disc_task import DiscBatch, DiscBatches, DiscTask, draw
from tests.plugins.test_plugins import FOUND

SETTINGS = [FOUND, "task=discs", "data.num_train=64", "data.batch_size=6", "model.width=2"]


def of_data(
    change: Callable[[DiscBatches, int, list[DiscBatch]], list[DiscBatch]],
) -> type[DiscTask]:
    """The task of the disc, whose micro-batches of a step `change(data, step, micro_batches)`
    replaces.
    """

    class Data(DiscBatches):
        def train_steps(self, start: int, stop: int) -> Iterator[list[DiscBatch]]:
            for step, micro_batches in zip(
                range(start, stop), super().train_steps(start, stop), strict=True
            ):
                yield change(self, step, micro_batches)

    class Changed(DiscTask):
        def build_data(self) -> DiscBatches:
            return Data(super().build_data().sampler)

    return Changed


def of_specs(change: Callable[[BatchSpec, Any], tuple[Sequence[int], float]]) -> type[DiscTask]:
    """The same with the images and the weight of each micro-batch that `change(spec, sampler)`
    gives.
    """

    def changed(data: DiscBatches, step: int, _: list[DiscBatch]) -> list[DiscBatch]:
        return [draw(*change(spec, data.sampler)) for spec in data.sampler.step(step)]

    return of_data(changed)


def whole(data: DiscBatches, step: int, _: list[DiscBatch]) -> list[DiscBatch]:
    """The images of all ranks, on each rank."""
    sampler = data.sampler
    options = {
        "batch_size": sampler.batch_size,
        "accumulate": sampler.accumulate,
        "seed": sampler.seed,
    }
    return [
        draw(spec.indices, spec.weight)
        for spec in type(sampler)(buckets=sampler.buckets, **options).step(step)
    ]


def of_evaluator(change: Callable[[DiscTask, nn.Module, DiscBatch], float]) -> type[DiscTask]:
    class Changed(DiscTask):
        def build_evaluator(self, data: DiscBatches) -> Any:
            batch = draw(range(-16, 0))
            return torch.no_grad()(lambda model: {"val/loss": change(self, model, batch)})

    return Changed


def error(model: nn.Module, batch: DiscBatch) -> float:
    return float((model.eval()(batch) - batch.centres).square().mean())


def reduced(task: DiscTask, model: nn.Module, batch: DiscBatch) -> float:
    rank, world = task.strategy.rank, task.strategy.world_size
    own = DiscBatch(batch.images[rank::world], batch.centres[rank::world])
    return float(task.strategy.all_reduce(torch.tensor(error(model, own))))


def as_it_comes(task: DiscTask, model: nn.Module, batch: DiscBatch) -> float:
    """Without `eval()`, a model with dropout, a batch norm, or two outputs gives something else."""
    factor = 2.0 if model.training else 1.0
    return error(model, batch) * factor


def changed_task(**members: Any) -> type[DiscTask]:
    return type("Changed", (DiscTask,), members)


def of_position(position: Callable[[Any, int], tuple[int, int]]) -> type[DiscTask]:
    def build_data(task: DiscTask) -> DiscBatches:
        data = DiscTask.build_data(task)
        data.position = lambda step: position(data.sampler, step)  # type: ignore[method-assign]
        return data

    return changed_task(build_data=build_data)


def changed_model(forward: Callable[[Any, DiscBatch, dict[str, Tensor]], Any]) -> type[DiscTask]:
    def build_model(task: DiscTask, *resumed: Any) -> nn.Module:
        model = DiscTask.build_model(task)
        kind = type(model)

        class Net(kind):  # type: ignore[misc, valid-type]
            def forward(self, batch: DiscBatch) -> Any:
                result = super().forward(batch)
                return forward(self, batch, result) if self.training else result

        model.__class__ = Net
        return model

    return changed_task(build_model=build_model)


class Blocking(DiscBatch):
    def to(self, device: torch.device) -> Any:  # type: ignore[override]
        return self


class InPlace(DiscBatch):
    def to(self, device: torch.device, non_blocking: bool = False) -> DiscBatch:
        self.images.div_(2)
        return self


def unused_bias(net: Any, batch: DiscBatch, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first bias has no gradient in a micro-batch of one image."""
    if len(batch.images) > 1:
        return losses
    x = nn.functional.conv2d(batch.images, net[0].weight, net[0].bias.detach(), 2, 1)
    return {"centre": (net[3](x.relu().flatten(1)) - batch.centres).square().mean()}


class PlainBatch:
    """Neither a dataclass nor a tuple."""

    def __init__(self, batch: DiscBatch) -> None:
        self.images, self.centres, self.weight = batch

    def to(self, device: torch.device, non_blocking: bool = False) -> PlainBatch:
        return self


def biased(task: DiscTask, *resumed: Any) -> nn.Module:
    """The gradient of a bias before a group norm is nothing but rounding."""
    model = DiscTask.build_model(task)
    model.insert(1, nn.GroupNorm(1, task.config.model.width))  # type: ignore[operator]
    model.insert(4, nn.Dropout(0.5))  # type: ignore[operator]
    return model


count = itertools.count()
RIGHT = {
    "as it is": DiscTask,
    "reduced metrics": of_evaluator(reduced),
    "a batch without fields": of_data(lambda data, step, batches: [PlainBatch(b) for b in batches]),  # type: ignore[misc]
    "a bias before a group norm, and dropout": changed_task(build_model=biased),
}
MUTANTS = {
    "a rank drops its batch": (
        of_specs(lambda s, d: (s.indices or (0,), s.weight * (d.rank == 0))),
        "is not 1",
    ),
    "the whole batch on every rank": (of_data(whole), "as much as one rank alone"),
    "a short step weighs as a full one": (
        of_specs(lambda s, d: (s.indices or (0,), len(s.indices) * d.world_size / d.batch_size)),
        "step 12.*is not 1",
    ),
    "no filler": (
        of_data(lambda data, step, b: [x for x in b if x.weight]),
        "a rank without examples has a padding batch",
    ),
    "an example twice": (
        of_specs(
            lambda s, d: (
                (*s.indices, s.indices[0]) if s.indices and d.rank else s.indices or (0,),
                s.weight,
            )
        ),
        "differs from one rank's",
    ),
    "other images on each rank": (
        of_specs(lambda s, d: ([i + d.rank for i in s.indices] or (0,), s.weight)),
        "differs from one rank's",
    ),
    "batches drawn as they come": (
        of_data(
            lambda data, step, batches: [b._replace(images=b.images + next(count)) for b in batches]
        ),
        "depend on where train_steps starts",
    ),
    "position counts batches": (
        of_position(lambda sampler, step: divmod(step, sampler.steps_per_epoch)),
        "position(1) is",
    ),
    "position counts full steps": (
        of_position(
            lambda sampler, step: divmod(step * sampler.batch_size, sampler.buckets.num_images)
        ),
        "position(11) is",
    ),
    "to alters the batch": (
        of_data(lambda data, step, batches: [InPlace(*b) for b in batches]),
        "alters the batch",
    ),
    "a parameter that one rank does not use": (
        changed_model(unused_bias),
        "lacks the gradient of 0.bias",
    ),
    "to without non_blocking": (
        of_data(lambda data, step, batches: [Blocking(*b) for b in batches]),
        "non_blocking",
    ),
    "summed metrics": (
        of_evaluator(
            lambda task, model, batch: float(
                task.strategy.all_reduce(torch.tensor(error(model, batch)), "sum")
            )
        ),
        "of two (does the evaluator reduce",
    ),
    "metrics depend on the training mode": (
        of_evaluator(as_it_comes),
        "a model in evaluation mode",
    ),
    "a metric by another name": (
        changed_task(metric_names=("val/mse",), default_monitor="val/mse"),
        "lack some of",
    ),
    "an unknown monitor": (changed_task(default_monitor="val/mse"), "is not in metric_names"),
    "a loss of each example": (
        changed_model(lambda net, batch, losses: {"centre": losses["centre"].expand(3)}),
        "not a finite scalar",
    ),
    "one loss, no dict": (
        changed_model(lambda net, batch, losses: losses["centre"]),
        "not a dict of losses",
    ),
    "a fingerprint that changes": (
        changed_task(fingerprint=lambda task: str(next(count))),
        "changes by itself",
    ),
    "a checkpoint with objects": (
        changed_task(metadata=lambda task, model: {"model": model}),
        "Weights only load failed",
    ),
    "an unknown lock": (
        changed_task(locked_settings=frozenset(("data.classes",))),
        "which is not a setting",
    ),
}


@pytest.fixture(scope="module")
def config() -> Any:
    return load_config("train", SETTINGS)


@pytest.mark.parametrize("name", RIGHT)
def test_right_tasks_keep_the_contract(name: str, config: Any) -> None:
    task_contract(RIGHT[name], config)


def test_a_constant_fingerprint_is_caught_by_other_data(config: Any) -> None:
    other = load_config("train", [*SETTINGS, "data.num_train=65"])
    task_contract(DiscTask, config, other)
    with pytest.raises(AssertionError, match="fingerprint is the same for other data"):
        task_contract(changed_task(fingerprint=lambda task: "discs"), config, other)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_bug_is_caught(name: str, config: Any) -> None:
    mutant, message = MUTANTS[name]
    with pytest.raises(Exception, match=message.replace("(", r"\(").replace(")", r"\)")):
        task_contract(mutant, config)
