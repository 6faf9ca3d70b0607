"""One optimizer step: ours against torchvision's plain loop.

    python -m retina_dist.benchmark step                                                   the small model, 128 px
    python -m retina_dist.benchmark step model=retinanet_r50 model.norm=frozen_bn model.trainable_layers=3 \
        canvases=[[320,320]] batch_sizes=[4] paths=[torchvision,fp32,bf16] threads=2

The base is what references/detection of torchvision does in fp32: its model over lists of images and targets, the loss
read each step, SGD. Ours is the trainer's step, channels last. Both have the same weights and images, already of the canvas' size,
and take turns within one process; a ratio is that of a turn to the base's turn beside it. Flops are counted, not estimated, and
set against the most that a matrix product, a convolution or a step of the same type has reached on this device in this run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from retina_dist.benchmark.device_peaks import copy_gb_per_s, device_name, peak_tflops, wait
from retina_dist.benchmark.operators import OperatorCount
from retina_dist.benchmark.report import finish
from retina_dist.benchmark.settings import StepConfig
from retina_dist.benchmark.step_paths import BASE, PATHS, our_step, random_batch, torchvision_inputs, torchvision_step
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.model.build import build_model
from retina_dist.detection.model.retinanet import as_torchvision
from retina_dist.engine.precision import Precision
from retina_dist.errors import ConfigError
from retina_dist.reporting.console import print_redacted
from retina_dist.reporting.scaling import plot_steps
from retina_dist.seeding import seed_everything
from retina_dist.strategies.single_device import SingleDeviceStrategy

COUNTED = (1, 2, 4, 8)  # batch sizes whose operators are counted


def measure(config: StepConfig, batch_size: int, canvas: Sequence[int]) -> dict[str, Any]:
    """One row of the table for each path: seconds, ratios, flops, memory, and the first loss."""
    device = SingleDeviceStrategy(config.strategy.device).device
    seed_everything(config.seed)
    model = build_model(config.model, config.num_classes)
    batch = random_batch(batch_size, canvas, config.num_classes, config.boxes, config.seed)
    where = f"{'x'.join(map(str, canvas))}, batch {batch_size}"
    steps: dict[str, Callable[[], Tensor]] = {}
    first: dict[str, float] = {}
    memory: dict[str, float | None] = {}
    flops = 0
    for name in config.paths:
        way, make = PATHS[name], torchvision_step if name.startswith(BASE) else our_step
        before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)  # what earlier paths hold
        try:
            print_redacted(f"{where}: first steps of {name}", sys.stderr)
            step = make(config, model, batch, way)
            with nullcontext() if flops or way.compiled else FlopCounterMode(display=False) as counter:
                first[name] = float(step())
            flops = flops or (counter.get_total_flops() if counter else 0)
            for _ in range(config.warmup):
                step()
        except torch.OutOfMemoryError:
            print(f"{name} left out at batch {batch_size} of {canvas}: out of memory", flush=True)
            if name == config.paths[0]:
                raise
            continue
        wait(device)
        memory[name] = (torch.cuda.max_memory_allocated(device) - before) / 2**30 if device.type == "cuda" else None
        steps[name] = step
    seconds = _timed(config, where, steps, device)
    rows = []
    for name, times in seconds.items():
        ratios = [base / one for base, one in zip(seconds[config.paths[0]], times, strict=True)]
        median = statistics.median(times)
        rows.append(
            {
                "path": name,
                "batch_size": batch_size,
                "canvas": list(canvas),
                "ms": round(median * 1000, 3),
                "images_per_s": round(batch_size / median, 3),
                "ratio": [round(f(ratios), 4) for f in (min, statistics.median, max)],
                "tflops": round(flops / median / 1e12, 4),
                "first_loss": first[name],
                "peak_memory_gib": memory[name],
            }
        )
    return {"rows": rows, "flops_per_image": flops / batch_size}


def _timed(
    config: StepConfig, where: str, steps: dict[str, Callable[[], Tensor]], device: torch.device
) -> dict[str, list[float]]:
    """Seconds a step of each path, by round; the paths take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(config.rounds):
        print_redacted(f"{where}: round {turn + 1} of {config.rounds}", sys.stderr)
        for name, step in steps.items():
            wait(device)
            started = time.perf_counter()
            for _ in range(config.steps):
                step()
            wait(device)
            seconds[name].append((time.perf_counter() - started) / config.steps)
    return seconds


