"""The ways in which `benchmark step` takes a step: ours, and torchvision's plain loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from retina_dist.benchmark.settings import StepConfig
from retina_dist.detection.batch import Batch
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import Precision, autocast
from retina_dist.engine.train_step import TrainStep
from retina_dist.errors import ConfigError
from retina_dist.run.build import build_plan, build_state
from retina_dist.strategies.single_device import SingleDeviceStrategy

BASE = "torchvision"


class StepVariant(NamedTuple):
    """How a step is taken."""

    precision: Precision = "fp32"
    compiled: bool = False  # by torch.compile


# The first three are torchvision's loop.
PATHS = {
    "torchvision": StepVariant(),
    "torchvision-tf32": StepVariant("tf32"),
    "torchvision-fp16": StepVariant("fp16"),
    "fp32": StepVariant(),
    "tf32": StepVariant("tf32"),
    "bf16": StepVariant("bf16"),
    "fp16": StepVariant("fp16"),
    "fp32-compile": StepVariant(compiled=True),
    "bf16-compile": StepVariant("bf16", compiled=True),
}


def random_batch(size: int, canvas: Sequence[int], num_classes: int, boxes: int, seed: int) -> Batch:
    """Noise images that fill the canvas, each with `boxes` boxes of 8 px to half its side."""
    generator = torch.Generator().manual_seed(seed)
    height, width = canvas
    sides = 8 + torch.rand(size, boxes, 2, generator=generator) * (torch.tensor([width, height]) / 2 - 8)
    corners = torch.rand(size, boxes, 2, generator=generator) * (torch.tensor([width, height]) - sides)
    images = torch.randint(0, 256, (size, height, width, 3), generator=generator, dtype=torch.uint8)
    return Batch(
        images=images.permute(0, 3, 1, 2),
        image_sizes=torch.tensor([list(canvas)] * size),
        original_sizes=torch.tensor([list(canvas)] * size),
        image_ids=torch.arange(size),
        boxes=torch.cat((corners, corners + sides), dim=-1),
        labels=torch.randint(0, num_classes, (size, boxes), generator=generator),
        num_boxes=torch.full((size,), boxes),
    )


def our_step(config: StepConfig, model: RetinaNet, batch: Batch, way: StepVariant) -> Callable[[], Tensor]:
    """A training's `TrainStep` on one batch."""
    strategy = SingleDeviceStrategy(config.strategy.device)
    model = copy.deepcopy(model)
    trainer_settings = replace(config.trainer, precision=way.precision, channels_last=True, compile=way.compiled)
    settings = replace(config, trainer=trainer_settings)
    train_step = TrainStep(
        build_state(settings, model, strategy),
        _plan(config, len(batch)),
        strategy,
        precision=way.precision,
        gradient_clip=config.trainer.gradient_clip,
    )
    train_step.timer.start()
    batch = batch.to(strategy.device)

    def step() -> Tensor:
        values = train_step([batch])
        if not values:
            raise ConfigError(f"loss or gradient is not finite at optimizer.lr={config.optimizer.lr:g}; lower it.")
        return values["train/loss"]

    return step


def torchvision_step(config: StepConfig, model: RetinaNet, batch: Batch, way: StepVariant) -> Callable[[], Tensor]:
    """torchvision's `train_one_epoch` for one batch (references/detection/engine.py), with its GradScaler for fp16."""
    device = SingleDeviceStrategy(config.strategy.device).device
    theirs = as_torchvision(model, batch.images.shape[-2:]).train().to(device)
    images, targets = torchvision_inputs(batch)
    lr = _plan(config, len(batch)).lr_at(0)
    optimizer = torch.optim.SGD(
        [p for p in theirs.parameters() if p.requires_grad],
        lr=lr, momentum=config.optimizer.momentum, weight_decay=config.optimizer.weight_decay,
    )  # fmt: skip
    scaler = torch.amp.GradScaler(device.type) if way.precision == "fp16" else None
    arithmetic = autocast(device, way.precision)
    there = [image.to(device) for image in images]
    truth = [{k: v.to(device) for k, v in target.items()} for target in targets]

    def step() -> Tensor:
        with arithmetic():
            losses = sum(theirs(there, truth).values())
        value = losses.item()
        if not math.isfinite(value):
            raise ConfigError(f"torchvision's loss is {value} at lr={lr:g}; lower optimizer.lr.")
        optimizer.zero_grad()
        if scaler:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        return losses.detach()

    return step


def torchvision_inputs(batch: Batch) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The lists that torchvision's model takes; every row of boxes is a real one here."""
    images = [image.contiguous() / 255 for image in batch.images]
    return images, [{"boxes": boxes, "labels": labels} for boxes, labels in zip(batch.boxes, batch.labels, strict=True)]


def _plan(config: StepConfig, batch_size: int) -> Plan:
    settings = replace(
        config,
        data=replace(config.data, batch_size=batch_size),
        trainer=replace(config.trainer, max_duration="1epochs", validate_every="0steps", accumulate=1),
        schedule=replace(config.schedule, name="constant", warmup="0steps"),
    )
    return build_plan(settings, 100_000, 1)
