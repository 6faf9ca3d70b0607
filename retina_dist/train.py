"""Train a detector.

    python -m retina_dist.train                                  the drawn shapes, the small model
    python -m retina_dist.train data=coco data.root=/data/coco   your own data
    python -m retina_dist.train experiment=torchvision_v1 data.root=/data/coco

    torchrun --nproc-per-node 8 -m retina_dist.train …           8 GPUs, torch DDP
    horovodrun -np 8 python -m retina_dist.train …               8 GPUs, Horovod (mpirun -np 8 python … too)
    python -m retina_dist.train -m optimizer.lr=1e-3,1e-2 …      a sweep

Layer 4: turns settings into objects and starts the loop.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision

import retina_dist
from retina_dist.config.compose import entry_point
from retina_dist.config.schema import TrainConfig
from retina_dist.detection.data.module import CocoDataModule
from retina_dist.detection.task import DetectionTask, draw_data
from retina_dist.engine.best import BestMetric, check_metric
from retina_dist.engine.checkpoints import CheckpointStore
from retina_dist.engine.compiled import compile_model
from retina_dist.engine.folder_lock import FolderLocks
from retina_dist.engine.nonfinite import Divergence
from retina_dist.engine.phase_timer import in_words, summary
from retina_dist.engine.plan import Plan, resolve_plan
from retina_dist.engine.precision import describe_precision
from retina_dist.engine.preemption import PreemptionWatch
from retina_dist.engine.state import TrainState, best_of
from retina_dist.engine.trainer import Trainer
from retina_dist.errors import CheckpointError, ConfigError, UserError, is_collective
from retina_dist.files import place, write_atomically
from retina_dist.model.ema import ExponentialMovingAverage
from retina_dist.model.sync_batch_norm import connect
from retina_dist.optim.optimizer import build_optimizer, parameter_groups
from retina_dist.reporting.console import Console, configure_logging, tell
from retina_dist.reporting.loggers import CsvLogger, LoggerCollection, MetricLogger, RankLog, TensorBoardLogger
from retina_dist.reporting.mlflow_run import TrackedRun, status_of
from retina_dist.reporting.progress import Progress
from retina_dist.run.folder import Run, changed_settings, checkpoint_folder, lock_run, open_run, write_config
from retina_dist.run.mlflow import tracked_run, tracking_server
from retina_dist.run.sweep import run_sweep, write_result
from retina_dist.seeding import seed_everything
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.compression import DEFAULT_FP16_SCALE
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.nccl import apply_nccl, describe_nccl
from retina_dist.strategies.select import make_strategy, why_alone
from retina_dist.words import pluralize

logger = logging.getLogger("retina_dist.train")  # not __name__, which is "__main__" under `python -m`

MOST_CLASSES = 20  # whose AP is shown at the end


def train(config: TrainConfig) -> dict[str, float]:
    """Train by `config` and return the metrics of the last validation. Every rank calls it."""
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    torch.use_deterministic_algorithms(config.trainer.deterministic)
    # MLflow learns how the training ended when the other ranks wait for nothing any more.
    with ExitStack() as at_end, build_strategy(config) as strategy:
        before = Before([], [], {}, at_end.enter_context(FolderLocks()))

        def attempt(kept: dict[str, Any] | None) -> dict[str, float]:
            with configure_logging(strategy.rank) as console:
                return _train(config, strategy, kept, before, at_end, console)

        return strategy.run_elastic(attempt)


class Before(NamedTuple):
    """What a further attempt of an elastic job finds of the first: where that wrote and its MLflow run; nothing at first.

    `locks` are those of this process, `owners` says which of the main process hold the folders.
    """

    folders: list[Path]
    tracked: list[TrackedRun]
    owners: dict[str, str]
    locks: FolderLocks


def build_strategy(config: TrainConfig) -> DistributedStrategy:
    """The strategy of the settings and the launcher, not entered yet."""
    arguments = asdict(config.strategy)
    if arguments["fp16_scale"] is None:
        scaled_already = config.trainer.precision == "fp16"
        arguments["fp16_scale"] = 1.0 if scaled_already else DEFAULT_FP16_SCALE
    apply_nccl(asdict(config.nccl))
    return make_strategy(**arguments, deterministic=config.trainer.deterministic)


def _train(
    config: TrainConfig,
    strategy: DistributedStrategy,
    kept: dict[str, Any] | None,
    before: Before,
    at_end: ExitStack,
    console: Console,
) -> dict[str, float]:
    folders = before.folders
    say, warn = logger.info, logger.warning
    say(f"retina_dist {retina_dist.__version__}, torch {torch.__version__}, {describe_job(strategy)}")
    say(describe_precision(strategy.device, config.trainer.precision))  # type: ignore[arg-type]
    for note in (describe_nccl(asdict(config.nccl)), why_alone(config.strategy.name, detect_launch())):
        if note:
            say(note)
    participants = strategy.world_size // strategy.ranks_averaged
    strategy.on_main(lambda: _draw_once_checked(config, strategy.world_size, participants, fresh=not folders))
    task = strategy.run_collectively(lambda: DetectionTask(config, strategy, say, warn))
    plan = strategy.run_collectively(lambda: build_plan(config, task.num_images, strategy.world_size, participants))
    say(f"data: {config.data.name}\n{task.describe()}\nplan:\n{plan}")
    validates = task.val is not None
    best = strategy.run_collectively(lambda: best_metric(config, validates and plan.validate_every > 0))
    if validates:
        until = (
            f"; the run ends after {pluralize(best.patience, 'validation')} without a better one"
            if best.patience
            else ""
        )
        say(f"  {'best':<9}{best}{until}")
    if config.dry_run:
        return {}
    server = strategy.on_main(lambda: tracking_server(config.logging, say))
    again = bool(folders)
    before.locks.report = say
    run = _open_run(config, strategy, say, kept, before)
    if run.resume_step is not None:
        strategy.run_collectively(lambda: task.take_labels(run.categories, run.resumed_from))

    seed_everything(config.seed)
    data = strategy.run_collectively(task.build_data)
    model = task.build_model(run.resume_step is not None, run.checkpoint)
    judge = best if validates else None
    num_shapes = data.num_train_shapes if config.trainer.compile else 0
    if num_shapes:
        say(f"trainer.compile: a graph for each shape of a batch, of which there can be {num_shapes}")
    state = build_state(config, model, strategy, judge, num_shapes=num_shapes, warn=warn)
    if strategy.on_main(lambda: _restore_checked(state, run, task, data, plan, say)):
        say(f"nothing to do up to step {plan.stop_step}; raise trainer.max_duration or trainer.stop_after to train on.")
        return {}
    checkpoints = CheckpointStore(
        checkpoint_folder(config, run.folder),
        keep_last=config.trainer.keep_last,
        save_top_k=config.trainer.save_top_k,
        best=state.best,
        resumed_at=run.resume_step or 0,
        check=before.locks.check,
    )
    strategy.on_main(checkpoints.check_writable)
    strategy.on_main(lambda: _begin(config, run, task, data))
    say(f"writing to {run.folder}")

    facts = {"world_size": strategy.world_size, "backend": strategy.backend}
    if strategy.is_main and not before.tracked:
        tracked = tracked_run(server, config, run, {**facts, **versions()}, say, go_on=again)
        before.tracked.append(at_end.enter_context(tracked))
    metric_logger = _build_loggers(config, plan, run, strategy, console, before.tracked)
    watch = PreemptionWatch(config.trainer.scheduled_events, report=warn)
    trainer = Trainer(
        state=state,
        plan=plan,
        data=data,
        strategy=strategy,
        logger=metric_logger,
        evaluate=task.build_evaluator(data),
        checkpoints=checkpoints,
        checkpoint_minutes=config.trainer.checkpoint_minutes,
        metadata=task.metadata(state.model) | {"versions": versions(), **facts},
        precision=config.trainer.precision,  # type: ignore[arg-type]
        gradient_clip=config.trainer.gradient_clip,
        gradient_clip_algorithm=config.trainer.gradient_clip_algorithm,  # type: ignore[arg-type]
        stop_reason=lambda: watch.reason,
        max_nonfinite_steps=config.trainer.max_nonfinite_steps,
        cuda_graphs=uses_graphs(config, strategy, say),
        events=run.folder,
        inspect=task.inspect,
        report=say,
        warn=warn,
    )
    started = time.perf_counter()
    try:
        with watch:
            metrics = trainer.fit()
        if not math.isfinite(metrics.get("val/loss", 0.0)):
            raise Divergence(
                f"val/loss={metrics['val/loss']} after step {state.step}: the weights are ruined; lower optimizer.lr, lengthen "
                "schedule.warmup or set trainer.gradient_clip."
            )
    except Exception as error:
        try:
            logger.debug(f"stopped: {type(error).__name__}: {error}")
            if strategy.is_main:
                _write_result(config, run, state, time.perf_counter() - started, facts, error=error)
        except (OSError, UserError) as other:  # a full disk, say; what ended the run is what counts
            tell(f"warning: {other}", sys.stderr)
        if is_collective(error):
            for tracked in before.tracked:
                tracked.end(status_of(error), within_s=config.strategy.timeout_s / 2)
            strategy.barrier()  # launchers end the others as soon as one has gone
        raise
    finally:
        metric_logger.close()
    times = summary(trainer.ledger, strategy)
    if strategy.is_main:
        text = json.dumps(times, indent=1) + "\n"
        write_atomically(run.folder / "ledger.json", lambda temporary: temporary.write_text(text))
        say(in_words(times))
        _write_result(config, run, state, time.perf_counter() - started, facts, metrics=metrics)
        _finish(config, run, task, state, data, say)
        if state.step == plan.stop_step < plan.total_steps:
            say(
                f"stopped after step {state.step} of {plan.total_steps}, as trainer.stop_after={config.trainer.stop_after} asks; "
                f"to go on, give the same command with resume=auto output_dir={run.folder} and without trainer.stop_after."
            )
    return metrics


def _open_run(
    config: TrainConfig,
    strategy: DistributedStrategy,
    say: Callable[[str], None],
    kept: dict[str, Any] | None,
    before: Before,
) -> Run:
    """The run folder that the main rank settles on and locks, with the checkpoint to go on from on that rank only."""
    opened: list[Run] = []
    folders, owners, locks = before.folders, before.owners, before.locks

    def open_it() -> tuple[str, int | None, str, dict[str, Any], dict[str, str]]:
        if folders:
            lock_run(locks, config, folders[0], owners)
        if folders and kept:
            opened.append(Run(folders[0], kept["step"], Path("memory"), kept))
        elif folders:
            here = replace(config, output_dir=str(folders[0]))
            again = open_run(replace(here, resume="auto"), say, locks)
            asked_for = config.resume not in (None, "auto")  # nothing was saved since, so that is where it goes on
            opened.append(open_run(here, say, locks) if again.resume_step is None and asked_for else again)
        else:
            opened.append(open_run(config, say, locks))
        run = opened[0]
        categories = (run.checkpoint or {}).get("categories", {})
        return str(run.folder), run.resume_step, str(run.resumed_from), categories, locks.owners

    folder, resume_step, source, categories, now = strategy.on_main(open_it)
    folders[:] = [Path(folder)]
    owners.update(now)
    if opened:
        return replace(opened[0], categories=categories)
    return Run(Path(folder), resume_step, place(source), categories=categories)


def _draw_once_checked(config: TrainConfig, world_size: int, participants: int, fresh: bool) -> None:
    """Draw the data set of shapes; what would stop the run after that, and can be known before, is raised before."""
    best_metric(config, validates=True)
    if fresh and not (config.resume or config.dry_run):
        open_run(config, report=lambda text: None)
    all_of_them = config.data.keep_empty_images and not config.trainer.overfit_batches
    if config.data.shapes and all_of_them:
        build_plan(config, config.data.shapes.num_train, world_size, participants)
    draw_data(config.data)


def best_metric(config: TrainConfig, validates: bool) -> BestMetric:
    """The metric that decides which checkpoint is best. Raises ConfigError when the validation does not give it."""
    trainer = config.trainer
    check_metric(trainer.monitor, DetectionTask.metric_names)
    if trainer.patience and not validates:
        raise ConfigError(
            f"trainer.patience={trainer.patience} counts validations, but the run has none; give it validation data and "
            "trainer.validate_every=1epoch, or trainer.patience=null."
        )
    return BestMetric(trainer.monitor, trainer.monitor_mode, trainer.patience)  # type: ignore[arg-type]


def build_plan(config: TrainConfig, num_images: int, world_size: int, participants: int = 1) -> Plan:
    """The plan that the settings give; `fast_dev_run` shortens it to two steps."""
    trainer, schedule, optimizer = config.trainer, config.schedule, config.optimizer
    if trainer.fast_dev_run:
        trainer = replace(trainer, max_duration="2steps", validate_every="2steps", stop_after=None)
        schedule = replace(schedule, name="constant", warmup="0steps")
    return resolve_plan(
        num_images=num_images,
        batch_size=config.data.batch_size,
        world_size=world_size,
        accumulate=trainer.accumulate,
        max_duration=trainer.max_duration,
        stop_after=trainer.stop_after,
        validate_every=trainer.validate_every,
        checkpoint_every=trainer.checkpoint_every,
        log_every=trainer.log_every,
        lr=optimizer.lr,
        lr_rule=optimizer.lr_rule,  # type: ignore[arg-type]
        lr_reference_batch=optimizer.lr_reference_batch,
        participants=participants,
        check_every=trainer.check_replicas_every,
        schedule=schedule.name,  # type: ignore[arg-type]
        warmup=schedule.warmup,
        warmup_factor=schedule.warmup_factor,
        milestones=schedule.milestones,
        gamma=schedule.gamma,
        final_factor=schedule.final_factor,
    )


def build_state(
    config: TrainConfig,
    model: torch.nn.Module,
    strategy: DistributedStrategy,
    best: BestMetric | None = None,
    *,
    num_shapes: int = 1,
    warn: Callable[[str], None] = print,
) -> TrainState:
    """Model, optimizer, scaler and average on the strategy's device. `num_shapes` of batches are compiled for, if any."""
    settings, trainer = config.optimizer, config.trainer
    layout = torch.channels_last if trainer.channels_last else torch.contiguous_format
    device = strategy.device
    model = model.to(device).to(memory_format=layout)  # type: ignore[call-overload]
    groups = parameter_groups(
        model,
        weight_decay=settings.weight_decay,
        norm_weight_decay=settings.norm_weight_decay,
        bias_weight_decay=settings.bias_weight_decay,
        backbone_lr_scale=settings.backbone_lr_scale,
    )
    optimizer = build_optimizer(
        groups,
        name=settings.name,  # type: ignore[arg-type]
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        betas=settings.betas,
        eps=settings.eps,
    )
    scaler = torch.amp.GradScaler(device.type, enabled=trainer.precision == "fp16")
    ema = ExponentialMovingAverage(model, trainer.ema_decay) if trainer.ema_decay else None
    if trainer.compile:
        compile_model(model, num_shapes, warn)
    connect(model, lambda x: strategy.all_reduce(x, "sum"))  # with one process too, so that the numbers are the same
    return TrainState(model, optimizer, scaler, ema, best)


