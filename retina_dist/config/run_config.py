"""The settings of a training, whatever its task: one section for each component.

A task has subclasses of `data` and `model`.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import Self

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.errors import CheckpointError, ConfigError, first_line
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.registry import (
    FAMILIES,
    Entry,
    as_dict,
    class_of,
    lookup,
    names_class,
    register,
    settings_type,
)
from retina_dist.base.settings import (
    MISSING,
    Content,
    as_text,
    defaults_of,
    entry_name,
    flattened,
    make,
    sections_of,
    setting,
    validate,
)
from retina_dist.engine.plan import TrainerConfig
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.strategies.settings import StrategyConfig
from retina_dist.tracking.settings import LoggingConfig

if TYPE_CHECKING:
    from retina_dist.engine.task import Task

logger = logging.getLogger(__name__)

NORMS_FROZEN = ", any batch norms frozen (model.norm=frozen_bn)"  # of the line on the model
TASKS = tuple(FAMILIES["task"].entries)  # of the package


@dataclass
class TaskConfig(KnownArguments):
    """Which task is trained; its settings are the sections `data` and `model`."""

    family: ClassVar[str] = "task"

    name: str = setting(TASKS[0], "the group entry's name")


def name_of_root(root: str | None) -> str:
    """The name of a data set: the last part of its `root`, else "data".

    >>> name_of_root("az://container/bccd/")
    'bccd'
    """
    name = re.split(r"[/\\]", str(root or "").rstrip("/\\"))[-1].strip(".")
    return name if name and name.isprintable() else "data"


class _DataDefaults(KnownArguments):
    """What trainings ask of data whose task may have no such settings."""

    root: str | None = None
    synthetic: object = None
    val_fraction: float | None = None
    bad_images: str = "error"
    num_workers: int = 0


@dataclass
class DataSettings(_DataDefaults):
    """Data settings of every task."""

    name: str = MISSING
    batch_size: int = setting(
        16, "images of an optimizer step, over all processes", at_least=1, at_most=10**6
    )

    def check(self) -> None:
        """Raise ConfigError for a name that cannot be a folder's."""
        if self.name in ("", ".", "..") or re.search(r"[/\\\0]", self.name):
            raise ConfigError(
                f"data.name={self.name} cannot name a folder below runs/; leave out slashes, "
                "or give a folder of data as root."
            )

    def with_values(self, **values: object) -> Self:
        """A copy with other values.

        `dataclasses.replace` would ask for the datasets of a `TorchDatasetConfig` again.
        """
        changed = copy.copy(self)
        for name, value in values.items():
            setattr(changed, name, value)
        return changed


D = TypeVar("D", bound=DataSettings)


class _ModelDefaults(KnownArguments):
    """What trainings ask of a model that may have no such settings."""

    norm: str | None = None
    activation_checkpointing: bool = False


@dataclass
class ModelSettings(_ModelDefaults):
    """Base of all model settings; empty."""

    @classmethod
    def has_norm(cls) -> bool:
        """Whether `norm` is one of its settings."""
        return "norm" in cls.__dataclass_fields__


@dataclass
class AugmentationConfig(Entry):
    """Settings of every augmentation of one's own, which comes before those of `data`."""

    family: ClassVar[str] = "augmentation"
    default_entry: ClassVar[str] = "none"

    name: str = setting("none", "the group entry's name")


AugmentationSettings = AugmentationConfig  # the name that a class from outside extends


@dataclass
class NoAugmentationSettings(AugmentationSettings):
    """The settings of `data` alone."""

    name: str = entry_name("none")


class NoAugmentation:
    """A sample as it is; never made."""

    settings = NoAugmentationSettings

    def __call__(self, *sample: object) -> object:
        return sample


def norm_for(norm: str | None, weights: str | None) -> str:
    """`model.norm`, or what null means.

    Few images a step spoil the statistics that come with pretrained weights.
    """
    if norm is None and weights:
        return "frozen_bn"
    return norm or "bn"


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
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    seed: int = setting(0, at_least=0)
    output_dir: str | None = setting(
        None, "null: hydra.run.dir, else runs/NAME, runs/NAME-2, ...", writes="folder"
    )
    resume: str | None = setting(
        None,
        "auto (output_dir's run or the newest runs/NAME), a run folder or a checkpoint",
        remedy="give a run folder, a checkpoint or resume=auto",
    )
    dry_run: bool = setting(
        False, "print the plan, on a GPU with the memory that a step takes, and stop"
    )
    gpu: str | None = setting(
        None, "GPU to fit into: a name such as A100-40GB, or 24GiB; null: the GPU in use"
    )
    debug: bool = setting(False, "show tracebacks")

    def check(self) -> None:
        """Raise ConfigError where settings of two sections exclude each other."""
        root = self.data.root
        folder = self.output_dir
        if root and folder and Path(root).resolve() == Path(folder).resolve():
            raise ConfigError(f"output_dir={folder} is data.root; give another folder.")
        if self.data.synthetic and self.trainer.overfit_batches:
            raise ConfigError(
                "data.synthetic has no images to overfit; leave trainer.overfit_batches out."
            )
        if self.data.synthetic and self.augmentation.name != "none":
            raise ConfigError("data.synthetic has no images to augment; leave augmentation out.")
        if self.trainer.compile and self.model.activation_checkpointing:
            raise ConfigError(
                "trainer.compile=true cannot trace model.activation_checkpointing=true; "
                "leave one out."
            )
        if self.trainer.virtual_ranks:
            self._check_virtual_ranks()

    def _check_virtual_ranks(self) -> None:
        """Raise ConfigError for what would make the bits depend on the processes."""
        trainer = self.trainer
        allowed = {
            "trainer.accumulate": (trainer.accumulate, (1,)),
            "trainer.precision": (trainer.precision, ("fp32", "tf32")),
            "trainer.compile": (trainer.compile, (False,)),
            "strategy.compression": (self.strategy.compression, ("none",)),
            "model.norm": (self.model.norm or "bn", ("bn", "frozen_bn")),
        }
        given = f"trainer.virtual_ranks={trainer.virtual_ranks}"
        for key, (value, good) in allowed.items():
            if value not in good:
                choices = " or ".join(map(as_text, good))
                raise ConfigError(f"{given} excludes {key}={as_text(value)}; use {key}={choices}.")
        if trainer.num_threads is None:
            raise ConfigError(
                f"{given} needs trainer.num_threads, as an operator's sums depend on it; "
                "give trainer.num_threads=1."
            )


