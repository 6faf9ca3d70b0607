"""Captured steps with a graph that runs the work anew on its own memory, which is what a CUDA graph does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from retina_dist.config.compose import load_config
from retina_dist.detection.batch import Batch
from retina_dist.detection.model.build import cuda_graph_blockers
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.engine.cuda_graphs import CUDAGraphRunner
from retina_dist.errors import UserError
from retina_dist.run.build import uses_graphs
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.unit.detection.test_model import make_batch


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


def small_model(norm: str = "bn") -> nn.Module:
    torch.manual_seed(0)
    return build_retinanet(num_classes=3, backbone="resnet18", fpn_channels=32, norm=norm).double()


def test_two_micro_batches_of_every_shape_give_the_same_gradients_losses_and_statistics() -> None:
    model = small_model()
    plain = copy.deepcopy(model)
    device = torch.device("cpu")
    captured = CUDAGraphRunner(model, passes(model), device, capture=capture)
    eager = passes(plain)
    batches = [make_batch([2, 1], 3, seed=1), make_batch([9, 0], 3, seed=2), make_batch([1, 3], 3, seed=3)]
    batches.append(replace(batches[0], real=torch.tensor([True, False])))
    for batch, weight in zip(batches, (1.0, 0.5, 0.25, 0.5), strict=True):
        found = {name: value.clone() for name, value in captured(batch, weight).items()}
        expected = eager(batch, weight)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(captured._slots) == 3  # two numbers of rows, and one with a filler
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, torch.zeros_like(a) if b.grad is None else b.grad)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))


def test_when_a_capture_fails_the_work_is_done_as_it_is(said: list[str]) -> None:
    model = small_model()

    def fails(work: Callable[[], Any]) -> Any:
        work()
        raise RuntimeError("not permitted while capturing\nmore")

    captured = CUDAGraphRunner(model, passes(model), torch.device("cpu"), fails)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    batch = make_batch([2, 1], 3)
    for _ in range(2):
        found, expected = captured(batch, 1.0), passes(plain)(batch, 1.0)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert said == ["no further CUDA graphs are captured, because one could not be (not permitted while capturing)"]


def test_inputs_of_all_shapes_share_the_memory_of_the_largest() -> None:
    """Those of `experiment=torchvision_v2` at 16 images, on no device: 7.5 GB of one each, at most 0.9 GB shared."""
    heights = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    ratios = (1.0, 1.2, 1.35, 1.5, 1.65, 1.8)
    shapes = [(16, 3, h, int(h * ratio) // 32 * 32) for h in heights for ratio in ratios]
    for order in (shapes, shapes[::-1]):
        captured = CUDAGraphRunner(nn.Linear(1, 1), lambda batch, weight: {}, torch.device("cpu"), capture=capture)
        taken = {}
        for shape in order:
            like = torch.empty(shape, device="meta").to(memory_format=torch.channels_last)
            found = captured._input("images", like)
            assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
            held = captured._inputs["images", torch.float32]
            taken[id(held)] = held.nbytes
        largest = max(torch.Size(shape).numel() * 4 for shape in shapes)
        assert sum(taken.values()) <= 4 * largest
    assert sum(torch.Size(shape).numel() * 4 for shape in shapes) > 30 * largest  # what they took


def test_a_smaller_batch_after_a_larger_one_reads_its_own_inputs() -> None:
    """Of float32 images, as the device resizes them, and uint8 ones; in the larger one's memory."""

    def work(batch: Batch, weight: Any) -> dict[str, Tensor]:
        places = torch.arange(batch.images.numel(), dtype=torch.float64).view(batch.images.shape)
        return {"images": (batch.images * places).sum() * weight, "boxes": batch.boxes.double().std()}

    captured = CUDAGraphRunner(nn.Linear(1, 1), work, torch.device("cpu"), capture=capture)
    batches = [make_batch([2, 1, 3], 3, seed=1), make_batch([2], 3, seed=2), make_batch([9, 1, 2, 1], 3, seed=3)]
    batches += [replace(batch, images=batch.images.float() + 0.25) for batch in batches]
    for batch in [*batches, *batches]:
        assert captured(batch, 0.5) == work(batch, 0.5)
    assert len(captured._slots) == 6
    assert {slot.batch.images.dtype for slot in captured._slots.values()} == {torch.uint8, torch.float32}


