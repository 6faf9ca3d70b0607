"""How many images a second does a job train on, if nothing is read?

    python -m retina_dist.benchmark synthetic                                              one process
    torchrun --nproc-per-node 2 -m retina_dist.benchmark synthetic                         this job, by torch DDP
    horovodrun -np 2 python -m retina_dist.benchmark synthetic model=retinanet_r50 data.synthetic.canvas=[800,1088]
    python -m retina_dist.benchmark synthetic task=classification model=classifier data.image_size=224

As Horovod's pytorch_synthetic_benchmark.py (https://github.com/horovod/horovod/tree/master/examples/pytorch): random
batches on the device, made once; warm-up, then `num_iters` rounds of `num_batches_per_iter` steps; the mean over the rounds, and
1.96 standard deviations, for a process and for all. A machine's speed drifts, so compare by `benchmark scaling
data=synthetic`, whose jobs take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from retina_dist.benchmark.report import BenchmarkConfig, finish
from retina_dist.config.entry_point import entry_point
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.reporting.console import print_redacted
from retina_dist.run.build import build_plan, build_state, build_strategy, build_train_step, configure_torch, task_class
from retina_dist.run.records import describe_job
from retina_dist.run_config import RunConfig
from retina_dist.seeding import seed_everything
from retina_dist.settings import setting
from retina_dist.text import pluralize


@dataclass
class SyntheticBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark synthetic`: data.batch_size counts for one process."""

    num_warmup_batches: int = setting(10, "steps not timed", at_least=0)
    num_batches_per_iter: int = setting(10, "steps of a round", at_least=1)
    num_iters: int = setting(10, "rounds", at_least=1)


def measure(
    config: RunConfig, *, warmup: int, steps: int, rounds: int = 1, report: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Train `warmup` steps, then `rounds` times `steps` steps, on the micro-batches of the first step. Every rank calls it.

    `data.batch_size` is that of one process and micro-batch. A round begins and ends when all ranks and their devices are done
    with their work. `report` takes the progress, on the main rank. Returns images a second of all ranks in each round, and facts.
    """
    configure_torch(config.trainer)
    with build_strategy(config) as strategy:
        say = report if strategy.is_main else lambda text: None
        total = config.data.batch_size * strategy.world_size * config.trainer.micro_batches
        config = _endless(config, total, warmup + rounds * steps)
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

        say(f"{describe_job(strategy)}: {total} images a step; {warmup} steps of warm-up")
        train_step.timer.start()
        strategy.broadcast_state(state)
        repeat(warmup)
        images_per_s = []
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            repeat(steps)
            images_per_s.append(total * steps / (time.perf_counter() - started))
            say(f"round {number}: {images_per_s[-1] / strategy.world_size:.1f} img/s a process")
        peak = torch.cuda.max_memory_allocated(strategy.device) / 2**30 if strategy.device.type == "cuda" else None
        return {
            "images_per_s": images_per_s,
            "batch_size": total,
            "num_images": task.num_images,
            "is_main": strategy.is_main,
            "processes": strategy.world_size,
            "backend": strategy.backend,
            "job": describe_job(strategy),
            "peak_memory_gib": peak,
        }


def _endless(config: RunConfig, total: int, steps: int) -> RunConfig:
    """`config` for `steps` steps of `total` images in all, without validation, at a rate with which no loss diverges."""
    trainer = replace(config.trainer, max_duration=f"{steps}steps", stop_after=None, validate_every="0steps")
    return replace(
        config,
        data=replace(config.data, batch_size=total),
        optimizer=replace(config.optimizer, lr=1e-7),
        schedule=ScheduleConfig(name="constant", warmup="0steps"),
        trainer=replace(trainer, checkpoint_every="0steps"),
    )


def mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    """The mean, and 1.96 standard deviations of the population, within which 95 % of normally distributed values lie."""
    return {"mean": round(statistics.fmean(values), 3), "deviation": round(1.96 * statistics.pstdev(values), 3)}


def benchmark(config: SyntheticBenchmarkConfig) -> dict[str, Any] | None:
    """Measure the job that this process is of; its main rank prints, writes and returns the figures."""
    warmup, steps, rounds = config.num_warmup_batches, config.num_batches_per_iter, config.num_iters
    figures = measure(config, warmup=warmup, steps=steps, rounds=rounds, report=print_redacted)
    if not figures.pop("is_main"):
        return None
    processes, speeds = figures["processes"], figures["images_per_s"]
    one, all_ = mean_and_deviation([speed / processes for speed in speeds]), mean_and_deviation(speeds)
    print_redacted(f"img/s a process: {one['mean']:.1f} +-{one['deviation']:.1f}")
    print_redacted(f"img/s of {pluralize(processes, 'process')}: {all_['mean']:.1f} +-{all_['deviation']:.1f}")
    if figures["peak_memory_gib"]:
        print_redacted(f"peak memory: {figures['peak_memory_gib']:.2f} GiB")
    facts = figures | {
        "images_per_s_per_process": one,
        "images_per_s": all_,
        "rounds": [round(speed, 3) for speed in speeds],
    }
    return finish(config, "synthetic", {"images_per_s_per_process": one["mean"]}, **facts)


@entry_point("benchmark_synthetic", SyntheticBenchmarkConfig)
def main(config: SyntheticBenchmarkConfig) -> Any:
    """The figures of this job."""
    benchmark(config)


if __name__ == "__main__":
    main()
