"""Classes from outside the package that a config group's entry names by `_target_`.

An entry outside is found by hydra.searchpath, --config-dir, or the entry point group `retina_dist.plugins`: functions that store
entries in Hydra's ConfigStore. The class is imported for the command line's composition only; a checkpoint's settings are data.
"""

from __future__ import annotations

import copy
import functools
import importlib
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from retina_dist.config.builtin_tasks import schema_of_task
from retina_dist.config.run_config import TASKS, DataSettings, ModelSettings, RunConfig, TaskConfig
from retina_dist.detection.settings import DetectionData, DetectionRunConfig, ModelConfig
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
DETECTION = {DATA: DetectionData, MODEL: ModelConfig}  # where the task has these sections
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


def schema_with(schema: type, groups: dict[str, Any]) -> type:
    """`schema` with the settings of the classes that `groups`, a composition without types, names by `_target_`.

    A task's settings stand in place of detection's. Raises ConfigError unless each is a class that implements its seam's contract.
    """
    sections: list[tuple[str, type, Any]] = []
    task = groups.get(TASK.group)
    if isinstance(task, dict) and task.get("name") in TASKS and not names_class(task):
        schema = schema_of_task(task["name"], schema)
    if names_class(groups.get(TASK.group)):
        implementation, settings = _implementation(TASK, groups["task"]["_target_"])
        schema = _with_sections(settings, schema)
        sections.append(_section(groups, TASK.group, _OutsideTask, implementation))
    for seam in SEAMS:
        if seam in DETECTION and get_type_hints(schema).get(seam.group) is not DETECTION[seam]:
            continue
        if names_class(groups.get(seam.group)):
            implementation, settings = _implementation(seam, groups[seam.group]["_target_"])
            sections.append(_section(groups, seam.group, settings, implementation))
    return make_dataclass(schema.__name__, sections, bases=(schema,)) if sections else schema


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


def _section(groups: dict[str, Any], group: str, settings: type, implementation: type) -> tuple[str, type, Any]:
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


def _with_sections(settings: type, schema: type) -> type:
    """`schema`, a command's settings that hold a training's, for a task that has `settings`.

    Raises ConfigError where these take a key of the run.
    """
    of_command = {f.name for f in fields(schema)} - {f.name for f in fields(DetectionRunConfig)}
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