def uses_graphs(config: TrainConfig, strategy: DistributedStrategy, say: Callable[[str], None]) -> bool:
    """Whether to capture CUDA graphs; when asked for in vain, says why not."""
    if not config.trainer.cuda_graphs:
        return False
    reasons = {
        f"the device is {strategy.device.type}": strategy.device.type != "cuda",
        "model.norm=sync_bn talks to other ranks within the pass": config.model.norm == "sync_bn"
        and strategy.world_size > 1,
        "model.loss_impl=torchvision waits for the device": config.model.loss_impl == "torchvision",
        "strategy.compression=fp16 sends gradients during the pass": config.strategy.compression == "fp16",
    }
    for reason in (text for text, holds in reasons.items() if holds):
        say(f"trainer.cuda_graphs=true is without effect, because {reason}")
        return False
    return True


def describe_job(strategy: DistributedStrategy) -> str:
    """ "8 processes, Horovod over NCCL, NVIDIA H100", or "one process, cpu, 2 threads"."""
    device = strategy.device
    what = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    )
    return f"{strategy.backend}, {what}" + (f", {strategy.world_size} processes" if strategy.world_size > 1 else "")


def versions() -> dict[str, str]:
    """What the numbers of a run depend on beside its settings."""
    return {
        "retina_dist": retina_dist.__version__,
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _restore_checked(
    state: TrainState, run: Run, task: DetectionTask, data: CocoDataModule, plan: Plan, say: Callable[[str], None]
) -> bool:
    """`_restore`; a checkpoint that lacks something, or has it in another form, is a CheckpointError."""
    try:
        return _restore(state, run, task, data, plan, say)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0][:160]}"
        raise CheckpointError(
            f"{run.resumed_from} does not hold what a run of these settings needs ({reason}); resume from another checkpoint."
        ) from error


