"""Classes from outside the package that a config group's entry names by `_target_`.

An entry outside is found by hydra.searchpath, --config-dir, or the entry point group `retina_dist.plugins`: functions that store
entries in Hydra's ConfigStore. The class is imported for the command line's composition only; a checkpoint's settings are data.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from retina_dist.config.run_config import TASKS, DataSettings, ModelSettings, RunConfig, TaskConfig, schema_of_task
from retina_dist.errors import ConfigError
from retina_dist.settings import MISSING, setting

PLUGINS = "retina_dist.plugins"


@dataclass(frozen=True)
class Seam:
    """A group whose entry may name a class: what that must inherit from, and what its `settings` must inherit from."""

    group: str
    contract: str
    settings: str = "builtins.object"


TASK = Seam("task", "retina_dist.task.Task")
DATA = Seam(
    "data", "retina_dist.detection.readers.reader.AnnotationReader", "retina_dist.detection.settings.DetectionData"
)
MODEL = Seam(
    "model",
    "retina_dist.detection.model.build.DetectionModel",
    "retina_dist.detection.settings.DetectorSettings",
)
SEAMS = (
    DATA,
    MODEL,
    Seam("optimizer", "torch.optim.Optimizer", "retina_dist.optim.settings.OptimizerSettings"),
    Seam("schedule", "retina_dist.optim.schedule.Decay", "retina_dist.optim.settings.ScheduleSettings"),
    Seam(
        "strategy",
        "retina_dist.strategies.base.DistributedStrategy",
        "retina_dist.strategies.settings.StrategySettings",
    ),
    Seam("logging", "retina_dist.reporting.loggers.MetricLogger", "retina_dist.reporting.settings.LoggingConfig"),
)


@functools.cache
def load_plugins() -> bool:
    """Call the installed packages' entry points of the group `retina_dist.plugins`; whether there are any."""
    found = entry_points(group=PLUGINS)
    for plugin in found:
        try:
            plugin.load()()
        except Exception as error:
            raise ConfigError(
                f"the installed plugin {plugin.name} ({plugin.value}) cannot be loaded ({type(error).__name__}: {error}); repair "
                "or uninstall its package."
            ) from error
    return bool(found)


def schema_with(schema: type, groups: Mapping[str, Any]) -> type:
    """A command's `schema` with the sections of the chosen task and of the classes that composed settings name by `_target_`.

    Raises ConfigError unless each is a class that implements its seam's contract.
    """
    if not issubclass(schema, RunConfig):
        return schema
    sections: list[tuple[str, type, Any]] = []
    task = groups.get("task")
    if isinstance(task, dict) and names_class(task):
        implementation, settings = _implementation(TASK, task["_target_"])
        schema = _with_sections(schema, settings)
        sections.append(_section(groups, "task", _OutsideTask, implementation))
    else:
        name = task.get("name") if isinstance(task, dict) else None
        schema = schema_of_task(name if name in TASKS else TASKS[0], schema)
    for seam in SEAMS:
        if names_class(groups.get(seam.group)) and _takes(schema, seam):
            implementation, settings = _implementation(seam, groups[seam.group]["_target_"])
            sections.append(_section(groups, seam.group, settings, implementation))
    return make_dataclass(schema.__name__, sections, bases=(schema,)) if sections else schema


def _takes(schema: type, seam: Seam) -> bool:
    """Whether entries of the seam's group may name a class; of data and model, where they are detection's."""
    if seam not in (DATA, MODEL):
        return True
    built_in = schema_of_task(TASKS[0])
    return bool(get_type_hints(schema)[seam.group] is get_type_hints(built_in)[seam.group])


def names_class(section: Any) -> bool:
    """Whether a section of the settings names a class, which is from outside the package."""
    return isinstance(section, dict) and "_target_" in section


def without_outside(content: Any) -> Any:
    """Settings that a file holds without what only a class from outside the package would read; none is imported.

    Raises ConfigError where their task or model is from outside the package.
    """
    if not isinstance(content, dict):
        return content
    if names_class(content):  # the data of a checkpoint
        return _shared(DATA, content)
    for seam in (TASK, MODEL):
        if names_class(content.get(seam.group)):
            raise ConfigError(
                f"the checkpoint's {seam.group} is of a class from outside the package, which no checkpoint imports; use one "
                f"of a built-in {seam.group}."
            )
    return content | {s.group: _shared(s, content[s.group]) for s in SEAMS if names_class(content.get(s.group))}


def _shared(seam: Seam, section: dict[str, Any]) -> dict[str, Any]:
    """The settings of a section that the built-in classes of the seam have too."""
    shared = {f.name for f in fields(import_class(seam.group, seam.settings, object))}
    return {k: v for k, v in section.items() if k in shared and (k != "name" or seam is DATA)}


def import_class(key: str, name: Any, *kinds: type) -> type:
    """The class `name`, which the setting `key` gives; a subclass of one of `kinds`. Raises ConfigError."""
    module, _, attribute = str(name).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{key}={name} cannot be imported ({error}).") from error
    if not (isinstance(found, type) and issubclass(found, kinds)):
        words = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{key}={name} is not a class of the kind {words}; name one, or leave it out.")
    return found


def _implementation(seam: Seam, target: Any) -> tuple[type, type]:
    """The class `target` and its settings. Raises ConfigError."""
    key = f"{seam.group}._target_"
    contract, base = (import_class(seam.group, name, object) for name in (seam.contract, seam.settings))
    found = import_class(key, target, contract)
    settings = getattr(found, "settings", None)
    if not (isinstance(settings, type) and is_dataclass(settings) and issubclass(settings, base)):
        kind = "dataclass" if base is object else f"dataclass below {base.__name__}"
        raise ConfigError(f"{key}={target} has no settings; give it a {kind} as `settings`.")
    return found, settings


def _section(groups: Mapping[str, Any], group: str, settings: type, implementation: type) -> tuple[str, type, Any]:
    """The field of `group`: `settings` whose instances know their class as `implementation`."""
    target = groups[group]["_target_"]
    named = ("_target_", str, setting(target, choices=(target,)))
    section = make_dataclass(
        settings.__name__, [named], bases=(settings,), namespace={"implementation": implementation}
    )
    return group, section, field(default_factory=section)


@dataclass
class _OutsideTask(TaskConfig):
    """Which task from outside the package is trained; its settings stand in sections beside this one."""

    name: str = setting(MISSING, "the group entry's name")


def _with_sections(schema: type, settings: type) -> type:
    """`schema`, a command's settings that hold a training's, with a task's `settings` in place of detection's.

    Raises ConfigError where these take a key of the run.
    """
    of_command = {f.name for f in fields(schema)} - {f.name for f in fields(RunConfig)}
    names = {f.name for f in fields(settings)} - {"data", "model"}
    if taken := names & ({f.name for f in fields(RunConfig)} | of_command):
        raise ConfigError(
            f"{settings.__name__}.{min(taken)} is a key of every run; give the task's section another name."
        )
    for name, base in (("data", DataSettings), ("model", ModelSettings)):
        kind = get_type_hints(settings).get(name, base)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise ConfigError(f"{settings.__name__}.{name} is not a dataclass below {base.__name__}; make it one.")

    def check(self: Any) -> None:
        for base in (settings, RunConfig):
            getattr(base, "check", lambda config: None)(self)

    added = [(f.name, get_type_hints(schema)[f.name], copy.copy(f)) for f in fields(schema) if f.name in of_command]
    return make_dataclass(schema.__name__, added, bases=(settings, RunConfig), namespace={"check": check})
