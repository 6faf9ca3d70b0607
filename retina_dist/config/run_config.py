"""The settings of a training, whatever its task: one section for each component. A task has subclasses of `data` and `model`."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from typing_extensions import Self

from retina_dist.base.errors import CheckpointError, ConfigError, first_line
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.settings import MISSING, KnownArguments, flattened, make, setting, validate
from retina_dist.engine.plan import TrainerConfig
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.strategies.settings import StrategyConfig
from retina_dist.tracking.settings import LoggingConfig

if TYPE_CHECKING:
    from retina_dist.engine.task import Task

logger = logging.getLogger(__name__)

T = TypeVar("T")
TASKS = ("detection", "classification")  # of the package, each in the folder of its name


@dataclass
class TaskConfig:
    """Which task is trained; an entry from outside the package names its class by `_target_`."""

    contract = "retina_dist.engine.task.Task"

    name: str = setting(TASKS[0], choices=TASKS)


def name_of_root(root: str | None) -> str:
    """The name of a data set: the last part of its `root`, a folder or URL; "data" where that cannot be a name.

    >>> name_of_root("az://container/bccd/")
    'bccd'
    """
    name = re.split(r"[/\\]", str(root or "").rstrip("/\\"))[-1].strip(".")
    return name if name.isprintable() and name else "data"


@dataclass
class DataSettings(KnownArguments):
    """Data settings of every task."""

    name: str = MISSING
    batch_size: int = setting(
        16, "images of an optimizer step, over all processes", at_least=1, at_most=10**6
    )

    def check(self) -> None:
        """Raise ConfigError for a name that cannot be a folder's."""
        if self.name in ("", ".", "..") or re.search(r"[/\\\0]", self.name):
            raise ConfigError(
                f"data.name={self.name} cannot name a folder below runs/; leave out slashes."
            )

    def with_values(self, **values: Any) -> Self:
        """A copy with other values. `dataclasses.replace` would ask for the datasets of a `TorchDatasetConfig` again."""
        changed = copy.copy(self)
        for name, value in values.items():
            setattr(changed, name, value)
        return changed


@dataclass
class ModelSettings(KnownArguments):
    """Base of all model settings; empty."""


