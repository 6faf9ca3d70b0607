"""Checks of the arguments and types of settings that are made in Python."""

import dataclasses
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, SupportsIndex, TypeVar, get_type_hints

from typing_extensions import ParamSpec, Self

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.base.other_names import value_meant
from retina_dist.base.settings import MISSING, is_of, limits_of, wrong_type
from retina_dist.base.text import truncate
from retina_dist.base.unknown_keys import alias, unknown_argument

# The argument that a text may be meant for where a section's object is asked for.
_FIRST = {"data": "root", "model": "backbone", "logging": ""}
P = ParamSpec("P")
T = TypeVar("T")


def public(function: Callable[P, T]) -> Callable[P, T]:
    """A function of the Python interface: a wrong call is a ConfigError, as is an impossible value.

    The traceback of a UserError has the caller's line alone above the sentence, which says the
    rest.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            _check_call(function, function.__name__, args, kwargs)
            return function(*args, **kwargs)
        except UserError as error:
            raise error.with_traceback(None) from None

    return call


def _check_call(
    function: Callable[..., object], name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Raise ConfigError where `function`, called `name`, does not take these arguments."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        needed = []
        others = []
        for key, parameter in signature.parameters.items():
            if key == "settings" or parameter.default not in (parameter.empty, MISSING):
                others.append(key)
            elif key not in ("self", "cls", "name"):
                needed.append(f"{key}=…")
        hint = f"write {name}({', '.join(needed)})"
        if others:
            hint += f", perhaps with {truncate(others)}, by name"
        unknown = [key for key in kwargs if key not in signature.parameters]
        key = next(iter(unknown), "positional" if "positional" in str(error) else "missing")
        for near in get_close_matches(key, signature.parameters, 1, 0.7):
            hint = f"did you mean {near}? Or {hint}"
        hint = alias(f"{name}.{key}", ()) or hint
        raise ConfigError(f"{name}: {error}; {hint}.") from None


def _is_ours(kind: type) -> bool:
    """Whether this library defines the class. Users may add attributes to classes of their own."""
    return kind.__module__.startswith("retina_dist.")


def no_attribute(owner: str, name: str, known: Iterable[str]) -> str:
    """Message for a name that `owner` does not have: what other libraries call so, or its own."""
    own = [each for each in known if not each.startswith("_")]
    hint = alias(f"rd.{owner}.{name}", ())
    for near in get_close_matches(name, own, 1, 0.7):
        hint = hint or f"use {near}"
    return f"{owner} has no attribute {name}; {hint or 'it has ' + ', '.join(own)}."


class _SuggestingClass(ABCMeta):
    """The class of public classes, so that what they lack names what is meant, too."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> object:
            raise AttributeError(no_attribute(cls.__name__, name, dir(cls)))


class Suggests(metaclass=_SuggestingClass):
    """Base of public classes: an attribute that is not there names what is meant."""

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            kind = type(self)
            if _is_ours(kind) and alias(f"rd.{kind.__name__}.{name}", ()):  # nothing would read it
                raise AttributeError(self._message(name))
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> object:
            raise AttributeError(self._message(name))

        def __getitem__(self, key: object) -> object:
            raise TypeError(self._message(str(key)))

    def _message(self, name: str) -> str:
        return no_attribute(type(self).__name__, name, sorted({*dir(type(self)), *vars(self)}))


class NoKeyError(KeyError):
    """A key that is not there; the message is a sentence, which KeyError alone would quote."""

    def __str__(self) -> str:
        return str(self.args[0])


class Numbers(dict[str, T]):
    """A dictionary whose error for a missing key names the key that was probably meant."""

    def __missing__(self, key: object) -> T:
        raise NoKeyError(self._message(key))

    def _message(self, key: object) -> str:
        meant = str(value_meant("key", key, self, 1) or value_meant("monitor", key, self))
        hint = f"there are {', '.join(self)}"
        if meant:
            hint = meant if " " in meant else f'write ["{meant}"]'
        return f"there is no {key}; {hint}."

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise AttributeError(self._message(name))


class Results(list[T]):
    """A list with one result for each image; its errors say how to get the result of one image."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise AttributeError(_of_one(name))

        def __getitem__(self, key: object) -> object:
            if isinstance(key, str):
                raise TypeError(_of_one(key))
            return super().__getitem__(key)


def _of_one(name: str) -> str:
    return (
        f"the list of results has no {name}; take the result of one image first, as in results[0]."
    )


class KnownArguments:
    """Base of settings: an unknown argument is a ConfigError with the closest known one.

    `family` is a key of `registry.FAMILIES`, "" of settings that choose no class.
    """

    family: ClassVar[str] = ""
    __dataclass_fields__: ClassVar[dict[str, object]]

    @classmethod
    def public_name(cls) -> str:
        """The class that makes these settings."""
        return cls.__name__

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        name = _public_name(cls)
        for key, value in kwargs.items():
            cls._check_name(key, value)
        _check_call(cls.__init__, name, (None, *args), kwargs)  # type: ignore[misc]
        return object.__new__(cls)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        _, *rest = tuple(super().__reduce_ex__(2))
        return object.__new__, *rest  # a copy has no arguments

    def __setattr__(self, name: str, value: object) -> None:
        """Set a value of these settings; another name is a ConfigError, as an argument is."""
        kind = type(self)
        if _is_ours(kind) and not hasattr(kind, name):
            self._check_name(name, value)
        super().__setattr__(name, value)

    @classmethod
    def _check_name(cls, name: str, value: object) -> None:
        if name not in cls.__dataclass_fields__:
            raise ConfigError(unknown_argument(_public_name(cls), cls, name, value))


def check_types(config: object, schema: type, prefix: str = "") -> None:
    """Raise ConfigError for the first field that is not set or of another type than `schema`'s."""
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        hint = hints[field.name]
        if isinstance(value, str) and value == MISSING:
            raise ConfigError(f"{key} is not set; give {_public_name(schema)}({field.name}=…).")
        if not is_of(value, hint):
            _check_plain(key, value, hint)
            limits = limits_of(schema, field.name)
            sentence = wrong_type(key, value, hint, limits)
            raise ConfigError(_in_python(sentence, key, value))
        if is_dataclass(value):
            check_types(value, type(value), f"{key}.")


def _check_plain(key: str, value: object, hint: object) -> None:
    """Raise ConfigError for a value, such as a tuple or NumPy's, that a plain type would hold."""
    if value is None or callable(value) or isinstance(value, str | int | list | dict):
        return
    for kind in (list, float, int) if isinstance(value, tuple) else (float, int, str):
        try:
            plain = kind(value)  # type: ignore[call-overload, arg-type]
        except (TypeError, ValueError):
            continue
        if is_of(plain, hint):
            raise ConfigError(
                f"{key} is of type {type(value).__name__}; "
                f"write {kind.__name__}(VALUE), which is {plain!r}."
            )


def _in_python(sentence: str, key: str, value: object) -> str:
    """The sentence of `wrong_type` without what is for the command line and for files."""
    sentence = sentence.replace(f"{key}=null", f"{key}=None")
    sentence, of_files, _ = sentence.partition(", in a file's")
    if not of_files:
        return sentence
    argument = _FIRST.get(key, "name")
    if isinstance(value, str) and argument:
        sentence = sentence.replace("(NAME=VALUE)", f"({argument}={value!r})")
    return sentence.replace(f"{key}.NAME=VALUE, in Python ", "") + "."


def _public_name(schema: type) -> str:
    if issubclass(schema, KnownArguments):
        return schema.public_name()
    return schema.__name__