def _restore(
    state: TrainState,
    run: Run,
    task: DetectionTask,
    data: CocoDataModule,
    plan: Plan,
    say: Callable[[str], None],
) -> bool:
    """Put back the run's checkpoint, if it has one; whether there is nothing left to do."""
    if run.checkpoint is None:
        return False
    place = run.checkpoint["sampler"]
    same_place = data.position(run.checkpoint["step"]) == (place["epoch"], place["cursor"])
    if run.checkpoint.get("images") != task.fingerprint() or not same_place:
        raise CheckpointError(
            f"{run.resumed_from} was trained on other images than the {task.num_images} of data={task.config.data.name}; "
            f"resume with the same data, or start a new run with model.weights={run.resumed_from}."
        )
    state.load_state_dict(run.checkpoint)
    before, now = best_of(run.checkpoint), state.best
    if before["value"] is not None and not now.same_metric(before):
        say(
            f"warning: best was the {BestMetric(before['name'], before['mode'])} up to here and is the {now} from now on: it "
            f"starts anew, and best.pt with it; to keep it, resume with trainer.monitor={before['name']} "
            f"trainer.monitor_mode={before['mode']}."
        )
    for change in changed_settings(run.checkpoint["config"], asdict(task.config)):
        say(f"changed since the checkpoint: {change}")
    say(f"going on from {run.resumed_from}, step {state.step}")
    unjudged = plan.validates_at(state.step) and state.validated < state.step
    return state.step >= plan.stop_step and not unjudged


