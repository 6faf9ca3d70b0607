"""Settings, each stated once on the field of a dataclass: type, default, meaning and limits; and the checks of all of them.

A dataclass of settings may have a method `check`, which raises ConfigError where its settings exclude each other.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import operator
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from retina_dist.base.errors import ConfigError

T = TypeVar("T")
MISSING: Any = "???"  # a setting without a default; omegaconf's sign for it


@dataclass(frozen=True)
class Limits:
    """Limits of a setting or of a list's items. `words` are allowed beside numbers; `writes`: "folder", "file", "folder or URL"."""

    text: str = ""
    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None
    null_is_off: bool = False
    words: tuple[str, ...] = ()
    writes: str = ""

    def problem(self, key: str, value: Any) -> str:
        """The sentence of the first limit that `value` breaks, "" if it breaks none; only a choice may forbid None."""
        if self.choices and value not in self.choices:
            spelled = {str(choice).lower(): choice for choice in self.choices}
            near = difflib.get_close_matches(str(value).lower(), spelled, 1)
            hint = f"; did you mean {spelled[near[0]]}?" if near else "."
            return f"{key}={value} is not one of {', '.join(map(str, self.choices))}{hint}"
        if self.words and isinstance(value, str) and value not in self.words:
            return f"{key}={value} is neither a number nor {' or '.join(self.words)}."
        if value is None or value in self.words:
            return ""
        bounds = (
            (self.at_least, operator.lt, "too small; it must be at least"),
            (self.above, operator.le, "too small; it must be above"),
            (self.below, operator.ge, "too large; it must be below"),
            (self.at_most, operator.gt, "too large; it must be at most"),
        )
        off = f"; {key}=null turns it off" if self.null_is_off else ""
        broken = (
            f"{text} {bound}"
            for bound, breaks, text in bounds
            if bound is not None and breaks(value, bound)
        )
        return next((f"{key}={value} is {text}{off}." for text in broken), "")


