"""The tasks of the package by their names, which a checkpoint may give; nothing else that it names is imported. Layer 1."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

from retina_dist.config.task import TASKS
from retina_dist.config.train import TrainConfig
from retina_dist.errors import CheckpointError


@dataclass(frozen=True)
class BuiltinTask:
    """Where the class of a task is, and the dataclass of its sections."""

    implementation: str
    settings: str


def _parts(name: str) -> BuiltinTask:
    package, kind = f"retina_dist.{name}", name.capitalize()
    return BuiltinTask(f"{package}.task.{kind}Task", f"{package}.settings.{kind}Settings")


BUILTIN = {name: _parts(name) for name in TASKS}


def builtin_task(name: str) -> Any:
    """The class of a task of the package."""
    return _imported(BUILTIN[name].implementation)


def settings_of_task(name: str) -> type:
    """The dataclass of the sections of a task of the package."""
    found: type = _imported(BUILTIN[name].settings)
    return found


def schema_of_task(name: str, schema: type = TrainConfig) -> type:
    """`schema`, a command's settings that hold a training's, with the sections of the task `name`."""
    settings = settings_of_task(name)
    hints = get_type_hints(settings)
    if all(get_type_hints(schema)[f.name] is hints[f.name] for f in fields(settings)):
        return schema
    sections = [(f.name, hints[f.name], field(default_factory=hints[f.name])) for f in fields(settings)]
    return make_dataclass(schema.__name__, sections, bases=(schema,))


def task_of_checkpoint(content: Any, source: object) -> str:
    """The task that a checkpoint, `source`, was trained for. Raises CheckpointError for one that is not of the package."""
    config = content.get("config") if isinstance(content, dict) else None
    section = config.get("task") if isinstance(config, dict) else None
    name = section.get("name") if isinstance(section, dict) else TASKS[0]  # older ones have no such section
    if name not in TASKS or (isinstance(section, dict) and "_target_" in section):
        raise CheckpointError(
            f"{source} is of the task {str(name)[:80]}, which is from outside the package; no checkpoint imports its class: "
            f"use a checkpoint of a task of the package ({', '.join(TASKS)})."
        )
    return str(name)


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
