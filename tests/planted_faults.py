"""The smallest possible faults of a training step, put in on purpose: one bit of one value.

As a script's module `sitecustomize` does, `plant(NAME)` changes the code of the running process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from retina_dist.data.module import DataModule
from retina_dist.data.samplers import TrainSampler
from retina_dist.engine import train_step
from retina_dist.engine.state import ExponentialMovingAverage
from retina_dist.engine.train_step import TrainStep

STEP = 3  # in which they are, counted from 1
Patch = Callable[[object, str, Callable[..., Any]], None]  # `setattr`, or a MonkeyPatch's


def nudge(tensor: Tensor) -> None:
    """Change the lowest bit of the element of the largest magnitude."""
    flat = tensor.detach().view(-1) if tensor.is_contiguous() else tensor.detach().reshape(-1)
    place = int(flat.abs().argmax())
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = flat[place : place + 1].view(integers[flat.element_size()])
    bits ^= 1
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))


def nudged(tensor: Tensor) -> Tensor:
    copied = tensor.clone()
    nudge(copied)
    return copied


@dataclass(frozen=True)
class Fault:
    """What bisect must say of a fault: `stage`, and `name` in part."""

    stage: str
    name: str
    plant: Callable[[Patch, Fault], None]
    rank: int = 0


def _around(patch: Patch, owner: Any, name: str, after: Callable[..., Any]) -> None:
    """Let `after(result, *arguments)` return what OWNER.NAME returns."""
    original = getattr(owner, name)

    def changed(*arguments: Any, **options: Any) -> Any:
        return after(original(*arguments, **options), *arguments)

    patch(owner, name, changed)


def is_now(step: TrainStep, fault: Fault) -> bool:
    return step.state.step == STEP - 1 and step.strategy.rank == fault.rank


def data_order(patch: Patch, fault: Fault) -> None:
    """Two neighbours change places."""

    def swapped(specs: list[Any], sampler: TrainSampler, step: int) -> list[Any]:
        if step == STEP - 1 and sampler.rank == fault.rank:
            first, second, *others = specs[-1].indices
            specs[-1] = replace(specs[-1], indices=(second, first, *others))
        return specs

    _around(patch, TrainSampler, "step", swapped)


def batch_field(patch: Patch, fault: Fault) -> None:
    """One bit of a tensor of the last micro-batch."""

    def changed(steps: Iterator[Any], data: Any, start: int, stop: int) -> Iterator[Any]:
        for number, batches in enumerate(steps, start=start + 1):
            if number == STEP and data.train_sampler.rank == fault.rank:
                nudge(getattr(batches[-1], fault.name))
            yield batches

    _around(patch, DataModule, "train_steps", changed)


def _on_made(patch: Patch, attach: Callable[[TrainStep], None]) -> None:
    _around(patch, TrainStep, "__init__", lambda _, step, *arguments: attach(step))


def forward(patch: Patch, fault: Fault) -> None:
    def attach(step: TrainStep) -> None:
        def changed(module: object, inputs: object, output: Tensor) -> Tensor | None:
            return nudged(output) if is_now(step, fault) else None

        step.state.model.get_submodule(fault.name).register_forward_hook(changed)

    _on_made(patch, attach)


def loss(patch: Patch, fault: Fault) -> None:
    def attach(step: TrainStep) -> None:
        def changed(net: object, inputs: object, losses: dict[str, Tensor]) -> Any:
            if not is_now(step, fault):
                return None
            return {**losses, fault.name: nudged(losses[fault.name])}

        step.net.register_forward_hook(changed)

    _on_made(patch, attach)


def gradient(patch: Patch, fault: Fault) -> None:
    def attach(step: TrainStep) -> None:
        def changed(found: Tensor) -> Tensor | None:
            return nudged(found) if is_now(step, fault) else None

        step.state.model.get_parameter(fault.name).register_hook(changed)

    _on_made(patch, attach)


def _gradient_of(step: TrainStep, fault: Fault) -> Tensor:
    found = step.state.model.get_parameter(fault.name).grad
    assert found is not None
    return found


def reduction(patch: Patch, fault: Fault) -> None:
    """In each value of one gradient, on all ranks: clipping can round one value back."""

    def changed(losses: Any, step: TrainStep, *_: object) -> Any:
        if step.state.step == STEP - 1:
            gradient = _gradient_of(step, fault)
            gradient.copy_(gradient.nextafter(torch.zeros(())))
        return losses

    _around(patch, TrainStep, "_compute_gradients", changed)
    from retina_dist.engine.virtual_ranks import VirtualRankStep

    _around(patch, VirtualRankStep, "_compute_gradients", changed)


def clipping(patch: Patch, fault: Fault) -> None:
    made: list[TrainStep] = []
    _on_made(patch, made.append)

    def changed(norm: Tensor, *_: object) -> Tensor:
        if made[-1].state.step == STEP - 1:
            nudge(_gradient_of(made[-1], fault))
        return norm

    _around(patch, train_step, "clip_gradients", changed)


def optimizer(patch: Patch, fault: Fault) -> None:
    """In a weight, or in its momentum where the name begins with it."""
    kind, _, name = fault.name.partition(".")

    def attach(step: TrainStep) -> None:
        def changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if step.state.step == STEP - 1:
                weight = step.state.model.get_parameter(name.removesuffix(".momentum_buffer"))
                if kind == "optimizer":
                    nudge(optimizer.state[weight]["momentum_buffer"])
                else:
                    nudge(weight)

        step.state.optimizer.register_step_post_hook(changed)

    _on_made(patch, attach)


def buffers(patch: Patch, fault: Fault) -> None:
    """In a running statistic, from the step on: one step alone can be lost in the next mean."""

    def changed(_: object, step: TrainStep, *__: object) -> None:
        if step.state.step >= STEP - 1:
            nudge(step.state.model.get_buffer(fault.name))

    _around(patch, TrainStep, "_average_statistics", changed)
    from retina_dist.engine.virtual_ranks import VirtualRankStep

    _around(patch, VirtualRankStep, "_average_statistics", changed)


def average(patch: Patch, fault: Fault) -> None:
    """From the step on, as `buffers`."""

    def changed(_: object, ema: ExponentialMovingAverage, *__: object) -> None:
        if ema.updates >= STEP:
            nudge(ema.model.get_parameter(fault.name))

    _around(patch, ExponentialMovingAverage, "update", changed)


FAULTS = {
    "data order": Fault("data order", "image_ids", data_order),
    "pixels": Fault("pixels", "images", batch_field),
    "targets": Fault("targets", "labels", batch_field),
    "an early layer": Fault("forward", "model.stage2.0.branch1.0", forward),
    "a late layer": Fault("forward", "model.stage4.3.branch2.5", forward),
    "loss": Fault("loss", "classification", loss),
    "an early gradient": Fault("gradient", "model.stage2.0.branch1.0.weight", gradient),
    "a late gradient": Fault("gradient", "model.fc.bias", gradient),
    "reduction": Fault("reduction", "model.stage2.1.branch2.0.weight", reduction),
    "clipping": Fault("clipping", "model.stage3.0.branch2.5.weight", clipping),
    "a weight": Fault("optimizer", "weights.model.conv5.0.weight", optimizer),
    "momentum": Fault("optimizer", "optimizer.model.fc.weight.momentum_buffer", optimizer),
    "a running mean": Fault("buffers", "model.conv1.1.running_mean", buffers),
    "average": Fault("average", "model.stage3.2.branch2.3.weight", average),
}


def plant(kind: str, patch: Patch = setattr, **changes: Any) -> Fault:
    fault = replace(FAULTS[kind], **changes)
    fault.plant(patch, fault)
    return fault


@contextmanager
def planted(kind: str | None, **changes: Any) -> Iterator[None]:
    """Within it the fault is in this process; None for none."""
    with pytest.MonkeyPatch.context() as patches:
        if kind:
            plant(kind, patches.setattr, **changes)
        yield