def setting(default: Any, text: str = "", **limits: Any) -> Any:
    """A dataclass field with its default (lists are copied), its meaning in words and its `Limits`; `fraction=True` is 0 to 1."""
    if limits.pop("fraction", False):
        limits |= {"at_least": 0, "at_most": 1}
    metadata = {"limits": Limits(text, **limits)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def limits_of(schema: Any, name: str) -> Limits:
    """The limits of the field `name` of a dataclass or its instance."""
    limits: Limits = schema.__dataclass_fields__[name].metadata.get("limits", Limits())
    return limits


class KnownArguments:
    """Base of settings that are made in Python: an unknown argument is a ConfigError with the closest known one."""

    @classmethod
    def public_name(cls) -> str:
        """The class that makes these settings in Python."""
        return cls.__name__

    def __new__(cls: type[T], *args: object, **kwargs: object) -> T:
        for key in sorted(kwargs.keys() - getattr(cls, "__dataclass_fields__", {}).keys()):
            from retina_dist.base.unknown_keys import no_argument

            raise ConfigError(no_argument(cls, key))
        return object.__new__(cls)


def settings_by_key(
    schema: type, prefix: str = "", sections: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Each dotted key of a schema and its type, sections included; `sections` are the dataclasses of its own ones, if others."""
    keys: dict[str, Any] = {}
    for name, hint in _hints(schema, sections).items():
        key = f"{prefix}{name}"
        keys[key] = hint
        if section := section_of(hint):
            keys |= settings_by_key(section, f"{key}.")
    return keys


def sections_of(schema: type) -> dict[str, type]:
    """The dataclass of each of a schema's own sections that is not optional."""
    hints = _hints(schema)
    return {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }


def _hints(schema: type, sections: Mapping[str, type] | None = None) -> dict[str, Any]:
    """The type of each field of a schema, of a section as `sections` has it."""
    hints = get_type_hints(schema)
    own = {field.name: hints[field.name] for field in dataclasses.fields(schema)}
    return own | dict(sections or {})


def defaults_of(config: Any) -> dict[str, Any]:
    """The default of each setting, sections as they are chosen in `config`; MISSING for one without."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default = default_of(field)
        if is_dataclass(value) and default is not None:
            default = defaults_of(value)
        defaults[field.name] = default
    return defaults


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default, MISSING without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def section_of(hint: Any) -> type | None:
    """The dataclass of a section, which may be optional; None for the type of a setting."""
    return next(
        (kind for kind in _kinds(hint) if isinstance(kind, type) and is_dataclass(kind)), None
    )


def make(
    schema: type[T],
    content: Mapping[str, Any],
    prefix: str = "",
    sections: Mapping[str, type] | None = None,
) -> T:
    """The settings `schema` with the values of a command line or a file, and defaults for the others.

    `sections` are the dataclasses of its sections, if others than the schema's. A whole number becomes a float or a text where
    the setting is one. Raises ConfigError for an unknown key or another type.
    """
    hints = _hints(schema, sections)
    values: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise ConfigError(f"{key} is not a setting.")
        section = section_of(hints[name])
        if section and isinstance(value, Mapping):
            values[name] = make(section, value, f"{key}.")
            continue
        value = _coerced(value, hints[name], limits_of(schema, name))
        if not _is_of(value, hints[name]) and value != MISSING:
            raise ConfigError(wrong_type(key, value, hints[name]))
        values[name] = value
    return schema(**values)


def _coerced(value: Any, hint: Any, limits: Limits) -> Any:
    kinds = _kinds(hint)
    if isinstance(value, list):
        items = next((get_args(kind)[0] for kind in kinds if get_origin(kind) is list), Any)
        return [_coerced(item, items, limits) for item in value]
    if isinstance(value, bool):  # of a setting such as auto, true or false
        text = str(value).lower()
        return text if text in limits.choices else value
    if isinstance(value, int | float) and int not in kinds:
        return float(value) if float in kinds else str(value) if str in kinds else value
    return value


_WORDS = {int: "whole number", float: "number", str: "text", bool: "switch"}
_REMEDIES = {
    int: "one in digits",
    float: "one in digits",
    str: "it in quotes",
    bool: "true or false",
}


def wrong_type(key: str, value: Any, hint: Any) -> str:
    """The sentence for a value of another type than `hint`, with how to write one."""
    given = (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    given = given.replace("'", "").replace(", ", ",")[:80]
    sentence = f"{key}={given} is not {_in_words(hint)}"
    if (key, given) == ("data.batch_size", "auto"):
        return f"{sentence}; give one, and trainer.accumulate=auto to fit it into the memory."
    depth = str(hint).count("list[") - (len(given) - len(given.lstrip("[")))
    if depth > 0 and value is not None:
        return f"{sentence}; write {key}={'[' * depth}{given}{']' * depth}."
    if depth < 0:
        return f"{sentence}; write one, or several without brackets with --multirun."
    remedy = next((_REMEDIES[kind] for kind in _kinds(hint) if kind in _REMEDIES), "")
    return f"{sentence}; write {remedy}." if remedy else f"{sentence}."


def _in_words(hint: Any, plural: bool = False) -> str:
    """A type in plain words, such as "a list of whole numbers"."""
    kind, *others = [kind for kind in _kinds(hint) if kind is not type(None)]
    words = f"{_WORDS.get(kind, 'list' if get_args(kind) else 'section')}{'s' * plural}{' or auto' if others else ''}"
    items = f" of {_in_words(get_args(kind)[0], plural=True)}" if get_args(kind) else ""
    return f"{'' if plural else 'a '}{words}{items}"


def check_types(config: Any, schema: type, prefix: str = "") -> None:
    """Raise ConfigError for the first field, sections included, that is not set or has another type; of settings made in Python."""
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        key, value, hint = f"{prefix}{field.name}", getattr(config, field.name), hints[field.name]
        if isinstance(value, str) and value == MISSING:
            raise ConfigError(f"{key} is not set; give {public_name(schema)}({field.name}=…).")
        if not _is_of(value, hint):
            raise ConfigError(wrong_type(key, value, hint))
        if is_dataclass(value):
            check_types(value, type(value), f"{key}.")


def public_name(schema: type) -> str:
    """The class that makes settings of the type `schema` in Python."""
    return schema.public_name() if issubclass(schema, KnownArguments) else schema.__name__


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union, else the type itself."""
    return get_args(hint) if get_args(hint) and get_origin(hint) is not list else (hint,)


def _is_of(value: Any, hint: Any) -> bool:
    if len(_kinds(hint)) > 1:
        return any(_is_of(value, kind) for kind in _kinds(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_is_of(item, *get_args(hint)) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def validate(config: Any, prefix: str = "") -> None:
    """Raise ConfigError for the first value that is impossible, by its key, sections included."""
    for field in dataclasses.fields(config):
        key, value = f"{prefix}{field.name}", getattr(config, field.name)
        if is_dataclass(value):
            validate(value, f"{key}.")
            continue
        limits, items = limits_of(config, field.name), [item for _, item in leaves(value, key)]
        if not items and limits != Limits(limits.text):
            raise ConfigError(f"{key}=[] is empty; give at least one value.")
        for item in items:
            check_value(key, item)
            if problem := limits.problem(key, item):
                raise ConfigError(problem)
    if hasattr(config, "check"):
        config.check()


def check_value(key: str, value: Any) -> None:
    """Raise ConfigError for an infinite number, a number beyond 64 bits or a control character."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{key}={value} is too large; it must be below 2^63.")
    if isinstance(value, str) and any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ConfigError(f"{key}={value!r} has a control character; leave it out.")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything but dictionaries; the items of a list have the list's key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every setting by its dotted key, as on the command line.

    >>> flattened({"data": {"sizes": [64, 96], "root": None}, "seed": 1})
    {'data.sizes': '[64, 96]', 'data.root': 'null', 'seed': '1'}
    """
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat
