"""What a run will do, before anything is written: its task, plan, memory and precision."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from retina_dist.base import __version__
from retina_dist.base.errors import ConfigError, set_status
from retina_dist.base.files import parse_path
from retina_dist.base.text import pluralize
from retina_dist.config.run_config import RunConfig, task_class
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import agreed_precision, describe_precision, warn_of_emulation
from retina_dist.engine.replicas import check_same
from retina_dist.engine.task import Task
from retina_dist.run.build import best_metric, build_plan
from retina_dist.run.records import describe_job
from retina_dist.run.resume import check_resume, open_run, run_folder_of
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import find_gpu
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import why_alone

if TYPE_CHECKING:
    from retina_dist.run.memory import MemoryPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRun:
    """A run that may start, alike on all ranks.

    Args:
        config: The settings, with `trainer.accumulate` and `trainer.precision` settled.
        recorded: The settings for the run folder; a resume settles the precision again.
        task: The task, which has read its data.
        plan: Batch, length and rhythm.
        best: The metric of the best checkpoint; None where the task has no validation data.
        images: The digest of the training set.
        description: The lines that say all this.
        loggers: The entries of the loggers that it makes.
    """

    config: RunConfig
    recorded: RunConfig
    task: Task
    plan: Plan
    best: BestMetric | None
    images: str
    description: str
    loggers: list[str]


def plan_run(
    requested: RunConfig, strategy: DistributedStrategy, *, is_restart: bool
) -> PlannedRun:
    """Read the data and plan the run. Raises every error of the settings, on all ranks.

    A restart of an elastic job has its run folder already.
    """
    logger.info(f"retina_dist {__version__}, torch {torch.__version__}, {describe_job(strategy)}")
    note = why_alone(requested.strategy.name, detect_launch())
    if note:
        logger.info(note)
    precision = agreed_precision(requested.trainer.precision, strategy)
    warning = warn_of_emulation(strategy.device, precision)
    if warning:
        logger.warning(f"trainer.{warning}", extra={"rank_zero_only": True})

    set_status("reading the data")
    # the main rank's: a process that has just joined calls it too
    strategy.on_main(partial(_check_folder, requested, is_restart))
    strategy.on_main(partial(_prepare_data, requested, strategy.world_size))
    task = strategy.run_collectively(partial(task_class(requested), requested, strategy))

    set_status("estimating the memory")
    config, memory = _settle(requested, task, strategy, precision)
    task.config = config
    strategy.run_collectively(config.check)
    plan = build_plan(config, task.num_images, strategy.world_size)
    images = strategy.run_collectively(task.fingerprint)
    own = {f"the {name} of the plan": value for name, value in vars(plan).items()}
    del own["the schedule of the plan"]
    own |= {"seed": config.seed, "the digest of the training set": images}
    check_same(own, strategy)
    validates = task.validates and plan.validate_every > 0
    metric = strategy.run_collectively(partial(best_metric, config, validates))
    best = metric if task.validates else None

    precision_line = describe_precision(strategy.device, precision, requested.trainer.precision)
    description = "\n".join([precision_line, *_describe(config, task, plan, best, memory)])
    logger.info(description)
    if memory and memory.problem:
        raise ConfigError(memory.problem, collective=True)
    loggers: list[str] = []
    if not config.dry_run:
        loggers = strategy.on_main(config.logging.chosen)
    trainer = replace(config.trainer, precision=requested.trainer.precision)
    recorded = replace(config, trainer=trainer)
    return PlannedRun(config, recorded, task, plan, best, images, description, loggers)


def _check_folder(config: RunConfig, is_restart: bool) -> None:
    """Raise the errors of `resume` and `output_dir` before the data is read, at the first start."""
    if is_restart:
        return
    if config.resume not in (None, "", "auto"):
        source = parse_path(config.resume)
        check_resume(source, config.trainer.checkpoint_dir)
        if not (config.output_dir or run_folder_of(source)):
            open_run(config)  # its error
    elif not (config.resume or config.dry_run):
        open_run(config)


def _prepare_data(config: RunConfig, world_size: int) -> None:
    """Let the task make its data, after every error that can be known before it."""
    best_metric(config, validates=True)
    if config.gpu:
        find_gpu(config.gpu)
    task = task_class(config)
    num_images = task.planned_images(config)
    if num_images is not None:
        build_plan(config, num_images, world_size)
    task.prepare(config)


def _settle(
    requested: RunConfig, task: Task, strategy: DistributedStrategy, precision: str
) -> tuple[RunConfig, MemoryPlan | None]:
    """The settings with numbers in place of auto, and how a step fits the GPU, if there is one."""

    def with_accumulate(number: int) -> RunConfig:
        trainer = replace(requested.trainer, accumulate=number, precision=precision)
        return replace(requested, trainer=trainer)

    def plan_of(number: int) -> Plan:
        return build_plan(with_accumulate(number), task.num_images, strategy.world_size)

    accumulate = requested.trainer.micro_batches
    memory = None
    strategy.run_collectively(partial(plan_of, accumulate))
    if requested.gpu or strategy.device.type == "cuda":
        from retina_dist.run.memory import plan_memory

        memory = plan_memory(requested, task, strategy, plan_of)
        accumulate = memory.accumulate
    elif requested.trainer.accumulate == "auto":
        logger.info("trainer.accumulate=auto is 1 without a GPU; gpu=NAME settles it")
    return with_accumulate(accumulate), memory


def _describe(
    config: RunConfig, task: Task, plan: Plan, best: BestMetric | None, memory: MemoryPlan | None
) -> list[str]:
    data = task.describe()
    fraction = config.data.val_fraction
    if fraction and "val_fraction" not in data:
        data += (
            f"\n  note     data.val_fraction={fraction} has no effect: "
            "the data have a val split, or none is read"
        )
    lines = [f"data: {config.data.name}", data, "plan:", str(plan)]
    if best:
        is_within = 0 < plan.validate_every <= plan.total_steps
        every = f"every {pluralize(plan.validate_every, 'step')}"
        lines.append(f"  validate {every if is_within else 'at the end'}")
        end = ""
        if best.patience:
            validations = pluralize(best.patience, "validation")
            end = f"; the run ends after {validations} without a better one"
        lines.append(f"  {'best':<9}{best}{end}")
    if memory:
        lines += [f"  {'memory':<9}{line}" for line in memory.lines]
    return lines
