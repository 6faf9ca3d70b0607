"""Captured steps with a graph that runs the work anew on its own memory, which is what a CUDA graph does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.config import load_config
from retina_dist.engine.graphs import CapturedSteps
from retina_dist.model.retinanet import build_retinanet
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.train import uses_graphs
from retina_dist.types import Batch
from tests.unit.test_model import make_batch


class Again:
    """A graph: it writes the losses into the tensors that the capture gave out."""

    def __init__(self, work: Callable[[], dict[str, Tensor]], losses: dict[str, Tensor]) -> None:
        self.work, self.losses = work, losses

    def replay(self) -> None:
        for name, value in self.work().items():
            self.losses[name].copy_(value.detach())


def capture(work: Callable[[], dict[str, Tensor]]) -> tuple[Again, dict[str, Tensor]]:
    work()  # the warm-up
    losses = {name: torch.empty_like(value) for name, value in work().items()}
    return Again(work, losses), losses


def passes(model: nn.Module) -> Callable[[Batch, Any], dict[str, Tensor]]:
    def work(batch: Batch, weight: Any) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = model(batch)
        (torch.stack(list(losses.values())).sum() * weight).backward()
        return losses

    return work


def small_model(batch_norm: str = "live") -> nn.Module:
    torch.manual_seed(0)
    return build_retinanet(num_classes=3, backbone="resnet18", fpn_channels=32, batch_norm=batch_norm).double()


def test_two_micro_batches_of_every_shape_give_the_same_gradients_losses_and_statistics() -> None:
    model = small_model()
    plain = copy.deepcopy(model)
    device = torch.device("cpu")
    captured = CapturedSteps(model, passes(model), device, capture=capture)
    eager = passes(plain)
    batches = [make_batch([2, 1], 3, seed=1), make_batch([9, 0], 3, seed=2), make_batch([1, 3], 3, seed=3)]
    for batch, weight in zip(batches, (1.0, 0.5, 0.25), strict=True):
        found = {name: value.clone() for name, value in captured(batch, weight).items()}
        expected = eager(batch, weight)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(captured._slots) == 2  # two numbers of rows
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, torch.zeros_like(a) if b.grad is None else b.grad)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))


def test_when_a_capture_fails_the_work_is_done_as_it_is() -> None:
    model, said = small_model(), []

    def fails(work: Callable[[], Any]) -> Any:
        work()
        raise RuntimeError("not permitted while capturing\nmore")

    captured = CapturedSteps(model, passes(model), torch.device("cpu"), said.append, fails)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    batch = make_batch([2, 1], 3)
    for _ in range(2):
        found, expected = captured(batch, 1.0), passes(plain)(batch, 1.0)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert said == [
        "warning: no further CUDA graphs are captured, because one could not be (not permitted while capturing)"
    ]


class OfSome(SingleDeviceStrategy):
    world_size = 1  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("settings", "world_size", "reason"),
    [
        ([], 1, None),
        (["model.batch_norm=sync"], 2, "model.batch_norm=sync talks to other ranks within the pass"),
        (["model.batch_norm=sync"], 1, None),
        (["model.loss_path=torchvision"], 1, "model.loss_path=torchvision waits for the device"),
        (["strategy.compression=fp16"], 1, "strategy.compression=fp16 sends gradients during the pass"),
    ],
)
def test_what_cannot_be_captured_is_said(settings: list[str], world_size: int, reason: str | None) -> None:
    strategy, said = OfSome("cpu"), []
    strategy.world_size = world_size
    config = load_config("train", ["trainer.cuda_graphs=true", "model.batch_norm=frozen", *settings])
    assert not uses_graphs(config, strategy, said.append)
    assert said.pop() == "trainer.cuda_graphs=true is without effect, because the device is cpu"
    strategy.device = torch.device("cuda")
    assert uses_graphs(config, strategy, said.append) is (reason is None)
    assert said == ([] if reason is None else [f"trainer.cuda_graphs=true is without effect, because {reason}"])
    assert not uses_graphs(replace(config, trainer=replace(config.trainer, cuda_graphs=False)), strategy, said.append)


def test_memory_that_a_graph_reads_stays_where_it_is() -> None:
    model = small_model("frozen")
    norm = model.backbone.body.bn1
    captured = CapturedSteps(model, passes(model), torch.device("cpu"), capture=capture)
    held = norm.scale_and_shift()
    captured(make_batch([2, 1], 3), 1.0)
    norm.running_mean.add_(1.0)
    again = norm.scale_and_shift()
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(held, again, strict=True))
    torch.testing.assert_close(again[1], norm.bias - norm.running_mean * again[0])
    captured(make_batch([9, 1], 3), 1.0)
    images = [slot.batch.images.data_ptr() for slot in captured._slots.values()]
    assert images[0] == images[1]
