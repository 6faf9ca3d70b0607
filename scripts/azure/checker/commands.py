"""Commands of this package in jobs and in the README, composed by its own configuration."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from retina_dist.config.compose import config_dir, load_config
from retina_dist.errors import ConfigError

from .documents import Document

PLACEHOLDER = re.compile(r"\$\{\{\s*(inputs|outputs|search_space)\.([\w.-]+)\s*\}\}")


class Call(NamedTuple):
    """`python -m retina_dist.MODULE OVERRIDES`, or `python -m retina_dist.benchmark NAME OVERRIDES`."""

    module: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its configuration: train, benchmark_scaling, ..."""
        return self.module.removeprefix("retina_dist.").replace(".", "_")


@cache
def load(call: Call) -> Any:
    """Its settings. Raises ConfigError for a setting that is unknown or impossible."""
    return load_config(call.name, list(call.overrides))


def simple_commands(text: str) -> list[list[str]]:
    """The words of each command of a line of shell, without operators. Raises ValueError for an open quotation."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    groups = itertools.groupby(lexer, lambda word: set(word) <= set(";|&()<>"))
    return [list(words) for is_operator, words in groups if not is_operator]


def calls(text: str) -> Iterator[Call]:
    """This package's commands in a line of shell. Raises ValueError for an open quotation."""
    for words in simple_commands(text):
        for i, (word, module) in enumerate(itertools.pairwise(words)):
            if word == "-m" and module.startswith("retina_dist"):
                rest = words[i + 2 :]
                if module == "retina_dist.benchmark" and rest:
                    module, rest = f"{module}.{rest[0]}", rest[1:]
                sweep = "-m" in rest or "--multirun" in rest  # of many values, which do not compose as one
                yield Call(module, () if sweep else tuple(w for w in rest if not w.startswith("-")))


def problems(call: Call) -> Iterator[str]:
    """Why a call cannot start, as far as its settings tell."""
    try:
        found = find_spec(call.module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield f"there is no {call.module}."
    elif (Path(config_dir()) / f"{call.name}.yaml").exists():
        try:
            load(call)
        except ConfigError as error:
            yield str(error)


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


def calls_of(job: Document) -> list[Call]:
    """A job's calls with every value that Azure may put in: of a sweep's ranges the ends. Raises ValueError as `calls` does."""
    fixed = {("outputs", name): f"/outputs/{name}" for name in job.names("outputs")}
    for name in job.names("inputs"):
        value = job.get(f"inputs.{name}")
        fixed["inputs", name] = f"/inputs/{name}" if isinstance(value, dict) else str(value)
    names = job.names("search_space")
    found = []
    for chosen in itertools.product(*(values_of(job.get(f"search_space.{name}")) for name in names)):
        values = fixed | {("search_space", name): value for name, value in zip(names, chosen)}
        filled = PLACEHOLDER.sub(lambda match, values=values: values.get((match[1], match[2]), "0"), job.command)
        found += calls(filled)
    return list(dict.fromkeys(found))


def settings_of(job: Document, name: str = "train") -> list[Any]:
    """The settings of a job's calls of that name, as far as they can be composed."""
    found = []
    with contextlib.suppress(ValueError):  # an open quotation; the rule "settings" reports it
        for call in calls_of(job):
            with contextlib.suppress(ConfigError):
                found += [load(call)] if call.name == name else []
    return found


def space_differences(sweep: Document) -> Iterator[str]:
    """Settings that a sweep's search space and a Hydra sweep among its command's experiments give different values."""
    pairs = re.findall(r"(\S+)=\$\{\{\s*search_space\.([\w.-]+)\s*\}\}", sweep.command)
    ours = {setting.lstrip("+"): _spelled(values_of(sweep.get(f"search_space.{name}"))) for setting, name in pairs}
    for experiment in sorted(set(re.findall(r"\bexperiment=(\w+)", sweep.command))):
        path = Path(config_dir()) / "experiment" / f"{experiment}.yaml"
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        params = ((content.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
        theirs = {key: _spelled(str(values).split(",")) for key, values in params.items()}
        for key in sorted({*ours, *theirs} if theirs else ()):
            if set(ours.get(key, [])) != set(theirs.get(key, [])):
                here, there = (", ".join(space.get(key, [])) or "nothing" for space in (ours, theirs))
                yield f"{key} has {here}, conf/experiment/{experiment}.yaml {there}."


def _spelled(values: list[str]) -> list[str]:
    """Each number in one spelling, any other text as it is."""
    for i, value in enumerate(values):
        with contextlib.suppress(ValueError):
            values[i] = f"{float(value):g}"
    return values
