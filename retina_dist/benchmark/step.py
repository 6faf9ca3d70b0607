"""One optimizer step: ours against torchvision's plain loop.

    python -m retina_dist.benchmark step                            the small model, 128 px
    python -m retina_dist.benchmark step model=retinanet_r50 model.norm=frozen_bn \\
        model.trainable_layers=3 canvases=[[320,320]] batch_sizes=[4] \\
        paths=[torchvision,fp32,bf16] trainer.num_threads=2

The base is torchvision's references/detection in fp32: its model over lists of images and targets,
the loss read each step, SGD. Ours is the trainer's step in the faster memory format. Both have the
same weights and images, already of the padded size, and take turns within one process; a ratio
compares a turn with the base's turn beside it.
"""

import copy
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from retina_dist.base.console import print_redacted
from retina_dist.base.errors import ConfigError
from retina_dist.base.seeding import seed_everything
from retina_dist.base.settings import setting
from retina_dist.benchmark.report import BenchmarkConfig, finish
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.synthetic import synthetic_annotations, synthetic_batch
from retina_dist.detection.model.build import SHAPE_DIVISOR, DetectionModel, build_model
from retina_dist.detection.model.retinanet import RetinaNet, as_torchvision
from retina_dist.detection.settings import SyntheticConfig
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import autocast, resolve_precision, warn_of_emulation
from retina_dist.optim.settings import SGDSettings
from retina_dist.run.build import build_plan, build_state, build_train_step, configure_torch
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.single_device import SingleDeviceStrategy

BASE = "torchvision"
THEIRS = (BASE, f"{BASE}-tf32", f"{BASE}-fp16")
OURS = ("fp32", "tf32", "bf16", "fp16", "auto", "fp32-compile", "bf16-compile")
PATHS = (*THEIRS, *OURS)
Step = Callable[[], Tensor]


