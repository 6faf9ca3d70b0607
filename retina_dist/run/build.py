"""Objects of a run from its settings: strategy, plan, state, best metric."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.early_stopping import BestMetric, check_metric
from retina_dist.engine.nonfinite import NonFiniteGuard
from retina_dist.engine.plan import Plan, TrainerConfig, resolve_plan
from retina_dist.engine.precision import make_scaler
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.errors import ConfigError
from retina_dist.model.sync_batch_norm import connect
from retina_dist.model.weights import is_torchvision_name
from retina_dist.optim.optimizer import build_optimizer, parameter_groups
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.run_config import TASKS, RunConfig, builtin_task, names_class, task_of_checkpoint
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.select import strategy_of
from retina_dist.task import Task


def configure_torch(settings: TrainerConfig) -> None:
    """Set the number of threads and deterministic algorithms of this process."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    torch.use_deterministic_algorithms(settings.deterministic)


def build_strategy(config: RunConfig) -> DistributedStrategy:
    """The strategy of the settings and the launcher, not entered yet."""
    strategy = strategy_of(config.strategy, deterministic=config.trainer.deterministic)
    if config.trainer.precision == "fp16":
        strategy.fp16_scale = 1.0  # the loss is scaled already
    return strategy


def task_class(config: RunConfig) -> type[Task]:
    """The class of the task that the settings choose."""
    kind: type[Task] = getattr(config.task, "implementation", None) or builtin_task(config.task.name)
    return kind


def task_of(config: Any) -> type[Task]:
    """The class of the task that `config.checkpoint` was trained for; without one, and for torchvision's weights, detection's.

    `config` is an `OfCheckpoint`. Raises ConfigError where the task is from outside the package and not named again.
    """
    if config.outside_task is not None:
        return config.outside_task  # type: ignore[no-any-return]
    if config.checkpoint is None or is_torchvision_name(config.checkpoint):
        return builtin_task(TASKS[0])  # type: ignore[no-any-return]
    content = load_checkpoint(config.checkpoint)
    settings: Any = content.get("config")
    for group in ("task", "model") if isinstance(settings, dict) else ():
        section: Any = settings.get(group)
        if names_class(section) and getattr(config, f"outside_{group}") is None:
            outside = f"{config.checkpoint} is of {section['_target_']} from outside the package"
            raise ConfigError(f"{outside}; name its entry again: {group}=NAME --config-dir FOLDER.")
    return builtin_task(task_of_checkpoint(content))  # type: ignore[no-any-return]


def command_of_task(task: type[Task], name: str) -> Callable[..., Any]:
    """The function NAME of a task or its base: of `commands` beside a built-in one, of its module else. Raises ConfigError."""
    builtin = {f"retina_dist.{each}.task": f"retina_dist.{each}.commands" for each in TASKS}
    for kind in task.__mro__:
        room = import_module(builtin.get(kind.__module__, kind.__module__))
        command: Callable[..., Any] | None = getattr(room, name, None)
        if command:
            return command
    raise ConfigError(f"{task.__name__} has no {name}; write a function {name}(config) in {task.__module__}.")


def monitor_of(config: RunConfig) -> str:
    """The metric that decides which checkpoint is best: `trainer.monitor`, or the task's own."""
    return config.trainer.monitor or task_class(config).default_monitor


def build_plan(config: RunConfig, num_images: int, world_size: int) -> Plan:
    """The plan that the settings give; `fast_dev_run` shortens it to two steps."""
    trainer, schedule = config.trainer, config.schedule
    if trainer.fast_dev_run:
        trainer = replace(trainer, max_duration="2steps", validate_every="2steps", stop_after=None)
        schedule = ScheduleConfig(name="constant")
    return resolve_plan(
        num_images=num_images,
        batch_size=config.data.batch_size,
        trainer=trainer,
        optimizer=config.optimizer,
        schedule=schedule,
        world_size=world_size,
    )


def best_metric(config: RunConfig, validates: bool) -> BestMetric:
    """The metric that decides which checkpoint is best. Raises ConfigError when the validation does not give it."""
    trainer = config.trainer
    outside_loss = monitor_of(config).startswith("val/loss_") and hasattr(config.model, "implementation")
    if not outside_loss:  # which the first validation names
        check_metric(monitor_of(config), task_class(config).metric_names)
    if trainer.patience and not validates:
        raise ConfigError(
            f"trainer.patience={trainer.patience} counts validations, but the run has none; give it some, or leave patience out."
        )
    return BestMetric(monitor_of(config), trainer.monitor_mode, trainer.patience)


def build_state(
    config: RunConfig, model: torch.nn.Module, strategy: DistributedStrategy, best: BestMetric | None = None
) -> TrainState:
    """Model, optimizer, scaler and average on the strategy's device."""
    trainer = config.trainer
    layout: dict[str, Any] = {"memory_format": torch.channels_last} if trainer.channels_last else {}
    model = model.to(strategy.device, **layout)
    optimizer = build_optimizer(parameter_groups(model, config.optimizer), config.optimizer)
    scaler = make_scaler(strategy.device, trainer.precision)
    ema = ExponentialMovingAverage(model, trainer.ema_decay) if trainer.ema_decay else None
    connect(model, lambda x: strategy.all_reduce(x, "sum"))  # with one process too, so that the numbers are the same
    return TrainState(model, optimizer, scaler, ema, best)


def build_train_step(
    config: RunConfig, state: TrainState, plan: Plan, strategy: DistributedStrategy, guard: NonFiniteGuard | None = None
) -> TrainStep:
    """One optimizer step in the settings' precision and clipping."""
    return TrainStep(
        state,
        plan,
        strategy,
        precision=config.trainer.precision,
        gradient_clip=config.trainer.gradient_clip,
        gradient_clip_algorithm=config.trainer.gradient_clip_algorithm,
        guard=guard,
        seed=config.seed,
        skips_images=getattr(config.data, "bad_images", "error") == "skip",
        compiles=config.trainer.compile,
    )
