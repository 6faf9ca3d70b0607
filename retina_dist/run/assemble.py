"""A training from its settings: plan, run folder, model, checkpoint and loop, in this order."""

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from retina_dist.base.console import configure_logging, heartbeat
from retina_dist.base.errors import set_status
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.registry import as_dict, class_of, lookup, target_of
from retina_dist.base.seeding import seed_everything
from retina_dist.base.settings import flattened
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import BEST, CheckpointStore, located
from retina_dist.engine.task import Metrics, Task
from retina_dist.run.build import build_state, build_strategy, configure_torch
from retina_dist.run.planning import PlannedRun, plan_run
from retina_dist.run.records import markdown_of_start, versions, write_start
from retina_dist.run.resume import (
    Run,
    RunOpener,
    checkpoint_folder,
    open_run,
    restore,
    warn_of_changed_data,
)
from retina_dist.run.training import Training
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.loggers import RunLoggers, TrackedRun

logger = logging.getLogger(__name__)


def train(config: RunConfig) -> Metrics:
    """Train by `config` and return the metrics of the last validation. Every rank calls it."""
    metrics, _ = fit(config)
    return metrics


def fit(config: RunConfig, callbacks: Sequence[Callback] = ()) -> tuple[Metrics, Path | None]:
    """As `train`; returns the run folder too, None for a dry run.

    What outlives a change of the processes of an elastic job is made here: the ownership of the
    folders and trackers such as MLflow end after the strategy, when no rank waits for another any
    more.
    """
    configure_torch(config.trainer)
    with (
        configure_logging(detect_launch().rank) as console,
        heartbeat(),
        RunOpener() as opener,
        RunLoggers() as loggers,
        build_strategy(config) as strategy,
    ):

        def train_with_these_processes() -> Metrics:
            console.reset(strategy.rank)
            planned = plan_run(config, strategy, is_restart=opener.folder is not None)
            if config.dry_run:
                _try_files(config, planned.task, strategy)
                return {}
            run = opener.open(planned.config, strategy, planned.task.locked_settings)
            training = assemble(strategy, planned, run)
            if training is None:
                return {}
            return training.fit(console, loggers, callbacks)

        return strategy.run_elastic(train_with_these_processes), opener.folder


def _try_files(config: RunConfig, task: Task, strategy: DistributedStrategy) -> None:
    """Raise UserError for a checkpoint or a file of `model.weights` that the run would refuse.
    Collective.
    """
    weights = str(located(str(vars(config.model).get("weights"))))
    if config.resume:
        strategy.on_main(partial(_try_resume, config, task))
    elif strategy.on_main(partial(os.path.isfile, weights)):
        task.build_model()


def _try_resume(config: RunConfig, task: Task) -> None:
    run = open_run(config, locked=task.locked_settings)
    if run.checkpoint:
        task.load_checkpoint_state(task.checkpoint_state(run.checkpoint), run.resumed_from)


def assemble(strategy: DistributedStrategy, planned: PlannedRun, run: Run) -> Training | None:
    """The objects of a run, its checkpoint loaded; None where its plan is already done.

    Every rank calls it. A step that fails on one rank ends all ranks.
    """
    config = planned.config
    task = planned.task
    set_status("making the model")
    if strategy.device.type == "cuda":
        from retina_dist.strategies.ddp import write_flight_records

        write_flight_records(run.folder)
    if run.resume_step is not None:
        task_state = strategy.on_main(partial(task.checkpoint_state, run.checkpoint or {}))
        load = partial(task.load_checkpoint_state, task_state, run.resumed_from)
        strategy.run_collectively(load)

    seed_everything(config.seed)
    data = strategy.run_collectively(task.build_data)
    model = task.build_model(run.resume_step is not None, run.checkpoint)
    state = build_state(config, model, strategy, planned.best)
    position = data.position(run.resume_step or 0)
    resume = partial(restore, state, run, config, planned.plan, planned.images, position)
    if strategy.on_main(resume):
        return None
    strategy.on_main(partial(warn_of_changed_data, run, task))

    checkpoints = CheckpointStore(
        checkpoint_folder(config, run.folder),
        keep_last=config.trainer.keep_last,
        save_top_k=config.trainer.save_top_k,
        best=state.best,
        resumed_at=run.resume_step or 0,
        owner=run.owner,
    )
    strategy.on_main(checkpoints.claim)
    strategy.on_main(
        partial(
            write_start,
            planned.recorded,
            strategy,
            run.folder,
            planned.description,
            run.resume_step,
        )
    )
    if config.logging.plots and not run.resume_step:
        strategy.on_main(partial(task.draw_inputs, data, run.folder))
    logger.info(f"writing to {run.folder}")
    kinds = [lookup("logger", name) for name in planned.loggers]
    if target_of(config.logging):
        kinds.append(class_of(config.logging))
    describe = partial(tracked_run, planned, run, strategy)
    return Training(
        config, strategy, task, planned.plan, data, run, state, checkpoints, kinds, describe
    )


def tracked_run(planned: PlannedRun, run: Run, strategy: DistributedStrategy) -> TrackedRun:
    """What trackers are told of the run."""
    config = planned.config
    checkpoints = checkpoint_folder(config, run.folder.resolve())
    return TrackedRun(
        folder=run.folder.resolve(),
        checkpoints=checkpoints,
        best=checkpoints / BEST,
        params=flattened(redacted_tree(as_dict(config))),
        data_name=config.data.name,
        data_source=str(config.data.root or config.data.name),
        digest=planned.images,
        note=markdown_of_start(run.folder),
        tags={"world_size": strategy.world_size, "backend": strategy.backend, **versions()},
        resumes=run.is_restart or bool(run.resume_step),
    )
