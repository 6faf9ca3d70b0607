"""The tasks of the package by their names, which a checkpoint may give; nothing else that it names is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from importlib import import_module
from typing import Any, get_type_hints

from retina_dist.config.run_config import TASKS
from retina_dist.detection.settings import DetectionRunConfig


def builtin_task(name: str) -> Any:
    """The class of a task of the package."""
    return getattr(import_module(f"retina_dist.{name}.task"), f"{name.capitalize()}Task")


def settings_of_task(name: str) -> type:
    """The dataclass of the sections of a task of the package."""
    found: type = getattr(import_module(f"retina_dist.{name}.settings"), f"{name.capitalize()}Settings")
    return found


def schema_of_task(name: str, schema: type = DetectionRunConfig) -> type:
    """`schema`, a command's settings that hold a training's, with the sections of the task `name`."""
    settings = settings_of_task(name)
    hints = get_type_hints(settings)
    if all(get_type_hints(schema)[f.name] is hints[f.name] for f in fields(settings)):
        return schema
    sections = [(f.name, hints[f.name], field(default_factory=hints[f.name])) for f in fields(settings)]
    return make_dataclass(schema.__name__, sections, bases=(schema,))


def task_of_checkpoint(content: Mapping[str, Any]) -> str:
    """The task that a checkpoint was trained for; the first one where it gives none of the package, as a plugin's does."""
    config = content.get("config")
    section = config.get("task") if isinstance(config, Mapping) else None
    name = section.get("name") if isinstance(section, Mapping) and "_target_" not in section else None
    return str(name) if name in TASKS else TASKS[0]
