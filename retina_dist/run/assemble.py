"""A training from its settings, top to bottom: strategy, task, plan, run folder, model, checkpoint, loggers, trainer."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import retina_dist
from retina_dist.base.errors import (
    ConfigError,
    Preempted,
    UserError,
    describe_error,
    is_collective,
    set_status,
)
from retina_dist.base.files import parse_path, write_json
from retina_dist.base.registry import class_of, is_custom
from retina_dist.base.seeding import seed_everything
from retina_dist.base.text import pluralize
from retina_dist.config.run_config import RunConfig, changed_settings, task_class
from retina_dist.engine.checkpoint.folder_owner import Owner
from retina_dist.engine.checkpoint.store import BEST, CheckpointStore
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.nonfinite import Divergence, NonFiniteGuard
from retina_dist.engine.phase_timer import format_timings, summary
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import describe_precision, warn_of_emulation
from retina_dist.engine.preemption import PreemptionWatch
from retina_dist.engine.replicas import check_same
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import Task, TaskData, TrainBatch
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.run.build import (
    agreed_precision,
    best_metric,
    build_plan,
    build_state,
    build_strategy,
    build_train_step,
    configure_torch,
    monitor_of,
)
from retina_dist.run.records import LOSS, RESULT, describe_job, versions, write_start
from retina_dist.run.resume import (
    Run,
    RunOpener,
    check_resume,
    checkpoint_folder,
    open_run,
    restore,
)
from retina_dist.strategies.base import DistributedStrategy, Membership
from retina_dist.strategies.devices import find_gpu
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import why_alone
from retina_dist.tracking.console import Console, configure_logging, heartbeat, print_redacted
from retina_dist.tracking.loggers import (
    CsvLogger,
    LoggerCollection,
    MetricLogger,
    TensorBoardLogger,
)
from retina_dist.tracking.progress import Progress

if TYPE_CHECKING:
    from retina_dist.run.memory import MemoryPlan
    from retina_dist.run.mlflow_run import MlflowRun

logger = logging.getLogger(__name__)


class Job:
    """The state that the attempts of an elastic job share; any other job has one attempt.

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


def assemble(
    config: RunConfig, strategy: DistributedStrategy, job: Job, membership: Membership
) -> Training | None:
    """The objects of one attempt, on every rank; None for a dry run, and where the plan is already done.

    Each step raises its errors on all ranks, and nothing is written before all settings have been checked.
    """
    is_restart = job.opener.folder is not None
    logger.info(
        f"retina_dist {retina_dist.__version__}, torch {torch.__version__}, {describe_job(strategy)}"
    )
    requested = config.trainer.precision
    precision = agreed_precision(config, strategy)
    if warning := warn_of_emulation(strategy.device, precision):
        logger.warning(f"trainer.{warning}", extra={"rank_zero_only": True})
    if note := why_alone(config.strategy.name, detect_launch()):
        logger.info(note)
    set_status("reading the data")
    strategy.on_main(lambda: _prepare_data(config, strategy.world_size, fresh=not is_restart))
    task = strategy.run_collectively(lambda: task_class(config)(config, strategy))
    set_status("estimating the memory")
    config, plan, memory = _settled(config, task, strategy, precision)
    images = strategy.run_collectively(task.fingerprint)
    own = {
        f"the {name} of the plan": value for name, value in vars(plan).items() if name != "schedule"
    }
    check_same(own | {"seed": config.seed, "the digest of the training set": images}, strategy)
    best = strategy.run_collectively(
        lambda: best_metric(config, task.validates and plan.validate_every > 0)
    )
    described = "\n".join(
        (
            describe_precision(strategy.device, precision, requested),
            _describe(config, task, plan, best if task.validates else None, memory),
        )
    )
    logger.info(described)
    if memory and memory.problem:
        raise ConfigError(memory.problem, collective=True)
    if config.dry_run:
        return None
    from retina_dist.run.mlflow_run import MlflowRun, tracking_server

    server = strategy.on_main(lambda: tracking_server(config.logging))
    run = job.opener.open(config, strategy, task.locked_settings, membership.kept)
    if strategy.device.type == "cuda":
        from retina_dist.strategies.ddp import write_flight_records

        write_flight_records(run.folder)
    if run.resume_step is not None:
        task_state = strategy.on_main(lambda: task.checkpoint_state(run.checkpoint or {}))
        strategy.run_collectively(lambda: task.load_checkpoint_state(task_state, run.resumed_from))

    set_status("making the model")
    seed_everything(config.seed)
    data = strategy.run_collectively(task.build_data)
    model = task.build_model(run.resume_step is not None, run.checkpoint)
    state = build_state(config, model, strategy, best if task.validates else None)
    position = data.position(run.resume_step or 0)
    if strategy.on_main(
        lambda: restore(state, run, config, plan, images=images, position=position)
    ):
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
    # a resume on other hardware chooses again
    written = replace(config, trainer=replace(config.trainer, precision=requested))
    strategy.on_main(lambda: write_start(written, strategy, run.folder, described, run.resume_step))
    if config.logging.plots and not run.resume_step:
        strategy.on_main(lambda: task.draw_inputs(data, run.folder))
    logger.info(f"writing to {run.folder}")
    if server and strategy.is_main and not job.mlflow:
        tags = {"world_size": strategy.world_size, "backend": strategy.backend, **versions()}
        job.mlflow = job.exits.enter_context(
            MlflowRun(server, config, run, tags, is_restart, images)
        )
    return Training(config, strategy, task, plan, data, run, state, checkpoints, job)


