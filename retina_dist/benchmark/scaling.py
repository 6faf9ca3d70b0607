"""How much faster are N processes than one?

    python -m retina_dist.benchmark scaling                            2 processes under every launcher that is there
    python -m retina_dist.benchmark scaling processes=[2,8] launchers=[torchrun] model=retinanet_r50 data=coco data.root=…
    python -m retina_dist.benchmark scaling data=synthetic processes=[1,2]      launchers compared, random images, no files
    python -m retina_dist.benchmark scaling task=classification data=synthetic   the same of another task

The base is plain `python` with strategy=single. Each process trains on its own batches of the same size, read
beforehand, so that only steps and communication are timed. All jobs take turns, `rounds` times, and ratios are
medians over the rounds, because a machine's speed drifts. Each launcher is also compared with the first one at
as many processes. output=NAME.json also draws NAME.html, the length of an epoch over the number of processes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retina_dist.base.files import write_json
from retina_dist.base.seeding import seed_everything
from retina_dist.base.settings import setting
from retina_dist.benchmark.report import BenchmarkConfig, finish
from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import task_class
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.reporting.page import Chart, page_if_possible, write_page
from retina_dist.run.build import (
    build_plan,
    build_state,
    build_strategy,
    build_train_step,
    configure_torch,
)
from retina_dist.run.records import describe_job
from retina_dist.strategies.start_processes import LAUNCHERS, run_job, usable

# https://learn.microsoft.com/archive/blogs/machinelearning/how-to-do-distributed-deep-learning-for-object-detection-using-horovod-on-azure
IN_2018 = "in 2018, keras-retinanet under Horovod on eight K80 was 7.2 times as fast as on one, 670 s an epoch"


@dataclass
class ScalingConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark scaling`: data.batch_size counts for one process."""

    processes: list[int] = setting([2], "compared with one plain process", at_least=1)
    launchers: list[str] = setting(
        [*LAUNCHERS], "those that are installed are used", choices=LAUNCHERS
    )
    steps: int = setting(8, at_least=1)
    warmup: int = setting(3, "steps not timed; memory settles in the first two", at_least=0)
    rounds: int = setting(3, at_least=1)
    num_images: int | None = setting(None, "images of an epoch; null: the data's", at_least=1)
    worker: str | None = setting(None, "set in the processes that it starts")


def benchmark(config: ScalingConfig) -> dict[str, Any]:
    """Launch every combination `rounds` times, in turns; print and return the medians and ratios to one process."""
    task_class(config).prepare(config)
    jobs = [
        ("python", 1),
        *((launcher, n) for launcher in usable(config.launchers) for n in config.processes),
    ]
    speeds: dict[tuple[str, int], list[float]] = {job: [] for job in jobs}
    backends: dict[tuple[str, int], str] = {}
    images = config.num_images or 0
    for turn in range(config.rounds):
        for job in jobs:
            with tempfile.TemporaryDirectory() as folder:
                figures = run_job(*job, "retina_dist.benchmark.scaling", Path(folder))
            speeds[job].append(figures["images_per_s"])
            backends[job] = figures["backend"]
            images = images or figures["num_images"]
            print(
                f"round {turn + 1}: {figures['job']}: {figures['images_per_s']:.2f} img/s",
                flush=True,
            )
    rows = [
        row_of(job, values, speeds[jobs[0]], images) | {"backend": backends[job]}
        for job, values in speeds.items()
    ]
    print(
        f"\n{'launcher':<12}{'processes':>10}{'img/s':>10}{'speed-up':>10}{'epoch min':>11}   speed-up in each round"
    )
    for row in rows:
        print(
            f"{row['launcher']:<12}{row['processes']:>10}{row['images_per_s']:>10.2f}{row['speedup']:>10.2f}"
            f"{row['epoch_minutes'][0]:>11,.4g}   {', '.join(f'{ratio:.2f}' for ratio in row['each'])}"
        )
    against = compared(speeds)
    for name, ratio in against.items():
        print(f"{name} processes: {ratio:.3f} times as fast")
    print(f"for comparison: {IN_2018}")
    what = f"{config.data.batch_size} images a process and step, {config.steps} steps, {config.rounds} rounds, one thread each"
    if config.output:
        out = Path(config.output).with_suffix(".html")
        charts, notes = (
            {"Epochs": [epochs_chart(rows)]},
            [f"An epoch of {images:,} images; {what}.", f"{IN_2018}."],
        )
        print(page_if_possible(lambda: write_page(out, "Scaling", charts, notes=notes)))
    ratios = {f"{row['launcher']} {row['processes']}": row["speedup"] for row in rows[1:]} | against
    return finish(config, "scaling", ratios, what=what, num_images=images, rows=rows)


