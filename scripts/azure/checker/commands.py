"""Commands of this package that stand in jobs and in the README, composed by its own configuration."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from retina_dist.config import config_dir, load_config
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


@lru_cache(maxsize=None)
def _load(name: str, overrides: tuple[str, ...]) -> Any:
    return load_config(name, list(overrides))


def calls(text: str) -> Iterator[Call]:
    """This package's commands in a shell command."""
    for part in re.split(r"&&|\|\||[;|\n]", text):
        words = shlex.split(part, comments=True)
        for i, word in enumerate(words[:-1]):
            if word == "-m" and words[i + 1].startswith("retina_dist"):
                module, rest = words[i + 1], words[i + 2 :]
                if module == "retina_dist.benchmark" and rest:
                    module, rest = f"{module}.{rest[0]}", rest[1:]
                multirun = any(w in ("-m", "--multirun") for w in rest)
                yield Call(module, tuple(w for w in rest if not w.startswith("-") and not multirun))


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
        value = document.get("inputs", name)
        fixed[f"inputs.{name}"] = f"/inputs/{name}" if isinstance(value, dict) else str(value)
    space = {f"search_space.{name}": values_of(document.get("search_space", name)) for name in document.names("search_space")}
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
    found: dict[Call, None] = {}
    for values in variants(document):
        text = PLACEHOLDER.sub(lambda m: values.get(f"{m[1]}.{m[2]}", "0"), document.command)
        found |= dict.fromkeys(calls(text))
    return list(found)


def settings_of(document: Document, name: str = "train") -> list[Any]:
    """The settings of a job's calls of that name, as far as they can be composed."""
    found = []
    for call in calls_of(document):
        if call.name == name:
            try:
                found.append(call.load())
            except ConfigError:  # said by `problems`
                continue
    return found


def keys_of_space(document: Document) -> dict[str, str]:
    """Parameters of a sweep, and the settings that they stand for in its command."""
    return {
        found[2]: found[1].lstrip("+")
        for found in re.finditer(r"(\S+)=\$\{\{\s*search_space\.([\w.-]+)\s*\}\}", document.command)
    }


def hydra_sweeps(document: Document) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Experiments of a job's command that are Hydra sweeps, with the numbers of each setting."""
    for experiment in sorted(set(re.findall(r"\bexperiment=(\w+)", document.command))):
        path = Path(config_dir()) / "experiment" / f"{experiment}.yaml"
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        params = ((content.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
        if params:
            yield experiment, {key: sorted(float(v) for v in str(values).split(",")) for key, values in params.items()}
