"""From overrides to typed settings.

Hydra composes without types: the sections of NAME_schema, with which `conf/NAME.yaml` begins, are empty and open. Which dataclass
a section has follows from what was composed (its task, a class that an entry names), and is checked here in one place.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from retina_dist.config.messages import (
    no_value,
    plain,
    settings_by_key,
    translate_hydra_errors,
    unknown_key,
    wrong_type,
)
from retina_dist.config.plugins import load_plugins, names_class, schema_with, without_outside
from retina_dist.config.run_config import TASKS, RunConfig, schema_of_task
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import first_line
from retina_dist.optim.settings import OptimizerConfig
from retina_dist.redaction import MASK
from retina_dist.settings import leaves, limits_of, validate

T = TypeVar("T")

logger = logging.getLogger(__name__)

RUN_CONFIG = "config.yaml"
# Settings of a start, which a resume does not take from the run.
OF_ONE_START = ("resume", "output_dir", "launcher", "dry_run", "debug", "trainer.stop_after")

SCHEMAS: dict[str, type] = {}  # of each command by its name, as its module states it


def config_dir() -> str:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def schema_of(name: str) -> type:
    """The settings of the command `name`, such as "train" or "benchmark_step"."""
    if name not in SCHEMAS:
        if not Path(config_dir(), f"{name}.yaml").is_file():
            commands = sorted(path.stem for path in Path(config_dir()).glob("*.yaml"))
            near = get_close_matches(str(name), commands, 1) or commands
            raise ConfigError(f"there is no command {name}; did you mean {' or '.join(near)}?")
        import_module(f"retina_dist.{name.replace('benchmark_', 'benchmark.')}")
    return SCHEMAS[name]


def register(name: str, overrides: Iterable[str], content: Mapping[str, Any] | None = None) -> None:
    """Make NAME_schema known to Hydra: with `content`, else with empty sections.

    Keys that the schema lacks are taken from the overrides too, so that each is refused in `to_object`, whatever composes.
    """
    load_plugins()
    node: dict[str, Any] = dict(content or {})
    if content is None:
        for field in fields(schema_of(name)):
            made = field.default_factory() if callable(field.default_factory) else field.default
            node[field.name] = {} if is_dataclass(made) else made
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        first, dot, _ = key.partition(".")
        is_group = not dot and (Path(config_dir()) / first).is_dir()
        if re.fullmatch(r"[A-Za-z_][\w-]*", first) and first != "hydra" and not is_group:
            node.setdefault(first, {} if dot else None)
    store = {
        key: OmegaConf.create(value, flags={"struct": False}) if isinstance(value, dict) else value
        for key, value in node.items()
    }
    ConfigStore.instance().store(name=f"{name}_schema", node=store)


def load_config(name: str, overrides: Sequence[str] = ()) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object (e.g. DetectionRunConfig), validated.

    For use as a library: `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    Raises ConfigError.
    """
    check_overrides(name, overrides)
    return to_object(_composed(name, overrides), name, overrides)


def _composed(name: str, overrides: Sequence[str]) -> DictConfig:
    register(name, overrides)
    with translate_hydra_errors(name), initialize_config_dir(config_dir(), version_base="1.3"):
        return compose(name, list(overrides))


def register_defaults(name: str, overrides: Sequence[str], also: Sequence[str] = ()) -> None:
    """Make NAME_schema known to Hydra with every key that these overrides lead to, for a look at them. Raises ConfigError.

    `also` are overrides of Hydra itself, such as where to search.
    """
    typed, _ = _typed(_composed(name, [*overrides, *also]), name, overrides)
    content = OmegaConf.to_container(typed)
    register(name, overrides, content)  # type: ignore[arg-type]


def schema_for(name: str, overrides: Sequence[str]) -> type:
    """The settings that a command has with these overrides, whose task and entries may bring their own."""
    composed = OmegaConf.to_container(_composed(name, overrides)) if overrides else {}
    return schema_with(schema_of(name), composed)  # type: ignore[arg-type]


def to_object(composed: DictConfig, name: str, overrides: Sequence[str] = ()) -> Any:
    """The dataclass instance of a composed config, validated; `overrides` are what the command line added. Raises ConfigError."""
    typed, schema = _typed(composed, name, overrides)
    with translate_hydra_errors(name):
        for key in sorted(OmegaConf.missing_keys(typed)):
            raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
        config = OmegaConf.to_object(typed)
    try:
        validate(config)
        if isinstance(optimizer := getattr(config, "optimizer", None), OptimizerConfig):
            optimizer.check({key.removeprefix("optimizer.") for key in _keys(overrides)})
    except ConfigError as error:
        raise _of_another_task(error, schema, composed, overrides) from None
    return config


