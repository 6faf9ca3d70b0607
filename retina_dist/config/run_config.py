"""The settings of a training, whatever its task: one section for each component. A task has subclasses of `data` and `model`."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from retina_dist.engine.settings import TrainerConfig
from retina_dist.errors import ConfigError
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.settings import MISSING, setting
from retina_dist.strategies.settings import NcclConfig, StrategyConfig

TASKS = ("detection", "classification")  # of the package, each in the folder of its name


@dataclass
class TaskConfig:
    """Which task is trained; an entry from outside the package names its class by `_target_`."""

    name: str = setting(TASKS[0], choices=TASKS)


@dataclass
class DataSettings:
    """What every task's data has."""

    name: str = MISSING
    batch_size: int = setting(
        16, "images of one optimizer step, over all processes and accumulated micro-batches", at_least=1, at_most=10**6
    )

    def check(self) -> None:
        """Raise ConfigError for a name that cannot be a folder's."""
        if self.name in ("", ".", "..") or re.search(r"[/\\\0]", self.name):
            raise ConfigError(f"data.name={self.name} is no name for a folder below runs/.")

    def with_values(self, **values: Any) -> Self:
        """A copy with other values. `dataclasses.replace` would ask for the datasets of a `TorchDatasetConfig` again."""
        found = copy.copy(self)
        for name, value in values.items():
            setattr(found, name, value)
        return found


@dataclass
class ModelSettings:
    """What every task's model has: no setting."""


@dataclass
class RunConfig:
    """The settings of a training, whatever its task, which has more of `data` and `model`."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    seed: int = setting(0, at_least=0)
    output_dir: str | None = setting(None, "null: runs/NAME, runs/NAME-2, ...")
    resume: str | None = setting(
        None, "null | auto (the run in output_dir, or the newest runs/NAME) | a checkpoint file"
    )
    launcher: str | None = setting(None, 'with --multirun: the launcher that starts each job, e.g. "horovodrun -np 2"')
    dry_run: bool = setting(False, "print the plan, with the memory that a step takes, and stop")
    gpu: str | None = setting(
        None,
        "a GPU's name, such as A100-40GB, or memory, such as 24GiB, to fit into; null: that of the GPU in use, if any",
    )
    debug: bool = setting(False, "show tracebacks")

    def check(self) -> None:
        """Raise ConfigError where settings of two sections exclude each other."""
        accumulate = self.trainer.micro_batches
        # https://github.com/pytorch/pytorch/pull/187732
        if getattr(self.strategy, "static_graph", False) and accumulate > 1:
            raise ConfigError(
                f"strategy.static_graph=true and trainer.accumulate={accumulate} do not go together, as torch would no longer "
                "average all gradients; give strategy.static_graph=false."
            )
        if getattr(self.data, "synthetic", None) and self.trainer.overfit_batches:
            raise ConfigError("data.synthetic has no images to overfit; leave trainer.overfit_batches out.")
