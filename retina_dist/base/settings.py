"""Settings, each stated once on the field of a dataclass, and their checks.

A dataclass of settings may have a method `check`, which raises ConfigError where its settings
exclude each other.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from typing_extensions import TypeIs

from retina_dist.base.errors import ConfigError
from retina_dist.base.other_names import value_meant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
S = TypeVar("S", bound="DataclassInstance")
Content = dict[str, Any]  # settings as a file has them: values, and sections by name
MISSING: Any = "???"  # a setting without a default; omegaconf's sign for it


@runtime_checkable
class Checked(Protocol):
    """Settings, or their class, with rules between them."""

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""


def is_settings(value: object) -> TypeIs[DataclassInstance]:
    """Whether a value is a section of settings."""
    return is_dataclass(value) and not isinstance(value, type)


@dataclass(frozen=True)
class Limits:
    """What a setting, or each item of a list, may be.

    Args:
        text: the meaning, for people.
        choices: all values, or a function that returns them.
        at_least, above, below, at_most: bounds of a number.
        null_is_off: whether an error says that null turns the setting off.
        words: what may stand for a number, such as "auto".
        writes: what is written there: "folder", "file" or "folder or URL".
        remedy: what an error about its type says to do.
    """

    text: str = ""
    choices: tuple[object, ...] | Callable[[], tuple[object, ...]] = ()
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None
    null_is_off: bool = False
    words: tuple[str, ...] = ()
    writes: str = ""
    remedy: str = ""

    @property
    def options(self) -> tuple[object, ...]:
        """All values that the setting may have, () where they are not listed."""
        return self.choices() if callable(self.choices) else self.choices

    def problem(self, key: str, value: object) -> str:
        """The sentence of the first limit that `value` breaks, "" if it breaks none.

        Only a choice may forbid None.
        """
        options = self.options
        if options and value not in options:
            sentence = f"{key}={as_text(value)} is not one of {', '.join(map(as_text, options))}"
            meant = value_meant(key, value, options)
            if " " in str(meant):
                return f"{sentence}; {meant}."
            if meant:
                return f"{sentence}; did you mean {meant}?"
            return f"{sentence}; give one of them."
        if self.words and isinstance(value, str) and value not in self.words:
            wrong = f"{key}={as_text(value)} is not {' or '.join(self.words)}"
            return "; ".join(filter(None, (wrong, self.remedy))) + "."
        if value is None or value in self.words:
            return ""

        off = f"{key}=null turns it off" if self.null_is_off else ""
        broken = self._broken_bound(value)
        parts = filter(None, (broken, str(value_meant(key, value, ())), off))
        return broken and f"{key}={value} is {'; '.join(parts)}."

    def _broken_bound(self, value: Any) -> str:
        if self.at_least is not None and value < self.at_least:
            return f"too small; it must be at least {self.at_least}"
        if self.above is not None and value <= self.above:
            return f"too small; it must be above {self.above}"
        if 1 in (self.below, self.at_most) and value >= 10:  # a share, given as percent
            return f"too large; write {value:g}% as {value / 100:g}"
        if self.below is not None and value >= self.below:
            return f"too large; it must be below {self.below}"
        if self.at_most is not None and value > self.at_most:
            return f"too large; it must be at most {self.at_most}"
        return ""


def entry_name(name: str) -> str:
    """The field `name` of an entry's settings, which has this value only."""
    return setting(name, choices=(name,))


def setting(default: T, text: str = "", *, fraction: bool = False, **limits: Any) -> T:
    """A dataclass field with its default, which is copied if it is a list, and its `Limits`.

    `text` is its meaning; `fraction=True` is a number from 0 to 1.
    """
    if fraction:
        limits |= {"at_least": 0, "at_most": 1, "remedy": "write a number from 0 to 1"}
    metadata = {"limits": Limits(text, **limits)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=partial(copy.deepcopy, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def limits_of(schema: DataclassInstance | type[DataclassInstance], name: str) -> Limits:
    """The limits of the field `name` of a dataclass or its instance."""
    limits: Limits = schema.__dataclass_fields__[name].metadata.get("limits", Limits())
    return limits


def default_of(field: dataclasses.Field[T]) -> T:
    """A field's default, MISSING without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        return MISSING
    return field.default


def defaults_of(config: DataclassInstance) -> Content:
    """The default of each setting, MISSING for one without."""
    defaults: Content = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default = default_of(field)
        if is_settings(value) and default is not None:
            default = defaults_of(value)
        defaults[field.name] = default
    return defaults


def is_known(key: str, known: Mapping[str, object]) -> bool:
    """Whether a dotted key is one of `settings_by_key`, or an item of a setting that maps names."""
    if key in known:
        return True
    for name, hint in known.items():
        is_item = key.startswith(f"{name}.")
        if is_item and any(get_origin(kind) is dict for kind in kinds_of(hint)):
            return True
    return False


def section_of(hint: object) -> type | None:
    """The dataclass of a section, which may be optional; None for the type of a setting."""
    for kind in kinds_of(hint):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def sections_of(schema: type) -> dict[str, type]:
    """The dataclass of each of a schema's own sections that is not optional."""
    hints = _hints(schema).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}


def settings_by_key(
    schema: type, prefix: str = "", sections: Mapping[str, type] | None = None
) -> Content:
    """Each dotted key of a schema and its type, sections included.

    `sections` are the dataclasses of the schema's own sections, where they are others than it says.
    """
    keys: Content = {}
    for name, hint in _hints(schema, sections).items():
        key = f"{prefix}{name}"
        keys[key] = hint
        section = section_of(hint)
        if section:
            keys |= settings_by_key(section, f"{key}.")
    return keys


def _hints(schema: type, sections: Mapping[str, type] | None = None) -> Content:
    """The type of each field of a schema; of a section, what `sections` has."""
    hints = get_type_hints(schema) | dict(sections or {})
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def make(
    schema: type[S],
    content: Mapping[str, object],
    prefix: str = "",
    sections: Mapping[str, type] | None = None,
) -> S:
    """The settings `schema` with given values, and defaults for the others.

    `sections` are as in `settings_by_key`. A whole number becomes a float or a text where the
    setting is one. Raises ConfigError for an unknown key or another type.
    """
    hints = _hints(schema, sections)
    values: Content = {name: kind() for name, kind in (sections or {}).items()}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in hints:
            if "." in name:
                raise ConfigError(
                    f"{key} is written with a point in a file; "
                    "write the part after it below, as in data: {root: FOLDER}."
                )
            raise ConfigError(f"{key} is not a setting.")

        section = section_of(hints[name])
        if section and isinstance(value, Mapping):
            values[name] = make(section, value, f"{key}.")
            continue

        limits = limits_of(schema, name)
        value = _coerced(value, hints[name], limits)
        if not is_of(value, hints[name]) and value != MISSING:
            raise ConfigError(wrong_type(key, value, hints[name], limits))
        values[name] = value
    return schema(**values)


def _coerced(value: object, hint: object, limits: Limits) -> object:
    """`value` in the type of the setting where YAML or the command line reads another."""
    kinds = kinds_of(hint)
    if isinstance(value, list):
        for kind in kinds:
            if get_origin(kind) is list:
                return [_coerced(each, get_args(kind)[0], limits) for each in value]
        return value
    if isinstance(value, dict):  # whose names YAML may read as numbers
        return dict(zip(map(str, value), value.values(), strict=True))
    if isinstance(value, bool):  # of a setting such as auto, true or false
        word = str(value).lower()
        return word if word in limits.options else value
    if isinstance(value, int | float) and int not in kinds:
        for kind in (float, str):
            if kind in kinds:
                return kind(value)
    return value


def kinds_of(hint: object) -> tuple[Any, ...]:
    """The members of a union, else the type itself."""
    if get_origin(hint) in (list, dict):
        return (hint,)
    return get_args(hint) or (hint,)


def is_of(value: object, hint: Any) -> bool:
    """Whether a value has the type of a setting."""
    kinds = kinds_of(hint)
    if len(kinds) > 1:
        return any(is_of(value, kind) for kind in kinds) and value not in ("None", "none")
    if get_origin(hint) is dict:
        kind = get_args(hint)[1]
        return isinstance(value, dict) and all(is_of(each, kind) for each in value.values())
    if get_origin(hint) is list:
        return isinstance(value, list) and all(is_of(each, *get_args(hint)) for each in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "switch",
    dict[str, float]: "mapping",
}
_REMEDIES = {
    int: "one in digits",
    float: "one in digits, such as 0.1",
    str: "it in quotes, in Python str(VALUE)",
    bool: "true or false",
}
_OWN = {
    "DetectionData": (
        ", or rd.TorchDatasetConfig(train=…, val=…, categories=[…]) for your own Datasets"
    ),
    "OptimizerConfig": ", where lr is required, such as name='sgd', lr=0.01",
    "ModelConfig": ", which builds torchvision's RetinaNet",
    "ClassifierConfig": ", such as architecture='resnet50'",
    "ClassificationData": ", such as root='FOLDER'",
    "ScheduleConfig": ", such as name='cosine'",
    "LoggingConfig": (
        ", such as tensorboard=False; docs/extending.md has a logger for Weights & Biases"
    ),
}
_MEANT = {
    ("data", "ClassificationData"): "give it to rd.ClassifierTrainer",
    ("data", "DetectionData"): "give it to rd.Trainer",
    ("model", "ClassifierConfig"): "give it to rd.ClassifierTrainer",
}


def as_text(value: object) -> str:
    """A value as it is written on a command line, so that the text '100' is not the number 100.

    >>> as_text("100"), as_text(100), as_text("adamw"), as_text(None), as_text(["a", 1])
    ("'100'", '100', 'adamw', 'null', '[a,1]')
    >>> as_text({"cat": 2, "dog": 0.5})
    '{cat: 2, dog: 0.5}'
    """
    if isinstance(value, list):
        return f"[{','.join(map(as_text, value))}]"
    if isinstance(value, dict):
        items = [f"{name}: {as_text(each)}" for name, each in value.items()]
        return f"{{{', '.join(items)}}}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        return str(value)
    if value.lower() in ("null", "true", "false", "") or _is_number(value):
        return f"'{value}'"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def wrong_type(key: str, value: object, hint: object, limits: Limits) -> str:
    """The sentence for a value of another type than `hint`, with how to write one."""
    problem = limits.options and limits.problem(key, value)
    remedy = (
        str(value_meant(key, value, ()))
        or limits.remedy
        or (limits.writes and f"give a {limits.writes}")
    )
    if str(value).lower() in ("none", "off", "no", "false") and type(None) in kinds_of(hint):
        remedy = f"write {key}=null"
    if int in kinds_of(hint) and re.fullmatch(r"\d+(-|:|\.\.)\d+", str(value)):
        remedy = f"write one, or all with commas and --multirun, as {key}=1,2,3"
    if str(value).endswith("%"):
        remedy = "write a share for percent, as 0.2 for 20%"
    return problem or _wrong_type(key, value, hint, remedy)


def _wrong_type(key: str, value: object, hint: object, remedy: str) -> str:
    given = type(value).__name__
    if isinstance(value, str | int | float | list | dict | None):
        given = as_text(value)[:80]
    sentence = f"{key}={given} is not {_in_words(hint)}"
    remedy = _MEANT.get((key, given), remedy)
    if remedy:
        return f"{sentence}; {remedy}."

    depth = str(hint).count("list[") - (len(given) - len(given.lstrip("[")))
    if depth > 0 and value is not None:
        return f"{sentence}; write {key}={'[' * depth}{given}{']' * depth}."
    if depth < 0:
        return f"{sentence}; write one, or several without brackets with --multirun."

    bare = given.strip("'")
    if bare != given:
        return f"{sentence}; write {key}={bare} without quotes."
    for kind in kinds_of(hint):
        if isinstance(value, bool) and kind is str:
            return f"{sentence}; write one, or leave {key} out."
        if kind in _REMEDIES:
            return f"{sentence}; write {_REMEDIES[kind]}."
    if "list" in str(hint):
        return f"{sentence}; write {_list_of_numbers(key, given)}."
    section = kinds_of(hint)[0].__name__.replace("DetectorSettings", "ModelConfig")
    sentence += f"; give {key}.NAME=VALUE, in Python rd.{section}(NAME=VALUE)"
    sentence += _OWN.get(section, "")
    return f"{sentence}, in a file's defaults - override /{key}: NAME."


def _list_of_numbers(key: str, given: str) -> str:
    items = re.sub(r"(?<=[\d.]) +(?=[\d.-])", ",", given)
    if items == given:
        return "each item in digits, 1:2 as 0.5"
    return f'"{key}={items}", with commas'


def _in_words(hint: object, plural: bool = False) -> str:
    """A type in plain words, such as "a list of whole numbers"."""
    kind, *others = (each for each in kinds_of(hint) if each is not type(None))
    items = get_args(kind)
    words = _WORDS.get(kind, "section" if is_dataclass(kind) else kind.__name__)
    if plural:
        words = f"{words}s"
    if items:
        words = f"{words} of {_in_words(items[-1], plural=True)}"
    if others and not is_dataclass(kind):
        words = f"{words} or auto"
    if plural:
        return words
    return f"a {words}"


def validate(config: DataclassInstance, prefix: str = "") -> None:
    """Raise ConfigError for the first value that is impossible, by its key, sections included."""
    for field in dataclasses.fields(config):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if is_settings(value):
            validate(value, f"{key}.")
            continue

        limits = limits_of(config, field.name)
        items = list(leaves(value, key))
        if not items and limits != Limits(limits.text):
            raise ConfigError(f"{key}={value} is empty; give at least one value.")
        for name, item in items:
            check_value(name, item)
            problem = limits.problem(name, item)
            if problem:
                raise ConfigError(problem)
    if isinstance(config, Checked):
        config.check()


def check_value(key: str, value: object) -> None:
    """Raise ConfigError for an infinite number, a number beyond 64 bits or a control character."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{key}={value} is too large; it must be below 2^63.")
    if isinstance(value, str) and any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ConfigError(f"{key}={value!r} has a control character; leave it out.")


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of all but dictionaries; items of a list have the list's key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def flattened(settings: Mapping[str, object], prefix: str = "") -> dict[str, str]:
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
