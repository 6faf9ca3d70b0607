"""Classes from outside the package that a config group's entry names by `_target_`.

An entry outside is found by hydra.searchpath, --config-dir, or the entry point group `retina_dist.plugins`: functions that store
entries in Hydra's ConfigStore. The class is imported for the command line's composition only; a checkpoint's settings are data.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from retina_dist.base.errors import ConfigError, describe_error
from retina_dist.base.settings import MISSING, section_of, setting
from retina_dist.config.run_config import (
    TASKS,
    RunConfig,
    TaskConfig,
    contract_of,
    names_class,
    schema_of_task,
    with_sections,
)


@functools.cache
def load_plugins() -> None:
    """Call the installed packages' entry points of the group `retina_dist.plugins`. Raises ConfigError for a broken one."""
    for plugin in entry_points(group="retina_dist.plugins"):
        try:
            plugin.load()()
        except Exception as error:
            problem = f"the installed plugin {plugin.name} ({plugin.value}) cannot be loaded ({describe_error(error)})"
            raise ConfigError(f"{problem}; repair or uninstall its package.") from error


@dataclass
class _OutsideTask(TaskConfig):
    """Which task from outside the package is trained; its settings stand in sections beside this one."""

    name: str = setting(MISSING, "the group entry's name")


def schema_with(schema: type, content: Mapping[str, Any]) -> type:
    """A command's `schema` with the sections of the chosen task and of the classes that entries name. Raises ConfigError."""
    if not issubclass(schema, RunConfig):
        return schema
    sections: dict[str, type] = {}
    task = content.get("task")
    if isinstance(task, Mapping) and names_class(task):
        implementation, settings = _implementation(
            "task", task["_target_"], TaskConfig.contract, object
        )
        schema = with_sections(schema, settings)
        sections["task"] = _section(task["_target_"], _OutsideTask, implementation)
    else:
        name = task.get("name") if isinstance(task, Mapping) else None
        schema = schema_of_task(name if name in TASKS else TASKS[0], schema)
    for group, hint in get_type_hints(schema).items():
        contract = contract_of(section_of(hint))
        if contract and group != "task" and names_class(content.get(group)):
            target = content[group]["_target_"]
            implementation, settings = _implementation(group, target, *contract)
            sections[group] = _section(target, settings, implementation)
    added = [(group, kind, field(default_factory=kind)) for group, kind in sections.items()]
    return make_dataclass(schema.__name__, added, bases=(schema,)) if added else schema


def take_outside(content: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Take `task`, `model` and `data` out of composed settings; return `OfCheckpoint`'s values. Raises ConfigError."""
    outside: dict[str, Any] = {}
    if not any(key.startswith("data.") for key in given):
        content.pop("data", None)  # of the task's entry
    for group, hint in get_type_hints(schema_of_task(TASKS[0])).items():
        if group not in ("task", "model") or group not in content:
            continue
        section = content.pop(group)
        if names_class(section):
            contract, base = contract_of(section_of(hint)) or ("", object)
            is_task, target = group == "task", section["_target_"]
            implementation, settings = _implementation(
                group, target, contract, object if is_task else base
            )
            outside[f"outside_{group}"] = (
                implementation if is_task else _section(target, settings, implementation)
            )
        elif group in given:
            raise ConfigError(
                f"a checkpoint names a {group} of the package itself; leave {group}=… out."
            )
        elif any(key.startswith(f"{group}.") for key in given):
            content[group] = section  # whose keys are unknown
    return outside


def _implementation(group: str, target: Any, contract: str, base: type) -> tuple[type, type]:
    """The class `target` and its settings. Raises ConfigError unless it keeps `contract` and these are below `base`."""
    module, _, name = contract.rpartition(".")
    kind = getattr(import_module(module), name)
    key = f"{group}._target_={target}"
    module, _, name = str(target).rpartition(".")
    try:
        implementation = getattr(import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{key} cannot be imported ({error}).") from error
    if not (isinstance(implementation, type) and issubclass(implementation, kind)):
        raise ConfigError(
            f"{key} is not a class of the kind {kind.__name__}; name one, or leave it out."
        )
    settings = getattr(implementation, "settings", None)
    if not (isinstance(settings, type) and is_dataclass(settings) and issubclass(settings, base)):
        raise ConfigError(
            f"{key} has no settings; give it a dataclass below {base.__name__} as `settings`."
        )
    return implementation, settings


def _section(target: str, settings: type, implementation: type) -> type:
    """`settings` whose instances know their class as `implementation`, and write its name with them."""
    named = ("_target_", str, setting(target, choices=(target,)))
    return make_dataclass(
        settings.__name__, [named], bases=(settings,), namespace={"implementation": implementation}
    )