def _prepare_data(config: RunConfig, world_size: int, fresh: bool) -> None:
    """Let the task make its data, after every error that can be known before it."""
    best_metric(config, validates=True)
    if config.gpu:
        find_gpu(config.gpu)
    if fresh and config.resume not in (None, "", "auto"):
        check_resume(parse_path(config.resume), config.trainer.checkpoint_dir)
    elif fresh and not (config.resume or config.dry_run):
        open_run(config)
    task = task_class(config)
    if (num_images := task.planned_images(config)) is not None:
        build_plan(config, num_images, world_size)
    task.prepare(config)


def _settled(
    config: RunConfig, task: Task, strategy: DistributedStrategy, precision: str
) -> tuple[RunConfig, Plan, MemoryPlan | None]:
    """The settings with `trainer.accumulate` as a number and `precision`, for the task too, the
    plan that they give, and how it fits a GPU."""

    def with_accumulate(number: int) -> RunConfig:
        trainer = replace(config.trainer, accumulate=number, precision=precision)
        return replace(config, trainer=trainer)

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


def _describe(
    config: RunConfig, task: Task, plan: Plan, best: BestMetric | None, memory: MemoryPlan | None
) -> str:
    lines = [f"data: {config.data.name}", task.describe(), "plan:", str(plan)]
    if best:
        end = f"; the run ends after {pluralize(best.patience or 0, 'validation')} without a better one"
        lines.append(f"  {'best':<9}{best}{end if best.patience else ''}")
    lines += [f"  {'memory':<9}{line}" for line in (memory.lines if memory else ())]
    return "\n".join(lines)