@dataclass
class RunConfig:
    """The settings that trainings of all tasks share."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    seed: int = setting(0, at_least=0)
    output_dir: str | None = setting(
        None, "null: hydra.run.dir, else runs/NAME, runs/NAME-2, ...", writes="folder"
    )
    resume: str | None = setting(
        None, "auto (output_dir's run or the newest runs/NAME), a run folder or a checkpoint"
    )
    dry_run: bool = setting(False, "print the plan, with the memory that a step takes, and stop")
    gpu: str | None = setting(
        None, "GPU to fit into: a name such as A100-40GB, or 24GiB; null: the GPU in use"
    )
    debug: bool = setting(False, "show tracebacks")

    def check(self) -> None:
        """Raise ConfigError where settings of two sections exclude each other."""
        root = getattr(self.data, "root", None)
        if (
            root
            and self.output_dir
            and "://" not in root
            and Path(root).resolve() == Path(self.output_dir).resolve()
        ):
            raise ConfigError(f"output_dir={self.output_dir} is data.root; give another folder.")
        if getattr(self.data, "synthetic", None) and self.trainer.overfit_batches:
            raise ConfigError(
                "data.synthetic has no images to overfit; leave trainer.overfit_batches out."
            )
        if self.trainer.compile and getattr(self.model, "activation_checkpointing", False):
            raise ConfigError(
                "trainer.compile=true cannot trace model.activation_checkpointing=true; leave one out."
            )


def changed_settings(config: RunConfig) -> list[tuple[str, str, str]]:
    """(dotted key, value, default) of each setting that differs from its default, as on the command line, without secrets."""
    defaults = flattened(asdict(type(config)()))
    values = flattened(redacted_tree(asdict(config)))
    return [
        (key, value, default)
        for key, value in values.items()
        if (default := defaults.get(key, "null")) != value
    ]


class OfCheckpoint:
    """Base of the settings of a command that takes a checkpoint, which imports nothing.

    A task and a model from outside the package are named again by their entries: `outside_task` and the class of model settings.
    """

    outside_task: type[Any] | None = None
    outside_model: type[ModelSettings] | None = None


def builtin_task(name: str) -> Any:
    """The class of a task of the package."""
    return getattr(import_module(f"retina_dist.{name}.task"), f"{name.capitalize()}Task")


def task_class(config: RunConfig) -> type[Task]:
    """The class of the task that the settings choose."""
    kind: type[Task] = getattr(config.task, "implementation", None) or builtin_task(
        config.task.name
    )
    return kind


def command_of_task(task: type[Task], name: str) -> Callable[..., Any]:
    """The function NAME of a task or its base: of `commands` beside a built-in one, of its module else. Raises ConfigError."""
    builtin = {f"retina_dist.{each}.task": f"retina_dist.{each}.commands" for each in TASKS}
    for kind in task.__mro__:
        room = import_module(builtin.get(kind.__module__, kind.__module__))
        command: Callable[..., Any] | None = getattr(room, name, None)
        if command:
            return command
    raise ConfigError(
        f"{task.__name__} has no {name}; write a function {name}(config) in {task.__module__}."
    )


def schema_of_task(name: str, schema: type = RunConfig) -> type:
    """`schema`, a class below `RunConfig`, with the sections of the built-in task `name`."""
    module = import_module(f"retina_dist.{name}.settings")
    run_config: type = getattr(module, f"{name.capitalize()}RunConfig")
    if schema is RunConfig:
        return run_config
    if issubclass(schema, run_config):
        return schema
    return with_sections(schema, getattr(module, f"{name.capitalize()}Settings"))


def with_sections(schema: type, settings: type) -> type:
    """`schema` with the sections of a task's `settings`. Raises ConfigError where these take another key of `schema`."""
    hints, bases = get_type_hints(settings), {"data": DataSettings, "model": ModelSettings}
    if taken := {f.name for f in fields(settings)} & (
        {f.name for f in fields(schema)} - bases.keys()
    ):
        raise ConfigError(
            f"{settings.__name__}.{min(taken)} is a key of every run; give the section another name."
        )

    def check(self: Any) -> None:
        for base in (settings, schema):
            getattr(base, "check", lambda config: None)(self)

    absent = [
        (name, base, field(default_factory=base))
        for name, base in bases.items()
        if name not in hints
    ]
    return make_dataclass(
        schema.__name__, absent, bases=(settings, schema), namespace={"check": check}
    )


def contract_of(section: Any) -> tuple[str, type] | None:
    """The contract (a dotted name) of the class that a section may name, and the base of its settings; None: no class."""
    base = next(
        (kind for kind in getattr(section, "__mro__", ()) if "contract" in vars(kind)), None
    )
    return (vars(base)["contract"], base) if base else None


def names_class(section: Any) -> bool:
    """Whether a section of the settings names a class, which is from outside the package."""
    return isinstance(section, Mapping) and "_target_" in section


def task_of_checkpoint(content: Mapping[str, Any]) -> str:
    """The built-in task that a checkpoint was trained for; the first one where it names none of them, as a plugin's does."""
    config = content.get("config")
    section = config.get("task") if isinstance(config, Mapping) else None
    name = (
        section.get("name") if isinstance(section, Mapping) and "_target_" not in section else None
    )
    return str(name) if name in TASKS else TASKS[0]


def data_settings_of(content: Mapping[str, Any], schema: type[T], source: object) -> T:
    """The settings of the data that the checkpoint `source` was trained on, checked; nothing in them is looked up or imported.

    Absent ones have their defaults. Those that `schema` does not have are left out, with a warning unless they are of a class from
    outside the package. Raises CheckpointError without any, ConfigError for what does not fit.
    """
    from retina_dist.base.torch_files import remedy_of  # imports torch

    config = content.get("config")
    section = config.get("data") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"{source} does not say what it was trained on; give another checkpoint."
        )
    known = {f.name for f in fields(schema)}  # type: ignore[arg-type]
    if not names_class(section) and (gone := sorted(map(str, section.keys() - known))):
        logger.warning(
            f"the checkpoint's {', '.join(gone)} is left out: this version has no such setting."
        )
    try:
        settings = make(schema, {key: value for key, value in section.items() if key in known})
        validate(settings, "data.")
        return settings
    except ConfigError as error:
        reason, remedy = first_line(error).rstrip("."), remedy_of(content)
        raise ConfigError(
            f"the checkpoint's settings are not those of this version ({reason}); {remedy}."
        ) from error
