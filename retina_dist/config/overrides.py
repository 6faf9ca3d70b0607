"""The overrides of a command line, checked before Hydra uses them; the jobs of a sweep."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from retina_dist.config.compose import check_numbers, config_dir, load_config, register_for, to_object
from retina_dist.config.messages import HYDRAS_CLASSES, translate_hydra_errors
from retina_dist.config.plugins import import_class
from retina_dist.errors import ConfigError
from retina_dist.redaction import redacted


@dataclass(frozen=True)
class SweepJob:
    """One combination of a sweep's values; `swept` has those that the sweep varies, as text that may be shown, by key."""

    name: str  # of the schema
    overrides: tuple[str, ...]
    swept: dict[str, str]

    def load(self) -> Any:
        """The typed settings. Raises ConfigError, the same on every process of a job."""
        return load_config(self.name, list(self.overrides))


# Hydra's options that take the next argument as their value.
FLAGS_WITH_VALUE = (
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
)
LOGGING = ("hydra.job_logging", "hydra.hydra_logging")


def check_overrides(name: str, arguments: list[str]) -> list[SweepJob]:
    """Compose once before Hydra does, so that a wrong override ends in our sentence and exit code.

    Returns the jobs of a sweep, none without --multirun. A sweep passes when one of its jobs can be composed.
    """
    search = [arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("--config-dir", "-cd")]
    search += [a.split("=", 1)[1] for a in arguments if a.startswith("--config-dir=")]
    for folder in search:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder} is no folder.")
    pairs = zip(arguments, ["", *arguments], strict=False)
    values = [a for a, before in pairs if not a.startswith("-") and before not in FLAGS_WITH_VALUE]
    if search:
        values.append(f"hydra.searchpath=[{','.join('file://' + str(Path(s).resolve()) for s in search)}]")
    if any(a in ("--help", "-h", "--hydra-help", "--version", "--info", "-i") for a in arguments):
        register_for(name, values)
        return []
    check_numbers(values)
    looking = any(a in ("--cfg", "-c") for a in arguments)  # a configuration may be looked at unfinished
    multirun = any(a in ("--multirun", "-m") for a in arguments)
    register_for(name, values)
    with translate_hydra_errors(name), initialize_config_dir(config_dir(), version_base="1.3"):
        jobs, composed = ([], compose(name, values)) if looking else _jobs_of(name, values, multirun)
    if jobs:
        _check_a_job(jobs)
    elif not looking:
        to_object(composed, name)
    return jobs


def _jobs_of(name: str, values: list[str], multirun: bool) -> tuple[list[SweepJob], Any]:
    """Hydra's product of all values, those that a file gives as hydra.sweeper.params included; and a job's composed config.

    Without a sweep there are no jobs, and the config is that of `values`.
    """
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    parsed = parser.parse_overrides(values)
    multirun = multirun or "hydra.mode=MULTIRUN" in values
    composed = _first_composed(name, BasicSweeper.split_arguments(parsed, None)[0] if multirun else [values])
    settings = composed.hydra
    _check_classes(settings, "hydra")
    with open_dict(composed):
        del composed["hydra"]
    if not multirun and settings.mode != RunMode.MULTIRUN:
        return [], composed
    params = [f"{key}={value}" for key, value in (settings.sweeper.get("params") or {}).items()]
    said = [o for o in parsed if not re.match(r"[+~]*hydra\.(?!searchpath)", o.get_key_element())]
    overrides = {o.get_key_element(): o for o in [*parser.parse_overrides(params), *said]}  # the command line wins
    jobs = BasicSweeper.split_arguments(list(overrides.values()), None)[0]
    swept = [key for key, override in overrides.items() if override.is_sweep_override()]
    return [SweepJob(name, tuple(job), _texts(job, swept)) for job in jobs], composed


def _check_classes(node: Any, path: str) -> None:
    """Raise ConfigError where a configuration names anything to call that is not a class of the kind that belongs there.

    Such a name is code, as the rest of the command line is; but only where a class is looked for, and never a function, such
    as torch.load, which could run what a data file holds.
    """
    keys: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        try:
            value = None if OmegaConf.is_missing(node, key) else node[key]
        except OmegaConfBaseException:  # an interpolation of what a run only knows later
            value = None
        where = f"{path}.{key}"
        if isinstance(value, (DictConfig, ListConfig)):
            _check_classes(value, where)
        elif key in ("_target_", "()") or (key == "class" and path.startswith(LOGGING)):
            _check_class(where, path, value)


def _check_class(key: str, path: str, name: Any) -> None:
    group = ".".join(path.split(".")[:2])
    if group in LOGGING:
        kind: Any = (logging.Handler, logging.Formatter, logging.Filter)
    elif group not in HYDRAS_CLASSES:
        raise ConfigError(f"{key}={name}: only {', '.join(HYDRAS_CLASSES)} name classes; leave it out.")
    else:  # parts of such an object are of any class
        whole = path == group or (group == "hydra.callbacks" and path.count(".") == 2)
        kind = HYDRAS_CLASSES[group] if whole else object
    import_class(key, name, *(kind if isinstance(kind, tuple) else (kind,)))


def _first_composed(name: str, jobs: list[list[str]]) -> Any:
    """The first job that can be composed, with what the command line and the files say to Hydra itself."""
    first = None
    for job in jobs:
        try:
            return compose(name, job, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            first = first or error
    assert first, "there is a job"
    raise first


def _texts(job: list[str], keys: list[str]) -> dict[str, str]:
    values = dict(override.split("=", 1) for override in job if "=" in override)
    return {key.lstrip("+"): redacted(values[key]) for key in keys}


def _check_a_job(jobs: list[SweepJob]) -> None:
    """Raise the first job's ConfigError when every job has one."""
    first = None
    for job in jobs:
        try:
            job.load()
            return
        except ConfigError as error:
            first = first or error
    assert first, "a sweep has jobs"
    raise first