def changed_settings(config: RunConfig) -> list[tuple[str, str, str]]:
    """(dotted key, value, default) of each setting that differs from its default."""
    defaults = flattened(defaults_of(config))
    values = flattened(redacted_tree(as_dict(config)))
    changed = []
    for key, value in values.items():
        default = defaults.get(key, "null")
        if value != default:
            changed.append((key, value, default))
    return changed


class OfCheckpoint:
    """Base of the settings of a command that takes a checkpoint, which imports nothing.

    A task and a model from outside the package are named again by their entries: `outside_task` and
    the class of model settings.
    """

    checkpoint: str | None = None
    outside_task: type[Any] | None = None
    outside_model: type[ModelSettings] | None = None


def task_class(config: RunConfig) -> type[Task]:
    """The class of the task that the settings choose."""
    return class_of(config.task)


def command_of_task(task: type[Task], name: str) -> Callable[..., Any]:
    """The function NAME of a task or its base, in the module of its `commands`, by default its own.

    Raises ConfigError.
    """
    for kind in task.__mro__:
        room = import_module(vars(kind).get("commands", kind.__module__))
        command: Callable[..., object] | None = vars(room).get(name)
        if command:
            return command
    raise ConfigError(
        f"{task.__name__} has no {name}; write a function {name}(config) in {task.__module__}."
    )


def chosen_task(content: Content) -> type[Task]:
    """The class of the task that composed settings name, or the first one of the package.

    Raises ConfigError.
    """
    section = content.get("task")
    if not isinstance(section, Mapping):
        return lookup("task", TASKS[0])
    if names_class(section):
        if not section.get("name"):
            raise ConfigError("task.name is not set; give it in the entry, beside _target_.")
        return register("task", section["_target_"], str(section["name"]))
    return lookup("task", section.get("name", TASKS[0]))


def section_types(schema: type, content: Content) -> tuple[type, dict[str, type]]:
    """A command's schema for composed settings, and the dataclass that each section names.

    A task may have fields beside `data` and `model`, which the schema then has too. Raises
    ConfigError.
    """
    kinds = sections_of(schema)
    if issubclass(schema, RunConfig):
        settings = chosen_task(content).settings
        own = {each.name for each in fields(settings)} - {"data", "model"}
        taken = own & {each.name for each in fields(schema)}
        if taken:
            raise ConfigError(
                f"{settings.__name__}.{min(taken)} is a key of every run; "
                "give the section another name."
            )
        kinds |= sections_of(settings)
        if own:
            schema = make_dataclass(schema.__name__, (), bases=(schema, settings))
    return schema, {name: settings_type(content.get(name), kind) for name, kind in kinds.items()}


def _section_of_checkpoint(content: Mapping[str, object], name: str) -> Mapping[str, object] | None:
    """A section of the settings that a checkpoint holds, None without it."""
    for key in ("config", name):
        found = content.get(key)
        if not isinstance(found, Mapping):
            return None
        content = found
    return content


def task_of_checkpoint(content: Mapping[str, object]) -> str:
    """The built-in task that a checkpoint was trained for.

    The first one where it names none of them, as a plugin's does.
    """
    section = _section_of_checkpoint(content, "task") or {}
    if names_class(section) or section.get("name") not in TASKS:
        return TASKS[0]
    return str(section["name"])


def data_settings_of(content: Mapping[str, object], schema: type[D], source: object) -> D:
    """The settings of the data that the checkpoint `source` was trained on, checked.

    Nothing in them is looked up or imported. Absent ones have their defaults. Those that `schema`
    does not have are left out, with a warning unless they are of a class from outside the package.
    Raises CheckpointError without any, ConfigError for what does not fit.
    """
    from retina_dist.base.torch_files import remedy_of  # imports torch

    section = _section_of_checkpoint(content, "data")
    if section is None:
        raise CheckpointError(
            f"{source} does not say what it was trained on; give another checkpoint."
        )

    known = {each.name for each in fields(schema)}
    gone = sorted(map(str, section.keys() - known))
    if gone and not names_class(section):
        logger.warning(
            f"the checkpoint's {', '.join(gone)} is left out: this version has no such setting."
        )
    try:
        settings = make(schema, {key: value for key, value in section.items() if key in known})
        validate(settings, "data.")
    except ConfigError as error:
        reason = first_line(error).rstrip(".")
        raise ConfigError(
            f"the checkpoint's settings are not those of this version ({reason}); "
            f"{remedy_of(content)}."
        ) from error
    return settings