def _begin(config: TrainConfig, run: Run, task: DetectionTask, data: CocoDataModule) -> None:
    write_config(config, run.folder)
    if config.logging.plots and not run.resume_step:
        task.draw_first_batch(data, 0, run.folder / "first_batch.jpg")


def _build_loggers(
    config: TrainConfig,
    plan: Plan,
    run: Run,
    strategy: DistributedStrategy,
    console: Console,
    tracked: list[TrackedRun],
) -> MetricLogger:
    loggers: list[MetricLogger] = []
    if strategy.is_main:
        progress = Progress(
            plan.stop_step,
            run.resume_step or 0,
            steps_per_epoch=plan.steps_per_epoch,
            images_per_step=plan.batch_size,
        )
        console.write = progress.write
        loggers += [progress, CsvLogger(run.folder / "metrics.csv", run.resume_step), *tracked]
        if config.logging.tensorboard:
            loggers.append(TensorBoardLogger(run.folder / "tensorboard", run.resume_step))
    if config.logging.per_rank_logs:
        console.log_file = log = RankLog(run.folder / "logs" / f"rank_{strategy.rank}.log")
        log.write(
            f"rank {strategy.rank} of {strategy.world_size}, {platform.node()}, process {os.getpid()}, {describe_job(strategy)}"
        )
        loggers.append(log)
    return LoggerCollection(loggers)