class Stream:
    def wait_stream(self, other: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("version", "ends_badly", "runs_on"),
    [("2.12.1+cu130", True, False), ("2.13.0", True, True), ("2.15.0+cu132", True, True), ("2.12.1", False, True)],
)
def test_after_a_failed_capture_old_versions_of_torch_stop_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, version: str, ends_badly: bool, runs_on: bool, said: list[str]
) -> None:
    """`torch.cuda.graph` ends the capture as it is left; before 2.13 an error there leaves the allocator in capture mode."""

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        finally:
            if ends_badly:
                raise RuntimeError("operation failed due to a previous error during capture")

    calls: list[int] = []

    def work(batch: Any, weight: Any) -> dict[str, Tensor]:
        calls.append(0)
        if len(calls) == 4:
            raise RuntimeError("not permitted when stream is capturing\nmore")
        return {"loss": torch.zeros(())}

    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    for name, fake in {
        "Stream": Stream,
        "current_stream": Stream,
        "CUDAGraph": object,
        "graph_pool_handle": object,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    captured = CUDAGraphRunner(nn.Linear(1, 1), work, torch.device("cpu"))
    if runs_on:
        captured(make_batch([1], 3), 1.0)
        assert said == [
            "no further CUDA graphs are captured, because one could not be (not permitted when stream is capturing)"
        ]
        assert len(calls) == 5
    else:
        with pytest.raises(
            UserError, match=r"\(not permitted when stream is capturing\), and torch 2.12.1\+cu130 cannot run on"
        ):
            captured(make_batch([1], 3), 1.0)


class OfSome(SingleDeviceStrategy):
    world_size = 1  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("settings", "world_size", "reason"),
    [
        ([], 1, None),
        (["model.norm=sync_bn"], 2, "model.norm=sync_bn talks to other ranks within the pass"),
        (["model.norm=sync_bn"], 1, None),
        (["model.loss_impl=torchvision"], 1, "model.loss_impl=torchvision waits for the device"),
        (["strategy.compression=fp16"], 1, "strategy.compression=fp16 sends gradients during the pass"),
    ],
)
def test_what_cannot_be_captured_is_said(
    settings: list[str], world_size: int, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "retina_dist")
    strategy = OfSome("cpu")
    strategy.world_size = world_size
    config = load_config("train", ["trainer.cuda_graphs=true", "model.norm=frozen_bn", *settings])
    assert not uses_graphs(config, strategy)
    assert caplog.messages == ["trainer.cuda_graphs=true is without effect, because the device is cpu"]
    caplog.clear()
    strategy.device = torch.device("cuda")
    assert uses_graphs(config, strategy, cuda_graph_blockers(config.model, world_size)) is (reason is None)
    assert caplog.messages == (
        [] if reason is None else [f"trainer.cuda_graphs=true is without effect, because {reason}"]
    )
    assert not uses_graphs(replace(config, trainer=replace(config.trainer, cuda_graphs=False)), strategy)


def test_memory_that_a_graph_reads_stays_where_it_is() -> None:
    model = small_model("frozen_bn")
    norm = model.backbone.body.bn1
    captured = CUDAGraphRunner(model, passes(model), torch.device("cpu"), capture=capture)
    held = norm.scale_and_shift()
    captured(make_batch([2, 1], 3), 1.0)
    norm.running_mean.add_(1.0)
    again = norm.scale_and_shift()
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(held, again, strict=True))
    torch.testing.assert_close(again[1], norm.bias - norm.running_mean * again[0])
    captured(make_batch([9, 1], 3), 1.0)
    images = [slot.batch.images.data_ptr() for slot in captured._slots.values()]
    assert images[0] == images[1]
