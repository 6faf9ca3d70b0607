"""Whole training steps on a CUDA device that is not there: none waits, none copies, and what does
is caught.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.classification.dataset import ImageBatch
from retina_dist.classification.model import build_classifier
from retina_dist.config.compose import load_config
from retina_dist.detection.batch import Batch
from retina_dist.detection.model import retinanet
from retina_dist.engine.meter import StepMeter
from retina_dist.engine.train_loop import prefetched
from retina_dist.engine.train_step import TrainStep
from retina_dist.optim.settings import OptimizerConfig
from retina_dist.run.build import build_plan, build_state
from retina_dist.strategies.base import ReduceOp
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.fake_cuda import CUDA, FakeCuda, HostStall, fake_cuda

CLASSES = 5
FINITE = "retina_dist.engine.nonfinite.accept"
MODELS: dict[str, dict[str, Any]] = {
    "v1": {"variant": "v1", "backbone": "resnet18", "fpn_channels": 64},
    "v2": {"variant": "v2", "backbone": "resnet18"},
    "classifier": {},
}
CASES = [
    ("v2", "bf16", "frozen_bn", "value", "adamw"),
    ("v2", "fp16", "sync_bn", "tensor_norm", "sgd"),
    ("v1", "tf32", "sync_bn", "global_norm", "adamw"),
    ("classifier", "fp16", "bn", "global_norm", "adamw"),
    ("classifier", "fp32", "bn", "global_norm", "sgd"),
]


class OneOfTwo(SingleDeviceStrategy):
    """A rank of two, so that statistics are averaged; what the other one sends is not known on a
    fake device.
    """

    launch = Launch(world_size=2)

    def all_reduce(self, x: Tensor, op: ReduceOp = "mean") -> Tensor:
        assert x.is_cuda
        return x * 2


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_cuda() as device:
        yield device


@pytest.fixture(scope="module")
def config() -> Any:
    return load_config("train", ["trainer.ema_decay=0.999"])


def detection_batch(canvas: tuple[int, int], fillers: int = 0) -> Batch:
    count = 3
    values: dict[str, Any] = {
        "images": torch.zeros(count, 3, *canvas, dtype=torch.uint8),
        "image_sizes": torch.full((count, 2), 64),
        "original_sizes": torch.full((count, 2), 64),
        "image_ids": torch.arange(count),
        "boxes": torch.zeros(count, 4, 4),
        "labels": torch.zeros(count, 4, dtype=torch.int64),
        "num_boxes": torch.ones(count, dtype=torch.int64),
        "weight": 0.5,
        "real": torch.arange(count) < count - fillers if fillers else None,
    }
    return Batch(**values).pin_memory()


def image_batch(side: int, fillers: int = 0) -> ImageBatch:
    labels = torch.zeros(4, dtype=torch.int64)
    real = torch.arange(4) < 4 - fillers if fillers else None
    images = torch.zeros(4, 3, side, side, dtype=torch.uint8)
    return ImageBatch(
        images, labels, labels.clone(), torch.ones(4), torch.arange(4), 0.5, real
    ).pin_memory()


def batches(model: str) -> tuple[Any, list[Any]]:
    """A first batch, and those of a step on other shapes."""
    if model == "classifier":
        return image_batch(64), [image_batch(96), image_batch(64, fillers=1)]
    other = [detection_batch((96, 64)), detection_batch((64, 64), fillers=1)]
    return detection_batch((64, 64)), other


def build_step(config: Any, model: nn.Module, precision: str, **options: Any) -> TrainStep:
    config = replace(config, trainer=replace(config.trainer, precision=precision))
    optimizer = OptimizerConfig(name=options.pop("optimizer", "sgd"), lr=config.optimizer.lr)
    config = replace(config, optimizer=optimizer)
    strategy = OneOfTwo("cuda")
    state = build_state(config, model.train(), strategy)
    plan = build_plan(config, 1000, 2)
    trainer = replace(config.trainer, gradient_clip=0.1, **options)
    return TrainStep(state, plan, strategy, trainer)


def build(name: str, norm: str) -> nn.Module:
    if name == "classifier":
        return build_classifier("resnet18", CLASSES, norm=norm, label_smoothing=0.1)  # type: ignore[arg-type]
    return retinanet.build_retinanet(num_classes=CLASSES, norm=norm, **MODELS[name])  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "precision", "norm", "clip", "optimizer"), CASES)
def test_a_step_waits_once_and_copies_its_batch_only(
    gpu: FakeCuda, config: Any, name: str, precision: str, norm: str, clip: str, optimizer: str
) -> None:
    step = build_step(
        config, build(name, norm), precision, gradient_clip_algorithm=clip, optimizer=optimizer
    )
    first, others = batches(name)
    meter = StepMeter(step.strategy.all_reduce)
    seen: dict[str, Any] = {}
    body = step.state.model.model if name == "classifier" else step.state.model.backbone.body  # type: ignore[union-attr]
    body.layer4.register_forward_hook(
        lambda module, inputs, output: seen.update(dtype=output.dtype)
    )  # type: ignore[union-attr, operator]
    step([first])  # makes what is made once
    with gpu.watch():
        for micro_batches in prefetched(iter([others]), CUDA):
            values = step(micro_batches)
            meter.update(values, 6)
    assert gpu.waits == {FINITE: 1}
    assert seen["dtype"] is {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
        precision, torch.float32
    )
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    assert flags == (precision == "tf32",) * 2, "after the context, as the backward pass meets them"
    assert all(value.is_cuda for value in values.values())
    assert step.state.ema is not None
    assert step.state.ema.updates == 2
    assert all(
        p in step.state.optimizer.state for p in step.state.model.parameters() if p.requires_grad
    )
    with gpu.watch():
        assert meter.compute()["train/loss"] == 1.0  # the wait that a log line costs
    assert gpu.waits == {FINITE: 1, "retina_dist.engine.meter.compute": 1}


FAULTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x.sum().item(), "reads a value"),
    "float": (lambda x: float(x.sum()), "reads a value"),
    "nonzero": (lambda x: (x > 0).nonzero(), "depends on values"),
    "x[mask]": (lambda x: x[x > 0], "selects by a mask"),
    "cpu": (lambda x: x.detach().cpu(), "to the host"),
    "synchronize": (lambda x: torch.cuda.synchronize(), "synchronize"),
    "tensor": (lambda x: torch.tensor([1.0, 2.0], device=x.device), "from the host"),
    "not pinned": (lambda x: torch.arange(4).to("cuda", non_blocking=True), "from the host"),
    "pin": (lambda x: torch.arange(4).pin_memory(), "pinned within a step"),
}


def test_waits_and_copies_are_caught(gpu: FakeCuda) -> None:
    x = torch.ones(4, 4, device="cuda")
    for fault, words in FAULTS.values():
        with gpu.watch(), pytest.raises(HostStall) as caught:
            fault(x)
        what, place = str(caught.value).split(
            ", at ", 1
        )  # the place shows the line, which has the words too
        assert re.search(words, what)
        assert "test_host_waits.py" in place
    with gpu.watch():
        x.to("cpu", non_blocking=True)