def _typed(composed: DictConfig, name: str, overrides: Sequence[str]) -> tuple[DictConfig, type]:
    """The composed values as those of the schema, which is the second; each key and type checked."""
    composed = _with_run(composed, name, overrides)
    with translate_hydra_errors(name):
        content: Any = OmegaConf.to_container(composed)
    schema = schema_with(schema_of(name), content)
    try:
        _check_keys(name, schema, content, overrides)
        with translate_hydra_errors(name):
            try:
                return OmegaConf.merge(OmegaConf.structured(schema), composed), schema  # type: ignore[return-value]
            except (ValidationError, OverflowError) as error:
                key, hint = _misfit(schema, composed)
                if not key:
                    raise
                if isinstance(error, OverflowError):
                    raise ConfigError(f"{key} is too large for a number.") from error
                raise ConfigError(wrong_type(key, OmegaConf.select(composed, key), hint)) from error
    except ConfigError as error:
        raise _of_another_task(error, schema, composed, overrides) from None


def _keys(overrides: Iterable[str]) -> set[str]:
    return {o.lstrip("+~").partition("=")[0].partition("@")[0] for o in overrides}


def _with_run(composed: DictConfig, name: str, overrides: Sequence[str]) -> DictConfig:
    """The settings that the run of `resume=RUN` wrote into its config.yaml, with those that the overrides give.

    `composed` itself without such a file, and with `experiment`, which states everything. Settings that this version does not have
    are left out. Nothing that the file names is looked up. Raises ConfigError.
    """
    resume = composed.get("resume")
    given = _keys(overrides)
    if not isinstance(resume, str) or resume in ("", "auto") or "://" in resume or "experiment" in given:
        return composed
    place = Path(resume)  # a run folder, its checkpoints or one of them
    place = place.parent if place.suffix == ".pt" else place
    place = place.parent if place.name == "checkpoints" else place
    file = place / RUN_CONFIG if (place / RUN_CONFIG).is_file() else None
    if file is None:
        return composed
    try:
        run = OmegaConf.load(file)
        for key in (*OF_ONE_START, *sorted(k for k in given if not k.startswith("hydra"))):
            OmegaConf.update(run, key, OmegaConf.select(composed, key), merge=False, force_add=True)
        content: Any = OmegaConf.to_container(run)
        for group, section in content.items():
            if names_class(section) and group not in given:
                raise ConfigError(
                    f"{file} has {group} from outside the package, which no file imports; give {group}=NAME."
                )
        for key, value in leaves(content):
            if isinstance(value, str) and MASK in value:
                raise ConfigError(f"{file} holds {key} without its secret; give {key}=… again.")
            if isinstance(value, str) and "${" in value:
                raise ConfigError(f"{file} has {key}={value}, which refers to something else; give {key}=… again.")
        task = OmegaConf.select(run, "task.name")
        for group in sorted({"data", "model"} & given):
            tasks = _tasks_of(group, composed, given)
            if task in TASKS and tasks and task not in tasks:
                raise ConfigError(
                    f"{resume} is a run of task={task}, and the given {group} is for task={tasks[0]}; leave {group} out, or "
                    "start a new run."
                )
        known = settings_by_key(schema_with(schema_of(name), content))
        for key in sorted({key for key, _ in leaves(content)} - known.keys() - given):
            section, _, last = key.rpartition(".")
            parent: Any = OmegaConf.select(run, section) if section else run
            parent.pop(last)
            logger.info(f"{file}: {key} is not a setting of this version")
    except (OSError, OmegaConfBaseException, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file} does not hold the settings of a run ({first_line(error)}); remove it.") from error
    return run  # type: ignore[return-value]


def _misfit(schema: type, composed: DictConfig) -> tuple[str, Any]:
    """The first key whose value is not of its type, which is the second; "" if there is none."""
    known = settings_by_key(schema)
    for key, hint in known.items():
        section, _, last = key.rpartition(".")
        parent = OmegaConf.select(composed, section) if section else composed
        if is_dataclass(plain(hint)) or not isinstance(parent, DictConfig) or last not in parent:
            continue
        try:
            OmegaConf.update(OmegaConf.structured(plain(known[section]) if section else schema), last, parent[last])
        except (OmegaConfBaseException, OverflowError):
            return key, plain(hint)
    return "", None