@dataclass
class Training:
    """A run, its state restored; `fit` trains it on every rank, and its main rank writes the result."""

    config: RunConfig
    strategy: DistributedStrategy
    task: Task
    plan: Plan
    data: TaskData
    run: Run
    state: TrainState
    checkpoints: CheckpointStore
    job: Job

    def __post_init__(self) -> None:
        self.metric_logger = self._loggers()
        self.watch = PreemptionWatch()
        self.trainer = self._trainer()

    def _loggers(self) -> MetricLogger:
        """Progress, metrics.csv, MLflow, TensorBoard and an outside logger, on the main rank."""
        if not self.strategy.is_main:
            return LoggerCollection()
        settings, folder, step = self.config.logging, self.run.folder, self.run.resume_step
        stop, per_epoch, headline = (
            self.plan.stop_step,
            self.plan.steps_per_epoch,
            self.task.headline_metrics,
        )
        progress = Progress(
            stop, step or 0, lambda: self.state.step, steps_per_epoch=per_epoch, headline=headline
        )
        self.job.console.write, self.job.console.beat = progress.write, progress.beat
        loggers: list[MetricLogger] = [progress, CsvLogger(folder / "metrics.csv", step)]
        if self.job.mlflow:
            loggers.append(self.job.mlflow)
        if settings.tensorboard:
            loggers.append(TensorBoardLogger(folder / "tensorboard", step))
        if is_custom(settings):
            loggers.append(class_of(settings)(settings, folder, step))
        return LoggerCollection(*loggers)

    def _trainer(self) -> TrainLoop:
        config, strategy, task, state = self.config.trainer, self.strategy, self.task, self.state
        facts = {
            "versions": versions(),
            "world_size": strategy.world_size,
            "backend": strategy.backend,
        }
        guard = NonFiniteGuard(
            state,
            self.plan,
            strategy,
            limit=config.max_nonfinite_steps,
            folder=self.run.folder,
            inspect=task.inspect,
        )
        evaluator = task.build_evaluator(self.data)
        best = getattr(evaluator, "best", None)
        if isinstance(best, BestMetric):
            best.load_state_dict(
                state.best.state_dict()
            )  # a worse validation after a resume is not the best one
        return TrainLoop(
            build_train_step(self.config, state, self.plan, strategy, guard),
            self.data,
            self.metric_logger,
            validate=evaluator,
            store=self.checkpoints,
            metadata=task.metadata(state.model) | facts,
            checkpoint_minutes=config.checkpoint_minutes,
            stop_reason=lambda: self.watch.reason,
            resume_with=f"resume=auto output_dir={self.run.folder}",
        )

    def fit(self, membership: Membership) -> dict[str, float]:
        """Train to the end of the plan and return the metrics of the last validation; result.json says how it ended."""
        started = time.perf_counter()
        plain = self.trainer.train_step
        profiling: AbstractContextManager[Callable[..., dict[str, Tensor]]] = nullcontext(plain)
        if self.plan.profile_steps:
            from retina_dist.engine.profile import profiled

            profiling = profiled(
                plain, self.plan, self.state.step, self.run.folder / "profile", self.strategy
            )

        def step(micro_batches: Sequence[TrainBatch]) -> dict[str, Tensor]:
            membership.commit(self.trainer.checkpoint)
            return take_step(micro_batches)

        self.trainer.train_step = step
        try:
            with self.watch, profiling as take_step:
                metrics = self.trainer.fit()
            if not math.isfinite(metrics.get("val/loss", 0.0)):
                raise Divergence(
                    f"val/loss={metrics['val/loss']} after step {self.state.step}; lower optimizer.lr or set trainer.gradient_clip."
                )
        except Exception as error:
            self._write_failure(error, time.perf_counter() - started)
            raise
        finally:
            self.metric_logger.close()
        set_status("writing the results")
        times = summary(self.trainer.timer, self.strategy)
        if self.strategy.is_main:
            write_json(self.run.folder / "timings.json", times)
            self._write_result(time.perf_counter() - started, metrics=metrics)
            self._write_report(metrics)
            self._log_results(times)
        return metrics

    def _write_failure(self, error: Exception, seconds: float) -> None:
        try:
            if self.strategy.is_main:
                self._write_result(seconds, error=error)
        except (OSError, UserError) as other:  # a full disk, say; what ended the run is what counts
            print_redacted(f"warning: {other}", sys.stderr)
        together = is_collective(error)
        if (
            self.strategy.is_main
            and (together or self.strategy.world_size == 1)
            and not isinstance(error, Preempted)
        ):
            self._write_report()  # the others wait below; a preempted process has no time for it
        if together:
            if self.job.mlflow:
                self.job.mlflow.end_with(error, within_s=self.config.strategy.timeout_s / 2)
            self.strategy.run_collectively(
                lambda: None
            )  # launchers end the others as soon as one has gone

    def _write_result(
        self, seconds: float, error: Exception | None = None, metrics: Mapping[str, float] = {}
    ) -> None:
        """Write result.json, with null for NaN and infinity."""
        train, best = self.trainer.train_logger, self.state.best
        speeds = train.speeds[1:] or train.speeds  # the first has the start in it
        content = {
            "status": "ok"
            if error is None
            else "preempted"
            if isinstance(error, Preempted)
            else "failed",
            "error": error and describe_error(error),
            "step": self.state.step,
            "planned_steps": self.plan.total_steps,
            "monitor": monitor_of(self.config),
            "monitor_mode": best.mode,
            "best": best.value,
            "seconds": seconds,
            "world_size": self.strategy.world_size,
            "backend": self.strategy.backend,
            "metrics": {
                name: value if math.isfinite(value) else None for name, value in metrics.items()
            },
            LOSS: train.last_loss if math.isfinite(train.last_loss) else None,
            "images_per_s": fmean(speeds) if speeds else None,
        }
        write_json(self.run.folder / RESULT, content)

    def _write_report(self, metrics: dict[str, float] | None = None) -> None:
        """The report and images for TensorBoard; without `metrics`, of a run that failed, a report of the files that it has."""
        folder, step, settings = self.run.folder, self.state.step, self.config.logging
        try:
            if settings.plots:
                from retina_dist.reporting.page import page_if_possible
                from retina_dist.reporting.run_report import write_report

                if metrics is not None:
                    self.task.draw_results(self.state.evaluated_model, self.data, folder)
                logger.info(page_if_possible(lambda: write_report(folder), folder))
            if settings.tensorboard and metrics is not None:
                changed = {key: value for key, value, _ in changed_settings(self.config)}
                finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
                images = sorted([*folder.glob("*.jpg"), *folder.glob("images/*.jpg")])
                tensorboard = TensorBoardLogger(folder / "tensorboard", step)
                tensorboard.log_results(changed, finite, images, step)
                tensorboard.close()
        # Anything may fail in drawing, a plugin's code included; the weights and result.json are written.
        except Exception as error:
            logger.warning(
                f"no report: {describe_error(error)}; python -m retina_dist.report run={folder} tries again"
            )

    def _log_results(self, timings: dict[str, Any]) -> None:
        folder, state, trainer = self.run.folder, self.state, self.config.trainer
        for line in self.task.describe_results(folder):
            logger.info(line)
        logger.info(format_timings(timings))
        if state.best.value is not None:
            best = (
                f": {checkpoint_folder(self.config, folder) / BEST}" if trainer.save_top_k else ""
            )
            logger.info(f"best {state.best.name} {state.best.value:.3f}{best}")
        if state.step == self.plan.stop_step < self.plan.total_steps:
            again = f"to continue, repeat the command without it and with resume=auto output_dir={folder}"
            logger.info(
                f"trainer.stop_after ended the run at step {state.step} of {self.plan.total_steps}; {again}"
            )
