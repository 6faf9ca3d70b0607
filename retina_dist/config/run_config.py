"""The settings of a training, whatever its task: one section for each component. A task has subclasses of `data` and `model`."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

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


class KnownArguments:
    """Settings made in Python, where an unknown argument is a ConfigError with the one that may be meant."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        for key in sorted(kwargs.keys() - cls.__dataclass_fields__):  # type: ignore[attr-defined]
            from retina_dist.config.messages import no_argument  # imports Hydra

            raise ConfigError(no_argument(cls, key))
        return super().__new__(cls)


@dataclass
class DataSettings(KnownArguments):
    """What every task's data has."""

    name: str = MISSING
    batch_size: int = setting(
        16, "images of one optimizer step, over all processes and accumulated micro-batches", at_least=1, at_most=10**6
    )

    def check(self) -> None:
        """Raise ConfigError for a name that cannot be a folder's."""
        if self.name in ("", ".", "..") or re.search(r"[/\\\0]", self.name):
            raise ConfigError(f"data.name={self.name} cannot name a folder below runs/; leave out slashes.")

    def with_values(self, **values: Any) -> Self:
        """A copy with other values. `dataclasses.replace` would ask for the datasets of a `TorchDatasetConfig` again."""
        found = copy.copy(self)
        for name, value in values.items():
            setattr(found, name, value)
        return found


@dataclass
class ModelSettings(KnownArguments):
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
    output_dir: str | None = setting(
        None, "null: hydra.run.dir if that is given, else runs/NAME, runs/NAME-2, ...", writes="folder"
    )
    resume: str | None = setting(
        None,
        "null | auto (the run in output_dir, or the newest runs/NAME) | a run folder, whose settings it takes | a checkpoint",
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
        root = getattr(self.data, "root", None)
        if root and self.output_dir and "://" not in root and Path(root).resolve() == Path(self.output_dir).resolve():
            raise ConfigError(
                f"output_dir={self.output_dir} is data.root, the folder of the data; give another folder."
            )
        accumulate = self.trainer.micro_batches
        # https://github.com/pytorch/pytorch/pull/187732
        if getattr(self.strategy, "static_graph", False) and accumulate > 1:
            raise ConfigError(
                f"strategy.static_graph=true and trainer.accumulate={accumulate} do not go together, as torch would no longer "
                "average all gradients; give strategy.static_graph=false."
            )
        if getattr(self.data, "synthetic", None) and self.trainer.overfit_batches:
            raise ConfigError("data.synthetic has no images to overfit; leave trainer.overfit_batches out.")


def builtin_task(name: str) -> Any:
    """The class of a task of the package."""
    return getattr(import_module(f"retina_dist.{name}.task"), f"{name.capitalize()}Task")


def schema_of_task(name: str, schema: type = RunConfig) -> type:
    """`schema`, the settings of a command that takes those of a training, with the sections of the built-in task `name`."""
    rooms = import_module(f"retina_dist.{name}.settings")
    if schema is RunConfig:
        run_config: type = getattr(rooms, f"{name.capitalize()}RunConfig")
        return run_config
    settings = getattr(rooms, f"{name.capitalize()}Settings")
    hints = get_type_hints(settings)
    if all(get_type_hints(schema)[f.name] is hints[f.name] for f in fields(settings)):
        return schema
    sections = [(f.name, hints[f.name], field(default_factory=hints[f.name])) for f in fields(settings)]
    return make_dataclass(schema.__name__, sections, bases=(schema,))


def task_of_checkpoint(content: Mapping[str, Any]) -> str:
    """The built-in task that a checkpoint was trained for; the first one where it names none of them, as a plugin's does."""
    config = content.get("config")
    section = config.get("task") if isinstance(config, Mapping) else None
    name = section.get("name") if isinstance(section, Mapping) and "_target_" not in section else None
    return str(name) if name in TASKS else TASKS[0]
