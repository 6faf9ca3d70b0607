"""Objects of a run from its settings: strategy, plan, state, best metric."""

import os
from dataclasses import replace
from functools import partial

import torch

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import target_of
from retina_dist.config.run_config import RunConfig, task_class
from retina_dist.engine.early_stopping import BestMetric, check_metric
from retina_dist.engine.nonfinite import NonFiniteGuard
from retina_dist.engine.plan import Plan, TrainerConfig, resolve_plan
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.model.layers import prefers_channels_last
from retina_dist.model.sync_batch_norm import connect
from retina_dist.optim.optimizer import build_optimizer, parameter_groups
from retina_dist.optim.settings import ScheduleConfig
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.select import strategy_of


def configure_torch(settings: TrainerConfig) -> None:
    """Set the number of threads and deterministic algorithms of this process."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    if settings.same_bits:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    torch.use_deterministic_algorithms(settings.same_bits)
    # finds operators that read what nobody wrote; it costs a tenth of a step
    torch.utils.deterministic.fill_uninitialized_memory = (  # type: ignore[attr-defined]
        settings.deterministic
    )


def build_strategy(config: RunConfig) -> DistributedStrategy:
    """The strategy of the settings and the launcher, not entered yet."""
    return strategy_of(config.strategy, deterministic=config.trainer.same_bits)


def agreed_channels_last(config: RunConfig, strategy: DistributedStrategy) -> bool:
    """`trainer.channels_last`; null: if the devices of all ranks are faster with it. Collective."""
    if config.trainer.channels_last is not None:
        return config.trainer.channels_last
    prefers = torch.tensor([prefers_channels_last(strategy.device)], dtype=torch.int64)
    return bool(strategy.all_reduce(prefers, "min"))


def monitor_of(config: RunConfig) -> str:
    """The metric that decides which checkpoint is best: `trainer.monitor`, or the task's own."""
    return config.trainer.monitor or task_class(config).default_monitor


def build_plan(config: RunConfig, num_images: int, world_size: int) -> Plan:
    """The plan that the settings give; `fast_dev_run` shortens it to two steps."""
    trainer = config.trainer
    schedule = config.schedule
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
    """The metric that decides which checkpoint is best. Raises ConfigError when the validation does
    not give it.
    """
    trainer = config.trainer
    monitor = monitor_of(config)
    outside_loss = monitor.startswith("val/loss_") and target_of(config.model)
    if not outside_loss:  # which the first validation names
        check_metric(monitor, task_class(config).metric_names)
    if trainer.patience and not validates:
        raise ConfigError(
            f"trainer.patience={trainer.patience} counts validations, but the run has none before "
            "its end; leave it out."
        )
    return BestMetric(monitor, trainer.monitor_mode, trainer.patience)


def build_state(
    config: RunConfig,
    model: torch.nn.Module,
    strategy: DistributedStrategy,
    best: BestMetric | None = None,
) -> TrainState:
    """Model, optimizer, scaler and average on the strategy's device."""
    trainer = config.trainer
    model = model.to(strategy.device)
    if agreed_channels_last(config, strategy):
        model = model.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(parameter_groups(model, config.optimizer), config.optimizer)
    scaler = torch.amp.GradScaler(strategy.device.type, enabled=trainer.precision == "fp16")
    ema = None
    if trainer.ema_decay:
        ema = ExponentialMovingAverage(model, trainer.ema_decay)
    # with one process too, so that the numbers are the same
    sum_over_ranks = partial(strategy.all_reduce, op="sum")
    is_single = trainer.accumulate != "auto" and config.data.batch_size <= trainer.micro_batches
    connect(model, sum_over_ranks, single_image=is_single)
    return TrainState(model, optimizer, scaler, ema, best or BestMetric())


def build_train_step(
    config: RunConfig,
    state: TrainState,
    plan: Plan,
    strategy: DistributedStrategy,
    guard: NonFiniteGuard | None = None,
) -> TrainStep:
    """One optimizer step in the settings' precision and clipping."""
    kind = TrainStep
    if plan.virtual_ranks:
        from retina_dist.engine.virtual_ranks import VirtualRankStep

        kind = VirtualRankStep
    return kind(
        state,
        plan,
        strategy,
        config.trainer,
        guard=guard,
        seed=config.seed,
        skips_images=config.data.bad_images == "skip",
    )