def _check_keys(name: str, schema: type, content: Any, overrides: Sequence[str]) -> None:
    """Raise ConfigError for the first key that the schema lacks, or that is given where nothing would read it."""
    known = settings_by_key(schema)
    for key, value in leaves(content):
        if key not in known:
            raise ConfigError(unknown_key(name, key, schema, content))
        if isinstance(value, bool) and plain(known[key]) is str and str(value).lower() not in _choices(schema, key):
            raise ConfigError(f"{key}={str(value).lower()} is not a text such as a name or a path; give one, or null.")
    given = _keys(overrides)
    for key in sorted(given & set(known)):
        section, _, _ = key.rpartition(".")
        optional = section in known and known[section] is not plain(known[section])
        if optional and not any(k.startswith(f"{section}.") and k not in given for k, _ in leaves(content)):
            group, _, part = section.partition(".")
            entries = sorted((Path(config_dir()) / group).glob("*.yaml"))
            having = [f"{group}={e.stem}" for e in entries if re.search(rf"^{part}:", e.read_text(), re.MULTILINE)]
            raise ConfigError(f"{key} is read with {' or '.join(having)} only; choose that, or leave {key} out.")


def _choices(schema: type, key: str) -> tuple[Any, ...]:
    *sections, last = key.split(".")
    for part in sections:
        schema = plain(settings_by_key(schema)[part])
    limits = limits_of(schema, last)
    return (*limits.choices, *limits.words)


def _of_another_task(error: ConfigError, schema: type, composed: DictConfig, overrides: Sequence[str]) -> ConfigError:
    """`error`, or the remedy where the data or model that caused it are those of another built-in task."""
    name = OmegaConf.select(composed, "task.name")
    if not (issubclass(schema, RunConfig) and name in TASKS and str(error).startswith(("data", "model"))):
        return error
    for section in ("data", "model"):
        fits = _tasks_of(section, composed, _keys(overrides))
        if fits and name not in fits:
            part = OmegaConf.select(composed, section)
            named = f"{section}={part.name}" if "name" in part else f"this {section}"
            return ConfigError(f"{named} is for task={fits[0]}, but the task is {name}; give task={fits[0]}.")
    return error


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
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), builtin))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint's settings are not those of this version ({(str(error).splitlines() or [''])[0]}); {remedy}."
        ) from error
    assert isinstance(settings, schema)
    return settings


def data_settings_of(content: Mapping[str, Any], schema: type[T], source: object) -> T:
    """The settings of the data that the checkpoint `source` was trained on, validated. Raises CheckpointError without any."""
    from retina_dist.torch_files import remedy_of  # imports torch

    try:
        settings = settings_of(content["config"]["data"], schema, remedy_of(content))
        validate(settings, "data.")
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{source} does not say what it was trained on; give another checkpoint.") from error
    return settings


def check_overrides(name: str, overrides: Sequence[str]) -> None:
    """Raise ConfigError for what is not KEY=VALUE, and for 1_0, which Hydra reads as 10, in text too: a folder 2026_01 would
    become 202601.
    """
    if isinstance(overrides, str):
        raise ConfigError(f'overrides is of type str; give a list such as ["{overrides}"].')
    for number, override in enumerate(overrides):
        key, equals, value = override.partition("=")
        if not equals and not override.startswith("~"):
            raise ConfigError(no_value(overrides, number, settings_by_key(schema_with(schema_of(name), {}))))
        if re.fullmatch(r"[+-]?\d[\d.]*(_\d[\d.]*)+(e[+-]?\d+)?", value.strip(), re.IGNORECASE):
            without = value.replace("_", "")
            raise ConfigError(
                f"{override} is not a plain number; write {key}={without}, or \"{key}='{value}'\" for a text."
            )


def _tasks_of(section: str, composed: DictConfig, given: set[str]) -> list[str]:
    """The built-in tasks that the chosen entry of data or model is for, whatever keys below it are given."""
    part = {key: value for key, value in composed[section].items_ex(resolve=False) if f"{section}.{key}" not in given}
    return [task for task in TASKS if _fits(schema_of_task(task), section, part)]


def _fits(schema: type, section: str, part: Any) -> bool:
    try:
        validate(OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(settings_by_key(schema)[section]), part)))
    except (OmegaConfBaseException, ConfigError, ValueError):
        return False
    return True
