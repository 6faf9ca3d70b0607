"""Training steps of one job without reading, validation and checkpoints: images a second, a round at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.plan import Plan
from retina_dist.errors import UserError
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.run.build import build_plan, build_state, build_strategy, build_task, build_train_step
from retina_dist.run.environment import configure_torch, describe_job
from retina_dist.run.memory_estimate import NotEstimated, StepMemory
from retina_dist.seeding import seed_everything
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task import Task


class Throughput(NamedTuple):
    """What a rank of the job has found; all but `rank` and the memory is equal on all of them."""

    images_per_s: list[float]  # of all ranks together, in each round
    batch_size: int  # images of a step, of all ranks together
    num_images: int  # of an epoch
    rank: int
    world_size: int
    backend: str  # who communicates, in words
    job: str  # beside that the device and the number of processes
    predicted_bytes: int | None = None  # of the main rank's peak, before the first step; None if not known
    peak_bytes: int | None = None  # of CUDA's allocator; None on a CPU


def measure(
    config: RunConfig,
    *,
    warmup: int,
    steps: int,
    rounds: int = 1,
    predict: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Throughput:
    """Train `warmup` steps, then `rounds` times `steps` steps, on the micro-batches of the first step. Every rank calls it.

    `data.batch_size` is that of one process and micro-batch. A round begins and ends when all ranks and their devices are done
    with what came before. The learning rate is so small that nothing diverges; it does not affect the time. `report` takes the
    progress, on the main rank; `predict` also estimates the peak memory of the step, on the main rank.
    """
    configure_torch(config.trainer)
    with build_strategy(config) as strategy:
        say = report if strategy.is_main else lambda text: None
        total = config.data.batch_size * strategy.world_size * config.trainer.micro_batches
        config = _endless(config, total, warmup + rounds * steps)
        seed_everything(config.seed)
        task = strategy.run_collectively(lambda: build_task(config, strategy))
        plan = build_plan(config, task.num_images, strategy.world_size)
        data = strategy.run_collectively(task.build_data)
        batches = [batch.to(strategy.device) for batch in next(iter(data.train_steps(0, 1)))]
        state = build_state(config, task.build_model(), strategy, num_shapes=data.num_train_shapes)
        train_step = build_train_step(config, state, plan, strategy)
        predicted = _predicted(config, task, strategy, plan, say) if predict and strategy.is_main else None

        def repeat(count: int) -> None:
            for _ in range(count):
                train_step(batches)
                state.step += 1
            if strategy.device.type == "cuda":
                torch.cuda.synchronize(strategy.device)
            strategy.barrier()

        say(f"{describe_job(strategy)}: {total} images a step; {warmup} steps of warm-up")
        train_step.timer.start()
        strategy.run(lambda: repeat(warmup), state)
        images_per_s = []
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            repeat(steps)
            images_per_s.append(total * steps / (time.perf_counter() - started))
            say(f"round {number}: {images_per_s[-1] / strategy.world_size:.1f} img/s a process")
        return Throughput(
            images_per_s,
            total,
            task.num_images,
            strategy.rank,
            strategy.world_size,
            strategy.backend,
            describe_job(strategy),
            predicted,
            torch.cuda.max_memory_allocated(strategy.device) if strategy.device.type == "cuda" else None,
        )


def _endless(config: RunConfig, total: int, steps: int) -> RunConfig:
    """`config` for `steps` steps of `total` images in all, without validation and checkpoints, at a rate that changes nothing."""
    return replace(
        config,
        data=replace(config.data, batch_size=total),
        optimizer=replace(config.optimizer, lr=1e-7),
        schedule=ScheduleConfig(name="constant", warmup="0steps"),
        trainer=replace(
            config.trainer,
            max_duration=f"{steps}steps",
            stop_after=None,
            validate_every="0steps",
            checkpoint_every="0steps",
        ),
    )


def _predicted(
    config: RunConfig, task: Task, strategy: DistributedStrategy, plan: Plan, say: Callable[[str], None]
) -> int | None:
    """Bytes of the peak of a step whose batches are there already; None, and a line, where it cannot be estimated."""
    images = config.data.batch_size // (strategy.world_size * config.trainer.micro_batches)
    try:
        return StepMemory(config, task, strategy.device, prefetched=1)(plan, images).peak
    except (NotEstimated, UserError) as error:  # of this rank only, so not to be raised
        say(f"peak memory: not estimated: {error}")
        return None
