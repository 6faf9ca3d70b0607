"""Checks of the arguments and types of settings that are made in Python."""

from __future__ import annotations

import dataclasses
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_type_hints

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, is_of, limits_of, wrong_type
from retina_dist.base.unknown_keys import unknown_argument

T = TypeVar("T")


class KnownArguments:
    """Base of settings: an unknown argument is a ConfigError with the closest known one."""

    @classmethod
    def public_name(cls) -> str:
        """The class that makes these settings."""
        return cls.__name__

    def __new__(cls: type[T], *args: object, **kwargs: object) -> T:
        known = getattr(cls, "__dataclass_fields__", {}).keys()
        for key in sorted(kwargs.keys() - known):
            raise ConfigError(unknown_argument(_public_name(cls), cls, key))
        return object.__new__(cls)


def check_types(config: Any, schema: type, prefix: str = "") -> None:
    """Raise ConfigError for the first field that is not set or of another type than `schema`'s."""
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        hint = hints[field.name]
        if isinstance(value, str) and value == MISSING:
            raise ConfigError(f"{key} is not set; give {_public_name(schema)}({field.name}=…).")
        if not is_of(value, hint):
            raise ConfigError(wrong_type(key, value, hint, limits_of(schema, field.name).remedy))
        if is_dataclass(value):
            check_types(value, type(value), f"{key}.")


def _public_name(schema: type) -> str:
    if issubclass(schema, KnownArguments):
        return schema.public_name()
    return schema.__name__