def measure(config: ScalingConfig) -> dict[str, Any]:
    """Train `warmup` and then `steps` steps on the micro-batches of the first step; images a second of all ranks, and facts.

    Every rank calls it. Time counts until all ranks and their devices have done their work.
    """
    configure_torch(config.trainer)
    with build_strategy(config) as strategy:
        total = config.data.batch_size * strategy.world_size * config.trainer.micro_batches
        config = _endless(config, total)
        seed_everything(config.seed)
        task = strategy.run_collectively(lambda: task_class(config)(config, strategy))
        plan = build_plan(config, task.num_images, strategy.world_size)
        data = strategy.run_collectively(task.build_data)
        batches = [batch.to(strategy.device) for batch in next(iter(data.train_steps(0, 1)))]
        state = build_state(config, task.build_model(), strategy)
        train_step = build_train_step(config, state, plan, strategy)

        def repeat(count: int) -> None:
            for _ in range(count):
                train_step(batches)
                state.step += 1
            if strategy.device.type == "cuda":
                torch.cuda.synchronize(strategy.device)
            strategy.all_reduce(torch.zeros(1, device=strategy.device))

        train_step.timer.start()
        strategy.broadcast_state(state)
        repeat(config.warmup)
        started = time.perf_counter()
        repeat(config.steps)
        figures = {
            "images_per_s": total * config.steps / (time.perf_counter() - started),
            "num_images": task.num_images,
            "backend": strategy.backend,
            "job": describe_job(strategy),
        }
        if strategy.is_main:
            write_json(Path(str(config.worker)), figures)
        return figures


def _endless(config: ScalingConfig, total: int) -> ScalingConfig:
    """`config` for steps of `total` images in all, without validation, at a rate with which no loss diverges."""
    steps, never = f"{config.warmup + config.steps}steps", "0steps"
    trainer = replace(
        config.trainer,
        max_duration=steps,
        stop_after=None,
        validate_every=never,
        checkpoint_every=never,
    )
    return replace(
        config,
        data=replace(config.data, batch_size=total),
        optimizer=replace(config.optimizer, lr=1e-7),
        schedule=ScheduleConfig(name="constant", warmup="0steps"),
        trainer=trainer,
    )


def compared(speeds: Mapping[tuple[str, int], Sequence[float]]) -> dict[str, float]:
    """The speed of each launcher relative to the first one at as many processes: the median over the rounds."""
    launched = [job for job in speeds if job[0] != "python"]
    first = launched[0][0]
    ratios = {}
    for launcher, processes in launched:
        if launcher != first:
            pairs = zip(speeds[launcher, processes], speeds[first, processes], strict=True)
            ratios[f"{launcher} / {first} {processes}"] = round(
                statistics.median(a / b for a, b in pairs), 3
            )
    return ratios


def row_of(
    job: tuple[str, int], values: Sequence[float], base: Sequence[float], num_images: int
) -> dict[str, Any]:
    """The figures of a job from its speeds and the plain process's in each round; epochs by median, fastest, slowest."""
    each = [value / other for value, other in zip(values, base, strict=True)]
    speeds = (statistics.median(values), max(values), min(values))
    return {
        "launcher": job[0],
        "processes": job[1],
        "images_per_s": round(speeds[0], 3),
        "speedup": round(statistics.median(each), 3),
        "each": [round(ratio, 3) for ratio in each],
        "epoch_minutes": [round(num_images / speed / 60, 4) for speed in speeds],
    }


def epochs_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Epoch length over workers on logarithmic axes, a line for each launcher, beside the ideal of 1/N.

    The first of `rows` is the plain process, from which a line begins unless its launcher has a job of one process.
    Whiskers reach from the shortest to the longest round.
    """
    workers, alone = sorted({row["processes"] for row in rows}), rows[0]["epoch_minutes"][0]
    ideal = {"x": workers, "y": [alone / n for n in workers], "name": "ideal, 1/N", "mode": "lines"}
    traces: list[dict[str, Any]] = [ideal | {"line": {"dash": "dot", "color": "#8a929c"}}]
    for launcher in dict.fromkeys(row["launcher"] for row in rows[1:]):
        line = sorted(
            (row for row in rows if row["launcher"] == launcher), key=lambda row: row["processes"]
        )
        most = line[-1]
        label = f"{launcher} ({most['backend']}): {most['speedup']:.2f} times as fast with {most['processes']}"
        line = line if line[0]["processes"] == 1 else [rows[0], *line]
        middle, fastest, slowest = np.array([row["epoch_minutes"] for row in line]).T
        whiskers = {
            "symmetric": False,
            "array": (slowest - middle).tolist(),
            "arrayminus": (middle - fastest).tolist(),
        }
        points = {
            "x": [row["processes"] for row in line],
            "y": middle.tolist(),
            "error_y": whiskers,
        }
        traces.append({"name": label, "mode": "lines+markers", **points})
    x = {"title": {"text": "workers"}, "type": "log", "tickvals": workers}
    layout = {
        "xaxis": x,
        "yaxis": {"title": {"text": "minutes"}, "type": "log"},
        "showlegend": True,
    }
    return Chart("Length of an epoch", traces, layout, 520, wide=True)


@entry_point("benchmark_scaling", ScalingConfig)
def main(config: ScalingConfig) -> Any:
    """The table, or in a launched process its part."""
    return measure(config) if config.worker else benchmark(config)


if __name__ == "__main__":
    main()