def count_operators(config: StepConfig, canvas: Sequence[int]) -> list[dict[str, Any]]:
    """Operators, views apart, and waits for the device of forward and backward pass, by batch size."""
    rows = []
    for size in COUNTED:
        print_redacted(f"counting operators: batch {size}", sys.stderr)
        model = build_model(config.model, config.num_classes)
        theirs = as_torchvision(model, canvas).train()
        batch = random_batch(size, canvas, config.num_classes, config.boxes, config.seed)
        images, targets = torchvision_inputs(batch)
        model(batch)  # what is made once
        calls: dict[str, Callable[[], Any]] = {"ours": partial(model.__call__, batch)}
        calls[BASE] = partial(theirs.__call__, images, targets)
        for name, losses in calls.items():
            with OperatorCount() as counted:
                sum(losses().values()).backward()
            row = {"operators": sum(counted.operators.values()), "waits": sum(counted.waits.values())}
            rows.append({"path": name, "batch_size": size, **row})
    return rows


def benchmark(config: StepConfig) -> dict[str, Any]:
    """Measure every path at every batch size and canvas; print and return the figures."""
    _check(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    device = SingleDeviceStrategy(config.strategy.device).device
    print_redacted("measuring what the device can do", sys.stderr)
    peak = {kind: peak_tflops(device, kind) for kind in {PATHS[name].precision for name in config.paths}}
    bandwidth = copy_gb_per_s(device)
    print(
        f"peak of matrix product and convolution, before the steps: {_in_words(peak)} TFLOP/s; copy: {bandwidth:.3g} GB/s\n"
    )
    print(f"{'path':<18}{'canvas':>11}{'batch':>6}{'ms':>10}{'img/s':>9}{'min':>8}{'ratio':>7}{'max':>7}"
          f"{'TFLOP/s':>9}{'of peak':>9}{'GiB':>7}   first loss")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for canvas in config.canvases:
        for batch_size in config.batch_sizes:
            found = measure(config, batch_size, canvas)
            _raise_peak(peak, device, found["rows"])
            _set_shares(found["rows"], peak)
            for row in found["rows"]:
                print(_row_in_words(row), flush=True)
            rows += found["rows"]
    _set_shares(rows, peak)
    mix = _mixed(config, rows)
    for row in mix:
        print(
            f"{row['path']:<18}{'the mix':>11}{row['batch_size']:>6}{'':>10}{row['images_per_s']:>9.2f}{'':>8}{row['ratio']:>7.2f}"
        )
    print(
        f"\nof peak: of the best product, convolution or step of its type up to that line; by the end {_in_words(peak)} TFLOP/s.\n"
        "Measured in this run beside the steps, so on a machine with other work both are lower than it can do."
    )
    if config.plot:
        bars = mix or [{**row, "ratio": row["ratio"][1]} for row in rows if row["canvas"] == config.canvases[0]]
        where = "the mix of canvases" if mix else "x".join(map(str, config.canvases[0])) + " px"
        plot_steps(
            bars,
            Path(config.plot),
            [f"{config.model.backbone} {config.model.variant}, {where}, {device_name(device)}"],
        )
        print(f"\n{config.plot}")
    counts = count_operators(config, config.count_canvas) if config.count_canvas else []
    if counts:
        print(f"\noperators (views apart) and waits for the device, forward and backward, {config.count_canvas} px")
        print(f"{'':<14}" + "".join(f"{f'batch {size}':>14}" for size in COUNTED))
        for name in ("ours", BASE):
            cells = [f"{row['operators']} / {row['waits']}" for row in counts if row["path"] == name]
            print(f"{name:<14}" + "".join(f"{cell:>14}" for cell in cells))
    ratios = {f"{row['path']} {_size(row)} batch {row['batch_size']}": row["ratio"][1] for row in rows}
    ratios |= {f"{row['path']} mix batch {row['batch_size']}": row["ratio"] for row in mix}
    ratios = {name: ratio for name, ratio in ratios.items() if name.split()[0] != config.paths[0]}
    roofline = {
        "peak_tflops": {precision: round(value, 4) for precision, value in peak.items()},
        "copy_gb_per_s": round(bandwidth, 2),
    }
    net = f"{config.model.backbone} {config.model.variant}"
    what = f"{net} against {config.paths[0]}, {config.rounds} rounds of {config.steps} steps"
    start = _start(rows, mix)
    return finish(config, "step", ratios, what=what, **start, rows=rows, mix=mix, roofline=roofline, operators=counts)


def _check(config: StepConfig) -> None:
    unknown = [path for path in config.paths if path not in PATHS]
    if unknown or not config.paths:
        raise ConfigError(f"paths={config.paths} is not a list of {', '.join(PATHS)}.")
    if config.shares is not None and len(config.shares) != len(config.canvases):
        raise ConfigError(
            f"shares has {len(config.shares)} numbers for {len(config.canvases)} canvases; give one for each."
        )


def _size(row: dict[str, Any]) -> str:
    return "x".join(map(str, row["canvas"]))


def _row_in_words(row: dict[str, Any]) -> str:
    low, middle, high = row["ratio"]
    gib = "-" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.1f}"
    return (
        f"{row['path']:<18}{_size(row):>11}{row['batch_size']:>6}{row['ms']:>10.1f}"
        f"{row['images_per_s']:>9.2f}{low:>8.2f}{middle:>7.2f}{high:>7.2f}{row['tflops']:>9.3g}"
        f"{row['share_of_peak']:>9.1%}{gib:>7}   {row['first_loss']:.6f}"
    )