def _write_result(
    config: TrainConfig, run: Run, state: TrainState, seconds: float, facts: dict[str, Any], **outcome: Any
) -> None:
    facts = {"monitor": config.trainer.monitor, "best": state.best.value, "seconds": seconds, **facts}
    write_result(run.folder, resume_step=run.resume_step, **facts, **outcome)


def _finish(
    config: TrainConfig,
    run: Run,
    task: DetectionTask,
    state: TrainState,
    data: CocoDataModule,
    say: Callable[[str], None],
) -> None:
    """Images and the last words."""
    if config.logging.plots:
        from retina_dist.reporting.plots import plot_curves

        plot_curves(run.folder / "metrics.csv", run.folder / "curves.png")
        task.draw_results(state.evaluated_model, data, run.folder)
    if task.evaluator and task.evaluator.last_result:
        classes = task.evaluator.last_result.per_class
        if len(classes) > MOST_CLASSES:
            say(f"  AP of {len(classes)} classes: {run.folder / 'per_class_ap.png'}, or python -m retina_dist.evaluate")
            classes = {}
        for name, ap in classes.items():
            say(f"  {name:<24}AP {'-' if ap is None else format(ap, '.3f')}")
    if state.best.value is not None:
        say(f"best {state.best.name} {state.best.value:.3f}: {checkpoint_folder(config, run.folder) / 'best.pt'}")


@entry_point("train", sweep=run_sweep)
def main(config: TrainConfig) -> float | None:
    """Train; another sweeper of Hydra's than its basic one gets the monitored metric."""
    if config.launcher:
        raise ConfigError(
            f"launcher={config.launcher} starts the jobs of a sweep; add --multirun, or start this command itself by it."
        )
    return train(config).get(config.trainer.monitor)


if __name__ == "__main__":
    main()
