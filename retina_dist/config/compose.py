"""From overrides to typed settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retina_dist.config.commands import ACTIVE, COMMANDS
from retina_dist.config.messages import settings_by_key, translate_hydra_errors, unknown_key
from retina_dist.config.plugins import load_plugins, schema_with, without_outside
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.settings import leaves, validate

T = TypeVar("T")

# overrides that may choose other sections than the default task's
CHOOSING = ("hydra.searchpath", "task=", "experiment=")


def config_dir() -> str:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def register_schema(name: str, schema: Any = None) -> None:
    """Make the schema of `conf/NAME.yaml` known to Hydra as NAME_schema, with which that file begins."""
    store = ConfigStore.instance()
    if isinstance(schema, dict):
        store.store(name=f"{name}_schema", node=schema)
    else:
        ACTIVE[name] = schema or COMMANDS[name]
        store.store(name=f"{name}_schema", node=ACTIVE[name])
    # Hydra 1.3.8 copies its repository, with this store in it, about 90 times for --help, against a change that never reaches
    # the store: what it loads from there is a copy already.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]


def register_for(name: str, overrides: list[str]) -> None:
    """Register the schema for these overrides, with the sections of their task and of the classes that entries from outside name.

    Only where either can be: a first composition, of the groups' choices alone, then tells which are chosen. Of a sweep, it is that
    of the first job; each job is composed again by `load_config`.
    """
    if not load_plugins() and not any(o.lstrip("+").startswith(CHOOSING) for o in overrides):
        register_schema(name)
        return
    register_schema(name, {})
    try:
        with initialize_config_dir(config_dir(), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            groups = {*loader.list_groups(""), "hydra.searchpath"}
            chosen = [o for o in overrides if o.lstrip("+").partition("=")[0] in groups]
            jobs = BasicSweeper.split_arguments(OverridesParser.create(loader).parse_overrides(chosen), None)[0]
            composed = compose(name, jobs[0])
        schema = schema_with(COMMANDS[name], OmegaConf.to_container(composed))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, ValueError, OSError, AssertionError, yaml.YAMLError) as error:
        if isinstance(error, ConfigError):
            raise
        schema = COMMANDS[name]  # the composition with types says what is wrong
    register_schema(name, schema)


def load_config(name: str, overrides: list[str]) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object (e.g. DetectionRunConfig), validated.

    For use as a library: `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    Raises ConfigError.
    """
    register_for(name, overrides)
    check_numbers(overrides)
    with translate_hydra_errors(name), initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose(name, overrides)
    return to_object(composed, name)


def to_object(composed: Any, name: str) -> Any:
    """The dataclass instance of a composed config, validated. Raises ConfigError."""
    known = settings_by_key(ACTIVE[name])
    with translate_hydra_errors(name):
        for key, _ in leaves(OmegaConf.to_container(composed)):
            if key not in known:  # Hydra lets +KEY=VALUE add anything
                raise ConfigError(unknown_key(name, key))
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
        config = OmegaConf.to_object(composed)
    validate(config)
    return config


def settings_of(content: Any, schema: type[T], remedy: str = "use another checkpoint") -> T:
    """The settings `schema` that a checkpoint holds, their types checked; those that it is too old for have their defaults.

    They are data: nothing in them is looked up or made. Of a section of a class from outside the package, the built-in one's
    settings are taken. Raises ConfigError, also if the task or the model is from outside; `remedy` is for settings that do not fit.
    """
    for key, value in leaves(content):
        if isinstance(value, str) and "${" in value:  # which would be looked up, in the environment too
            raise ConfigError(
                f"the checkpoint's {key} is {value}, which refers to something else; settings are plain values."
            )
    builtin = without_outside(content)
    try:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), builtin))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint's settings are not those of this version ({(str(error).splitlines() or [''])[0]}); {remedy}."
        ) from error
    assert isinstance(found, schema)
    return found


def data_settings_of(content: Mapping[str, Any], schema: type[T], source: object) -> T:
    """The settings of the data that the checkpoint `source` was trained on, validated. Raises CheckpointError without any."""
    from retina_dist.torch_files import remedy_of  # imports torch

    try:
        found = settings_of(content["config"]["data"], schema, remedy_of(content))
        validate(found, "data.")
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{source} does not say what it was trained on; give another checkpoint.") from error
    return found


def check_numbers(overrides: list[str]) -> None:
    """Raise ConfigError for 1_0, which Hydra reads as 10, in text too: a folder 2026_01 would become 202601."""
    for override in overrides:
        key, _, value = override.partition("=")
        if re.fullmatch(r"[+-]?\d[\d.]*(_\d[\d.]*)+(e[+-]?\d+)?", value.strip(), re.IGNORECASE):
            plain = value.replace("_", "")
            raise ConfigError(
                f"{override} is not a plain number; write {key}={plain}, or \"{key}='{value}'\" for a text."
            )