@dataclass
class StepConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark step`: settings of a training; images are noise."""

    unread: ClassVar[tuple[str, ...]] = ("data.root", "data.train_annotations", "data.train_images")
    paths: list[str] = setting(
        [BASE, "fp32", "auto"], "the first is the base; auto: as trainer.precision", choices=PATHS
    )
    batch_sizes: list[int] = setting([16], at_least=1)
    canvases: list[list[int]] = setting(
        [[128, 128]], "height and width, multiples of 32", at_least=32
    )
    num_classes: int = setting(91, at_least=1)
    boxes: int = setting(7, "boxes in each image", at_least=0)
    steps: int = setting(4, at_least=1)
    warmup: int = setting(2, "steps not timed", at_least=0)
    rounds: int = setting(5, at_least=1)

    def check(self) -> None:
        """Raise ConfigError for a canvas that is no height and width of whole strides."""
        super().check()
        for canvas in self.canvases:
            if len(canvas) != 2 or any(side % SHAPE_DIVISOR for side in canvas):
                raise ConfigError(
                    f"canvases={self.canvases} is not a list of heights and widths, each a "
                    f"multiple of {SHAPE_DIVISOR} px; give such as [[128,128]]."
                )


def random_batch(
    size: int, canvas: Sequence[int], num_classes: int, boxes: int, seed: int
) -> Batch:
    """Noise images of the padded size, each with `boxes` boxes, as `data=synthetic` makes them."""
    annotations = synthetic_annotations(
        SyntheticConfig(list(canvas), boxes, num_classes, size), seed
    )
    return synthetic_batch(annotations, range(size), 1.0, seed=seed, device=torch.device("cpu"))


def our_step(
    config: StepConfig,
    model: DetectionModel,
    batch: Batch,
    path: str,
    plan: Plan,
    strategy: DistributedStrategy,
) -> Step:
    """A training's `TrainStep` on one batch, in the precision of `path`; -compile compiles it."""
    precision, _, compiled = path.partition("-")
    trainer = replace(
        config.trainer, precision=precision, channels_last=None, compile=bool(compiled)
    )
    config = replace(config, trainer=trainer)
    state = build_state(config, copy.deepcopy(model), strategy)
    train_step = build_train_step(config, state, plan, strategy)
    train_step.timer.start()
    batch = batch.to(strategy.device)

    def step() -> Tensor:
        values = train_step([batch])
        if not values:
            raise ConfigError(
                f"loss or gradient is not finite at optimizer.lr={config.optimizer.lr:g}; lower it."
            )
        return values["train/loss"]

    return step


def torchvision_step(
    config: StepConfig,
    model: DetectionModel,
    batch: Batch,
    path: str,
    plan: Plan,
    strategy: DistributedStrategy,
) -> Step:
    """torchvision's `train_one_epoch` for one batch (references/detection/engine.py).

    It uses torchvision's GradScaler for fp16.
    """
    precision = path.partition("-")[2] or "fp32"
    device = strategy.device
    assert isinstance(model, RetinaNet), "of which torchvision has an own"
    theirs = as_torchvision(model, batch.images.shape[-2:]).train().to(device)
    lr = plan.lr_at(0)
    momentum = 0.9  # of its reference
    if isinstance(config.optimizer, SGDSettings):
        momentum = config.optimizer.momentum
    optimizer = torch.optim.SGD(
        theirs.parameters(), lr, momentum, weight_decay=config.optimizer.weight_decay
    )
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    autocast_context = autocast(device, precision)

    # The lists that its model takes.
    batch = batch.to(device)
    images = []
    targets = []
    for row, image in enumerate(batch.images):
        images.append(image.contiguous() / 255)
        boxes = batch.boxes[row, : config.boxes]
        targets.append({"boxes": boxes, "labels": batch.labels[row, : config.boxes]})

    def step() -> Tensor:
        with autocast_context():
            losses = sum(theirs(images, targets).values())
        value = losses.item()
        if not math.isfinite(value):
            raise ConfigError(f"torchvision's loss is {value} at lr={lr:g}; lower optimizer.lr.")
        optimizer.zero_grad()
        scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
        return losses.detach()

    return step


def measure(
    config: StepConfig, batch_size: int, canvas: Sequence[int], strategy: DistributedStrategy
) -> list[dict[str, Any]]:
    """A row of the table for each path."""
    config = replace(
        config,
        data=replace(config.data, batch_size=batch_size),
        trainer=replace(config.trainer, max_duration="1epochs", accumulate=1),
        schedule=replace(config.schedule, name="constant", warmup="0steps"),
    )
    plan = build_plan(config, 100_000, 1)
    seed_everything(config.seed)
    model = build_model(config.model, config.num_classes)
    batch = random_batch(batch_size, canvas, config.num_classes, config.boxes, config.seed)
    where = f"{_size(canvas)}, batch {batch_size}"

    steps: dict[str, Step] = {}
    facts: dict[str, dict[str, object]] = {}
    for name in config.paths:
        print_redacted(f"{where}: first steps of {name}", sys.stderr)
        warning = warn_of_emulation(strategy.device, name.partition("-")[0])
        if warning:
            print_redacted(f"warning: {warning}", sys.stderr)
        taken_before = torch.cuda.memory_allocated()  # by earlier paths
        if strategy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        make_step = torchvision_step if name in THEIRS else our_step
        step = make_step(config, model, batch, name, plan, strategy)
        first_loss = float(step())
        _run(step, config.warmup)
        peak = None
        if strategy.device.type == "cuda":
            peak = (torch.cuda.max_memory_allocated() - taken_before) / 2**30
        steps[name] = step
        facts[name] = {"first_loss": first_loss, "peak_memory_gib": peak}

    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(config.rounds):
        print_redacted(f"{where}: round {turn + 1} of {config.rounds}", sys.stderr)
        for name, step in steps.items():
            started = time.perf_counter()
            _run(step, config.steps)
            seconds[name].append((time.perf_counter() - started) / config.steps)

    base = seconds[config.paths[0]]
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        row = {
            "path": name,
            "batch_size": batch_size,
            "canvas": list(canvas),
            "ms": round(median * 1000, 3),
            "images_per_s": round(batch_size / median, 3),
            # the lowest, the median and the highest
            "ratio": np.quantile(np.divide(base, times), (0, 0.5, 1)).round(4).tolist(),
        }
        rows.append(row | facts[name])
    return rows


def _run(step: Step, count: int) -> None:
    loss = torch.zeros(())
    for _ in range(count):
        loss = step()
    loss.item()  # waits for a GPU


def benchmark(config: StepConfig) -> dict[str, object]:
    """Measure every path at every batch size and canvas; print and return the figures."""
    configure_torch(config.trainer)
    strategy = SingleDeviceStrategy(config.strategy.device)
    paths = [resolve_precision(strategy.device, path) for path in config.paths]
    config = replace(config, paths=list(dict.fromkeys(paths)))
    base = config.paths[0]

    titles = f"{'ms':>10}{'img/s':>9}{'min':>8}{'ratio':>7}{'max':>7}{'GiB':>7}   first loss"
    print(f"{'path':<18}{'canvas':>11}{'batch':>6}{titles}")
    rows: list[dict[str, object]] = []
    ratios: dict[str, float] = {}
    for canvas, batch_size in product(config.canvases, config.batch_sizes):
        for row in measure(config, batch_size, canvas, strategy):
            print(_line(row), flush=True)
            rows.append(row)
            if row["path"] != base:
                name = f"{row['path']} {_size(canvas)} batch {batch_size}"
                ratios[name] = row["ratio"][1]
    net = f"{config.model.backbone} {config.model.variant}"
    what = f"{net} against {base}, {config.rounds} rounds of {config.steps} steps"
    return finish(config, "step", ratios, what=what, rows=rows)


def _line(row: dict[str, Any]) -> str:
    low, middle, high = row["ratio"]
    gib = "-"
    if row["peak_memory_gib"] is not None:
        gib = f"{row['peak_memory_gib']:.1f}"
    where = f"{row['path']:<18}{_size(row['canvas']):>11}{row['batch_size']:>6}"
    speed = f"{row['ms']:>10.1f}{row['images_per_s']:>9.2f}{low:>8.2f}{middle:>7.2f}{high:>7.2f}"
    return f"{where}{speed}{gib:>7}   {row['first_loss']:.6f}"


def _size(canvas: Sequence[int]) -> str:
    return "x".join(map(str, canvas))


main = entry_point("benchmark_step", StepConfig)(benchmark)
