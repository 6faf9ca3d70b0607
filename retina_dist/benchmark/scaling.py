"""How much faster are N processes than one?

    python -m retina_dist.benchmark scaling              2 processes under every installed launcher
    python -m retina_dist.benchmark scaling processes=[2,8] launchers=[torchrun] \\
        model=retinanet_r50 data=coco data.root=…
    python -m retina_dist.benchmark scaling data=synthetic processes=[1,2]       random images
    python -m retina_dist.benchmark scaling task=classification data=synthetic   another task

The base is plain `python` with strategy=single. Each process trains on its own batches of the same
size, read beforehand, so that only steps and communication are timed. All jobs take turns, `rounds`
times, and ratios are medians over the rounds, because a machine's speed drifts. Each launcher is
also compared with the first one at as many processes. output=NAME.json also draws NAME.html, the
length of an epoch over the number of processes.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retina_dist.base.files import write_json
from retina_dist.base.seeding import seed_everything
from retina_dist.base.settings import setting
from retina_dist.benchmark.report import LaunchedConfig, finish
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
from retina_dist.strategies.start_processes import run_job, usable

# Microsoft's machine learning blog, 2018: "How to do distributed deep learning for object detection
# using Horovod on Azure", https://learn.microsoft.com/archive/blogs/machinelearning
IN_2018 = (
    "in 2018, keras-retinanet under Horovod on eight K80 was 7.2 times as fast as on one, "
    "670 s an epoch"
)

Job = tuple[str, int]  # launcher, number of processes


@dataclass
class ScalingConfig(LaunchedConfig):
    """`python -m retina_dist.benchmark scaling`: data.batch_size counts for one process."""

    steps: int = setting(8, at_least=1)
    warmup: int = setting(3, "steps not timed; memory settles in the first two", at_least=0)
    rounds: int = setting(3, at_least=1)
    num_images: int | None = setting(None, "images of an epoch; null: the data's", at_least=1)


def benchmark(config: ScalingConfig) -> dict[str, Any]:
    """Launch every combination `rounds` times, in turns.

    Prints and returns the medians and their ratios to one process.
    """
    task_class(config).prepare(config)
    jobs: list[Job] = [("python", 1)]
    jobs += product(usable(config.launchers), config.processes)
    speeds: dict[Job, list[float]] = defaultdict(list)
    backends: dict[Job, str] = {}
    images = config.num_images or 0
    for turn in range(config.rounds):
        for job in jobs:
            with tempfile.TemporaryDirectory() as folder:
                figures = run_job(*job, "retina_dist.benchmark.scaling", Path(folder))
            speed = figures["images_per_s"]
            print(f"round {turn + 1}: {figures['job']}: {speed:.2f} img/s", flush=True)
            speeds[job].append(speed)
            backends[job] = figures["backend"]
            images = images or figures["num_images"]

    rows = []
    for job, values in speeds.items():
        row = row_of(job, values, speeds[jobs[0]], images)
        rows.append(row | {"backend": backends[job]})
    against = compared(speeds)
    _print_table(rows, against)

    what = (
        f"{config.data.batch_size} images a process and step, {config.steps} steps, "
        f"{config.rounds} rounds, one thread each"
    )
    if config.output:
        page = Path(config.output).with_suffix(".html")
        charts = {"Epochs": [epochs_chart(rows)]}
        notes = [f"An epoch of {images:,} images; {what}.", f"{IN_2018}."]
        print(page_if_possible(lambda: write_page(page, "Scaling", charts, notes=notes)))
    ratios = {f"{row['launcher']} {row['processes']}": row["speedup"] for row in rows[1:]}
    return finish(config, "scaling", ratios | against, what=what, num_images=images, rows=rows)


def _print_table(rows: Sequence[Mapping[str, Any]], against: Mapping[str, float]) -> None:
    titles = f"{'launcher':<12}{'processes':>10}{'img/s':>10}{'speed-up':>10}{'epoch min':>11}"
    print(f"\n{titles}   speed-up in each round")
    for row in rows:
        each = ", ".join(map("{:.2f}".format, row["each"]))
        speed = f"{row['images_per_s']:>10.2f}{row['speedup']:>10.2f}"
        epoch = f"{row['epoch_minutes'][0]:>11,.4g}"
        print(f"{row['launcher']:<12}{row['processes']:>10}{speed}{epoch}   {each}")
    for name, ratio in against.items():
        print(f"{name} processes: {ratio:.3f} times as fast")
    print(f"for comparison: {IN_2018}")


def measure(config: ScalingConfig) -> dict[str, object]:
    """Train `warmup` and then `steps` steps on the micro-batches of the first step.

    Every rank calls it. Returns the images a second of all ranks, and facts. Time counts until all
    ranks and their devices have done their work.
    """
    configure_torch(config.trainer)
    with build_strategy(config) as strategy:
        total = config.data.batch_size * strategy.world_size * config.trainer.micro_batches
        duration = f"{config.warmup + config.steps}steps"
        config = replace(  # at a rate that cannot diverge
            config,
            data=replace(config.data, batch_size=total),
            optimizer=replace(config.optimizer, lr=1e-7),
            schedule=ScheduleConfig(name="constant", warmup="0steps"),
            trainer=replace(config.trainer, max_duration=duration),
        )
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
            # waits for every rank, and its GPU
            float(strategy.all_reduce(torch.zeros(1, device=strategy.device)))

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


def compared(speeds: Mapping[Job, Sequence[float]]) -> dict[str, float]:
    """The speed of each launcher relative to the first one at as many processes.

    It is the median over the rounds.
    """
    launched = [job for job in speeds if job[0] != "python"]
    first = launched[0][0]
    ratios = {}
    for launcher, processes in launched:
        if launcher != first:
            each = np.divide(speeds[launcher, processes], speeds[first, processes])
            ratios[f"{launcher} / {first} {processes}"] = round(float(np.median(each)), 3)
    return ratios


def row_of(
    job: Job, values: Sequence[float], base: Sequence[float], num_images: int
) -> dict[str, Any]:
    """The figures of a job.

    Args:
        job: launcher and number of processes.
        values: images a second of each round.
        base: the plain process's images a second of each round.
        num_images: images of an epoch; its minutes are by the median, fastest and slowest round.
    """
    each = np.divide(values, base)
    speeds = np.quantile(values, (0.5, 1, 0))
    return {
        "launcher": job[0],
        "processes": job[1],
        "images_per_s": round(float(speeds[0]), 3),
        "speedup": round(float(np.median(each)), 3),
        "each": each.round(3).tolist(),
        "epoch_minutes": (num_images / speeds / 60).round(4).tolist(),
    }


def epochs_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Epoch length over workers on logarithmic axes, a line for each launcher, beside ideal 1/N.

    The first of `rows` is the plain process, from which a line begins unless its launcher has a job
    of one process. Whiskers reach from the shortest to the longest round.
    """
    alone = rows[0]
    workers = sorted({row["processes"] for row in rows})
    ideal = {
        "x": workers,
        "y": [alone["epoch_minutes"][0] / n for n in workers],
        "name": "ideal, 1/N",
        "mode": "lines",
        "line": {"dash": "dot", "color": "#8a929c"},
    }
    traces: list[dict[str, Any]] = [ideal]
    lines: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    for row in sorted(rows[1:], key=itemgetter("processes")):
        lines[row["launcher"]].append(row)
    for launcher, line in lines.items():
        most = line[-1]
        speedup = f"{most['speedup']:.2f} times as fast with {most['processes']}"
        if line[0]["processes"] != 1:
            line = [alone, *line]
        middle, fastest, slowest = np.array([row["epoch_minutes"] for row in line]).T
        points = {
            "name": f"{launcher} ({most['backend']}): {speedup}",
            "mode": "lines+markers",
            "x": [row["processes"] for row in line],
            "y": middle.tolist(),
            "error_y": {
                "symmetric": False,
                "array": (slowest - middle).tolist(),
                "arrayminus": (middle - fastest).tolist(),
            },
        }
        traces.append(points)
    layout = {
        "xaxis": {"title": {"text": "workers"}, "type": "log", "tickvals": workers},
        "yaxis": {"title": {"text": "minutes"}, "type": "log"},
        "showlegend": True,
    }
    return Chart("Length of an epoch", traces, layout, 520, wide=True)


@entry_point("benchmark_scaling", ScalingConfig)
def main(config: ScalingConfig) -> object:
    """The table, or in a launched process its part."""
    return measure(config) if config.worker else benchmark(config)


if __name__ == "__main__":
    main()
