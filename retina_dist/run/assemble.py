"""A training from its settings, top to bottom: strategy, task, plan, run folder, model, checkpoint, loggers, trainer."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import retina_dist
from retina_dist.engine.checkpoint.owner import Owner
from retina_dist.engine.checkpoint.resume import RunOpener, check_resume, checkpoint_folder, open_run, restore
from retina_dist.engine.checkpoint.store import CheckpointStore
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import describe_precision
from retina_dist.errors import ConfigError, doing
from retina_dist.files import parse_path
from retina_dist.reporting.console import Console, configure_logging, heartbeat
from retina_dist.run.build import best_metric, build_plan, build_state, build_strategy, configure_torch, task_class
from retina_dist.run.records import describe_job, versions, write_flight_records, write_start
from retina_dist.run_config import RunConfig
from retina_dist.seeding import seed_everything
from retina_dist.strategies.base import DistributedStrategy, Membership
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import why_alone
from retina_dist.task import Task
from retina_dist.text import pluralize

if TYPE_CHECKING:
    from retina_dist.run.memory import MemoryPlan
    from retina_dist.run.mlflow_run import MlflowRun
    from retina_dist.run.training import Training

logger = logging.getLogger(__name__)


class Job:
    """What the attempts of an elastic job share; any other job has one attempt.

    `exits` ends the ownership of the folders and the MLflow run after the strategy, when no rank waits for another any more.
    """

    def __init__(self, console: Console, exits: ExitStack) -> None:
        self.console, self.exits = console, exits
        self.opener = RunOpener(exits.enter_context(Owner()))
        self.mlflow: MlflowRun | None = None  # on the main rank


def train(config: RunConfig) -> dict[str, float]:
    """Train by `config` and return the metrics of the last validation. Every rank calls it."""
    return fit(config)[0]


def fit(config: RunConfig) -> tuple[dict[str, float], Path | None]:
    """As `train`; returns the run folder too, None for a dry run."""
    configure_torch(config.trainer)
    with (
        configure_logging(detect_launch().rank) as console,
        ExitStack() as exits,
        build_strategy(config) as strategy,
        heartbeat(),
    ):
        job = Job(console, exits)

        def attempt(membership: Membership) -> dict[str, float]:
            console.reset(strategy.rank)
            training = assemble(config, strategy, job, membership)
            return training.fit(membership) if training else {}

        return strategy.run_elastic(attempt), job.opener.folder


def assemble(config: RunConfig, strategy: DistributedStrategy, job: Job, membership: Membership) -> Training | None:
    """The objects of one attempt, on every rank; None for a dry run, and where the plan is already done.

    Each step raises its errors on all ranks, and nothing is written before all settings have been checked.
    """
    is_restart = job.opener.folder is not None
    logger.info(f"retina_dist {retina_dist.__version__}, torch {torch.__version__}, {describe_job(strategy)}")
    logger.info(describe_precision(strategy.device, config.trainer.precision))
    if note := why_alone(config.strategy.name, detect_launch()):
        logger.info(note)
    doing("reading the data")
    strategy.on_main(lambda: _prepare_data(config, strategy.world_size, fresh=not is_restart))
    task = strategy.run_collectively(lambda: task_class(config)(config, strategy))
    doing("estimating the memory")
    config, plan, memory = _settled(config, task, strategy)
    best = strategy.run_collectively(lambda: best_metric(config, task.validates and plan.validate_every > 0))
    described = _describe(config, task, plan, best if task.validates else None, memory)
    logger.info(described)
    if memory and memory.problem:
        raise ConfigError(memory.problem, collective=True)
    if config.dry_run:
        return None
    from retina_dist.run.mlflow_run import MlflowRun, tracking_server  # a dry run needs neither
    from retina_dist.run.training import Training

    server = strategy.on_main(lambda: tracking_server(config.logging))
    run = job.opener.open(config, strategy, task.locked_settings, membership.kept)
    if strategy.device.type == "cuda":
        write_flight_records(run.folder)
    if run.resume_step is not None:
        task_state = strategy.on_main(lambda: task.checkpoint_state(run.checkpoint or {}))
        strategy.run_collectively(lambda: task.load_checkpoint_state(task_state, run.resumed_from))

    doing("making the model")
    seed_everything(config.seed)
    data = strategy.run_collectively(task.build_data)
    model = task.build_model(run.resume_step is not None, run.checkpoint)
    state = build_state(config, model, strategy, best if task.validates else None)
    position = data.position(run.resume_step or 0)
    if strategy.on_main(lambda: restore(state, run, config, plan, images=task.fingerprint(), position=position)):
        return None

    checkpoints = CheckpointStore(
        checkpoint_folder(config, run.folder),
        keep_last=config.trainer.keep_last,
        save_top_k=config.trainer.save_top_k,
        best=state.best,
        resumed_at=run.resume_step or 0,
        owner=job.opener.owner.name,
    )
    strategy.on_main(checkpoints.claim)
    strategy.on_main(lambda: write_start(config, strategy, run.folder, described))
    if config.logging.plots and not run.resume_step:
        strategy.on_main(lambda: task.draw_inputs(data, run.folder))
    logger.info(f"writing to {run.folder}")
    if server and strategy.is_main and not job.mlflow:
        tags = {"world_size": strategy.world_size, "backend": strategy.backend, **versions()}
        job.mlflow = job.exits.enter_context(MlflowRun(server, config, run, tags, is_restart, task.fingerprint()))
    return Training(config, strategy, task, plan, data, run, state, checkpoints, job)


def _prepare_data(config: RunConfig, world_size: int, fresh: bool) -> None:
    """Let the task make its data, after every error that can be known before it."""
    best_metric(config, validates=True)
    if config.gpu:
        from retina_dist.run.memory import find_gpu

        find_gpu(config.gpu)
    if fresh and config.resume not in (None, "", "auto"):
        check_resume(parse_path(config.resume), config.trainer.checkpoint_dir)
    elif fresh and not (config.resume or config.dry_run):
        open_run(config)
    task = task_class(config)
    if (num_images := task.planned_images(config)) is not None:
        build_plan(config, num_images, world_size)
    task.prepare(config)


def _settled(config: RunConfig, task: Task, strategy: DistributedStrategy) -> tuple[RunConfig, Plan, MemoryPlan | None]:
    """The settings with `trainer.accumulate` as a number, for the task too, the plan that they give, and how it fits a GPU."""

    def with_accumulate(number: int) -> RunConfig:
        return replace(config, trainer=replace(config.trainer, accumulate=number))

    def plan_of(number: int) -> Plan:
        return build_plan(with_accumulate(number), task.num_images, strategy.world_size)

    accumulate, memory = config.trainer.micro_batches, None
    strategy.run_collectively(lambda: plan_of(accumulate))
    if config.gpu or strategy.device.type == "cuda":
        from retina_dist.run.memory import plan_memory

        memory = plan_memory(config, task, strategy, plan_of)
        accumulate = memory.accumulate
    elif config.trainer.accumulate == "auto":
        logger.info("trainer.accumulate=auto is 1 without a GPU; gpu=NAME settles it")
    task.config = with_accumulate(accumulate)
    strategy.run_collectively(task.config.check)
    return task.config, plan_of(accumulate), memory


def _describe(config: RunConfig, task: Task, plan: Plan, best: BestMetric | None, memory: MemoryPlan | None) -> str:
    lines = [f"data: {config.data.name}", task.describe(), "plan:", str(plan)]
    if best:
        patience = pluralize(best.patience or 0, "validation")
        end = f"; the run ends after {patience} without a better one" if best.patience else ""
        lines.append(f"  {'best':<9}{best}{end}")
    lines += [f"  {'memory':<9}{line}" for line in (memory.lines if memory else ())]
    return "\n".join(lines)