def _start(rows: list[dict[str, Any]], mix: list[dict[str, Any]]) -> dict[str, Any]:
    """What `benchmark forecast measured=FILE` starts from: the fastest of our steps."""
    ours = [row for row in mix or rows if not row["path"].startswith(BASE)] or rows
    best = max(ours, key=lambda row: row["images_per_s"])
    return {
        "step_ms": round(1000 * best["batch_size"] / best["images_per_s"], 3),
        "batch_size": best["batch_size"],
        "step_of": {"path": best["path"], "canvas": "the mix" if mix else best["canvas"]},
    }


def _raise_peak(peak: dict[Precision, float], device: torch.device, rows: Sequence[dict[str, Any]]) -> None:
    """Measure the peaks once more, beside the steps just timed; the best stays, and a step that did more has shown more."""
    for precision in peak:
        steps = [row["tflops"] for row in rows if PATHS[row["path"]].precision == precision]
        peak[precision] = max(peak[precision], peak_tflops(device, precision), *steps)


def _set_shares(rows: Sequence[dict[str, Any]], peak: dict[Precision, float]) -> None:
    for row in rows:
        row["share_of_peak"] = round(row["tflops"] / peak[PATHS[row["path"]].precision], 4)


def _in_words(peak: dict[Precision, float]) -> str:
    return ", ".join(f"{precision} {value:.3g}" for precision, value in sorted(peak.items()))


def _mixed(config: StepConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images a second where each canvas has its share of the images, by path and batch size; nothing without `shares`."""
    if config.shares is None:
        return []
    share = {
        tuple(canvas): value / sum(config.shares) for canvas, value in zip(config.canvases, config.shares, strict=True)
    }
    mix = []
    for size in config.batch_sizes:
        speeds = {}
        for path in config.paths:
            own = [row for row in rows if (row["path"], row["batch_size"]) == (path, size)]
            if len(own) == len(config.canvases):
                speeds[path] = 1 / sum(share[tuple(row["canvas"])] / row["images_per_s"] for row in own)
        mix += [
            {
                "path": path,
                "batch_size": size,
                "images_per_s": round(speed, 3),
                "ratio": speed / speeds[config.paths[0]],
            }
            for path, speed in speeds.items()
        ]
    return mix


@entry_point("benchmark_step")
def main(config: StepConfig) -> Any:
    """The table."""
    benchmark(config)


if __name__ == "__main__":
    main()
