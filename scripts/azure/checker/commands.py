"""Commands of this package that stand in jobs and in the README, composed by its own configuration."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from retina_dist.config.compose import config_dir, load_config
from retina_dist.errors import ConfigError

from .documents import Document

PLACEHOLDER = re.compile(r"\$\{\{\s*(inputs|outputs|search_space)\.([\w.-]+)\s*\}\}")


@dataclass(frozen=True)
class Call:
    """`python -m MODULE OVERRIDES`, or `python -m retina_dist.benchmark NAME OVERRIDES`."""

    module: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its configuration: train, benchmark_scaling, ..."""
        return self.module.removeprefix("retina_dist.").replace(".", "_")

    def load(self) -> Any:
        """Its settings. Raises ConfigError for a setting that is unknown or cannot be."""
        return _load(self.name, self.overrides)


@cache
def _load(name: str, overrides: tuple[str, ...]) -> Any:
    return load_config(name, list(overrides))


def simple_commands(text: str) -> list[list[str]]:
    """The words of each command of a line of shell, without operators. Raises ValueError for an open quotation."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    lines: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&()<>"):
            lines.append([])
        else:
            lines[-1].append(word)
    return [line for line in lines if line]


def simple_commands_of(document: Document) -> list[list[str]]:
    """The words of each command of a job; none where a quotation is open."""
    with contextlib.suppress(ValueError):
        return simple_commands(PLACEHOLDER.sub("0", document.command))
    return []


def calls(text: str) -> Iterator[Call]:
    """This package's commands in a line of shell. Raises ValueError for an open quotation."""
    for words in simple_commands(text):
        for i, word in enumerate(words[:-1]):
            if word == "-m" and words[i + 1].startswith("retina_dist"):
                module, rest = words[i + 1], words[i + 2 :]
                if module == "retina_dist.benchmark" and rest:
                    module, rest = f"{module}.{rest[0]}", rest[1:]
                sweep = "-m" in rest or "--multirun" in rest  # of many values, which do not compose as one
                yield Call(module, () if sweep else tuple(w for w in rest if not w.startswith("-")))


def problems(call: Call) -> Iterator[str]:
    """Why a call cannot start, as far as its settings tell."""
    if find_spec_of(call.module) is None:
        yield f"there is no {call.module}."
    elif (Path(config_dir()) / f"{call.name}.yaml").exists():
        try:
            call.load()
        except ConfigError as error:
            yield str(error)


def find_spec_of(module: str) -> Any:
    """The module, not imported, None where there is none."""
    try:
        return find_spec(module)
    except ModuleNotFoundError:
        return None


def variants(document: Document) -> list[dict[str, str]]:
    """What Azure puts in place of each placeholder: one dictionary for a command job, one for each of a sweep's combinations.

    Of a range the ends stand for all.
    """
    fixed = {f"outputs.{name}": f"/outputs/{name}" for name in document.names("outputs")}
    for name in document.names("inputs"):
        value = document.get(f"inputs.{name}")
        fixed[f"inputs.{name}"] = f"/inputs/{name}" if isinstance(value, dict) else str(value)
    space = {
        f"search_space.{name}": values_of(document.get(f"search_space.{name}"))
        for name in document.names("search_space")
    }
    return [fixed | dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*space.values())]


def values_of(parameter: Any) -> list[str]:
    """The values of a sweep's parameter as text: all of a choice, the ends of a range."""
    if not isinstance(parameter, dict):
        return [str(parameter)]
    if parameter.get("type") == "choice":
        return [str(value) for value in parameter.get("values") or []]
    ends = [parameter.get(key) for key in ("min_value", "max_value")]
    numbers = [float(end) for end in ends if isinstance(end, (int, float))]
    if str(parameter.get("type")).endswith("loguniform"):
        numbers = [math.exp(min(number, 700.0)) for number in numbers]
    return [f"{number:g}" for number in numbers]


def calls_of(document: Document) -> list[Call]:
    """A job's calls with every value that Azure may put in."""
    texts = [_filled(document.command, values) for values in variants(document)]
    return list(dict.fromkeys(call for text in texts for call in calls(text)))


def _filled(text: str, values: dict[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(f"{found[1]}.{found[2]}", "0"), text)


def settings_of(document: Document, name: str = "train") -> list[Any]:
    """The settings of a job's calls of that name, as far as they can be composed."""
    found = []
    with contextlib.suppress(ValueError):  # an open quotation; the rule that composes says so
        for call in [call for call in calls_of(document) if call.name == name]:
            with contextlib.suppress(ConfigError):
                found.append(call.load())
    return found


def space_by_setting(document: Document) -> dict[str, list[str]]:
    """The values that a sweep gives to each setting of its command."""
    pairs = re.findall(r"(\S+)=\$\{\{\s*search_space\.([\w.-]+)\s*\}\}", document.command)
    return {
        setting.lstrip("+"): [_short(value) for value in values_of(document.get(f"search_space.{name}"))]
        for setting, name in pairs
        if name in document.names("search_space")
    }


def hydra_sweeps(document: Document) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Experiments of a job's command that are Hydra sweeps, with the values of each setting."""
    for experiment in sorted(set(re.findall(r"\bexperiment=(\w+)", document.command))):
        path = Path(config_dir()) / "experiment" / f"{experiment}.yaml"
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        params = ((content.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
        if params:
            yield (
                experiment,
                {key: [_short(value) for value in str(values).split(",")] for key, values in params.items()},
            )


def _short(value: str) -> str:
    """A number in one spelling, any other text as it is."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value
