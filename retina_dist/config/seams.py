"""Classes from outside the package that a config group's entry names by `_target_`. Layer 4.

An entry outside is found by hydra.searchpath, --config-dir, or the entry point group `retina_dist.plugins`: functions that store
entries in Hydra's ConfigStore. The class is imported for the command line's composition only; a checkpoint's settings are data.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from importlib.metadata import entry_points
from typing import Any

from retina_dist.config.fields import setting
from retina_dist.errors import ConfigError

PLUGINS = "retina_dist.plugins"


@dataclass(frozen=True)
class Seam:
    """A group whose entry may name a class: what that must inherit from, and what its `settings` must inherit from."""

    group: str
    contract: str
    settings: str


SEAMS = (
    Seam(
        "strategy",
        "retina_dist.strategies.base.DistributedStrategy",
        "retina_dist.strategies.settings.StrategySettings",
    ),
)


@functools.cache
def load_plugins() -> bool:
    """Call the installed packages' entry points of the group `retina_dist.plugins`; whether there are any."""
    found = entry_points(group=PLUGINS)
    for plugin in found:
        plugin.load()()
    return bool(found)


def schema_with(schema: type, groups: dict[str, Any]) -> type:
    """`schema` with the settings of the classes that `groups`, a composition without types, names by `_target_`.

    Raises ConfigError unless each is a class that implements its seam's contract.
    """
    sections: list[tuple[str, type, Any]] = []
    for seam in SEAMS:
        section = groups.get(seam.group)
        if isinstance(section, dict) and "_target_" in section:
            settings = _settings_of(seam, section["_target_"])
            sections.append((seam.group, settings, field(default_factory=settings)))
    return make_dataclass(schema.__name__, sections, bases=(schema,)) if sections else schema


def without_outside(content: Any) -> Any:
    """Settings that a file holds without the sections that a class from outside the package would read."""
    if not isinstance(content, dict):
        return content
    outside = [s.group for s in SEAMS if isinstance(content.get(s.group), dict) and "_target_" in content[s.group]]
    return {key: value for key, value in content.items() if key not in outside}


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


def _settings_of(seam: Seam, target: Any) -> type:
    """The settings of the class `target`, with the class itself as their `implementation`."""
    key = f"{seam.group}._target_"
    contract, base = (import_class(seam.group, name, object) for name in (seam.contract, seam.settings))
    found = import_class(key, target, contract)
    settings = getattr(found, "settings", None)
    if not (isinstance(settings, type) and is_dataclass(settings) and issubclass(settings, base)):
        raise ConfigError(f"{key}={target} has no settings; give it a dataclass below {base.__name__} as `settings`.")
    named = ("_target_", str, setting(target, choices=(target,)))
    return make_dataclass(settings.__name__, [named], bases=(settings,), namespace={"implementation": found})
