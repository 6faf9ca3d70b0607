"""From a command line to typed settings, and from an exception to a sentence: all that knows Hydra.

Layer 4. A key that is not in `settings`, or a value of another type, is refused by name, with the nearest one.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from retina_dist.config.schema import COMMANDS, ShardsConfig, leaves, validate
from retina_dist.config.seams import import_class, load_plugins, schema_with, without_outside
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import check_output
from retina_dist.redaction import redacted
from retina_dist.reporting.console import tell
from retina_dist.strategies.launch_environment import detect_launch

T = TypeVar("T")


def config_dir() -> str:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


_schemas = dict(COMMANDS)  # of the last composition: with the settings of classes from outside the package


def register_schema(name: str, schema: Any = None) -> None:
    """Make the schema of `conf/NAME.yaml` known to Hydra as NAME_schema, with which that file begins."""
    store = ConfigStore.instance()
    if isinstance(schema, dict):
        store.store(name=f"{name}_schema", node=schema)
    else:
        _schemas[name] = schema or COMMANDS[name]
        store.store(name=f"{name}_schema", node=_schemas[name])
    # Hydra 1.3.8 copies its repository, with this store in it, about 90 times for --help, against a change that never reaches
    # the store: what it loads from there is a copy already.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]


def _register_for(name: str, overrides: list[str]) -> None:
    """Register the schema for these overrides, with the settings of the classes that entries from outside name.

    Only where there can be such entries: a first composition, of the groups' choices alone, then tells which are chosen.
    """
    if not load_plugins() and not any(o.lstrip("+").startswith("hydra.searchpath") for o in overrides):
        register_schema(name)
        return
    register_schema(name, {})
    try:
        with initialize_config_dir(config_dir(), version_base="1.3"):
            groups = {*GlobalHydra.instance().config_loader().list_groups(""), "hydra.searchpath"}
            chosen = compose(name, [o for o in overrides if o.lstrip("+").partition("=")[0] in groups])
        schema = schema_with(COMMANDS[name], OmegaConf.to_container(chosen))  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException, ValueError, OSError, AssertionError, yaml.YAMLError) as error:
        if isinstance(error, ConfigError):
            raise
        schema = COMMANDS[name]  # the composition with types says what is wrong
    register_schema(name, schema)


def load_config(name: str, overrides: list[str]) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object (e.g. TrainConfig), validated.

    For use as a library: `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    Raises ConfigError.
    """
    _register_for(name, overrides)
    _check_numbers(overrides)
    with _explained(name), initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose(name, overrides)
    return to_object(composed, name)


def to_object(composed: Any, name: str) -> Any:
    """The dataclass instance of a composed config, validated. Raises ConfigError."""
    known = _settings(_schemas[name])
    with _explained(name):
        for key, _ in leaves(OmegaConf.to_container(composed)):
            if key not in known:  # Hydra lets +KEY=VALUE add anything
                raise ConfigError(_unknown(name, key))
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
        config = OmegaConf.to_object(composed)
    validate(config)
    return config


def settings_of(content: Any, schema: type[T]) -> T:
    """The settings `schema` that a checkpoint holds, their types checked; those that it is too old for have their defaults.

    They are data: nothing in them is looked up or made. A section of a class from outside the package has the built-in one's
    defaults instead. Raises ConfigError.
    """
    for key, value in leaves(content):
        if isinstance(value, str) and "${" in value:  # which would be looked up, in the environment too
            raise ConfigError(
                f"the checkpoint's {key} is {value}, which refers to something else; settings are plain values."
            )
    try:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), without_outside(content)))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint's settings are not those of this version ({(str(error).splitlines() or [''])[0]})."
        ) from error
    assert isinstance(found, schema)
    return found


@dataclass(frozen=True)
class SweepJob:
    """One combination of a sweep's values; `swept` has those that the sweep varies, as text that may be shown, by key."""

    name: str  # of the schema
    overrides: tuple[str, ...]
    swept: dict[str, str]

    def load(self) -> Any:
        """The typed settings. Raises ConfigError, the same on every process of a job."""
        return load_config(self.name, list(self.overrides))


# Settings that name what a command writes, and the endings that they may have.
OUTPUTS: dict[str, tuple[str, ...]] = {
    "output": (),
    "output_dir": (),
    "plot": (".png", ".pdf", ".svg", ".jpg"),
    "table": (),
}


def entry_point(
    name: str, sweep: Callable[[list[SweepJob], Callable[[Any], Any]], int] | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a `main()` of a function of a typed config: Hydra's command line, our errors.

    A UserError is printed as one line and the process exits with 2; with `debug=true` the traceback is shown too.
    With --multirun, `sweep` gets the jobs of Hydra's product and the function, and its answer is the exit code. Without a
    `sweep`, or when another of Hydra's sweepers or launchers is asked for, Hydra calls the function for each job itself.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=config_dir(), config_name=name)
        def run(composed: Any) -> Any:
            with reported_errors(debug=bool(composed.get("debug"))):
                config = to_object(composed, name)
                check_outputs(config)
                return function(config)

        def main() -> None:
            register_schema(name)
            debug = "debug=true" in sys.argv[1:]
            with reported_errors(debug, collective=True):
                jobs = _check_overrides(name, sys.argv[1:])
            if sweep is None or not jobs or _asks_for_a_plugin(sys.argv[1:]):
                run()
                return
            with reported_errors(debug):
                raise SystemExit(sweep(jobs, function))

        return main

    return decorate


def check_outputs(config: Any) -> None:
    """Raise ConfigError, on rank 0, when a file or folder that a command is to write cannot be, before its long work."""
    if detect_launch().rank or getattr(config, "dry_run", False):
        return
    for key, endings in OUTPUTS.items():
        value = getattr(config, key, None)
        if not value or (isinstance(config, ShardsConfig) and "://" in value):
            continue
        check_output(value, key, folder=key == "output_dir" or isinstance(config, ShardsConfig))
        if endings and Path(value).suffix not in endings:
            raise ConfigError(f"{key}={value} has no known ending; use one of {', '.join(endings)}.")


def _asks_for_a_plugin(arguments: list[str]) -> bool:
    return any(a.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher=")) for a in arguments)


@contextmanager
def reported_errors(debug: bool = False, collective: bool = False) -> Iterator[None]:
    """Print a UserError as one line and exit with 2 (1 if another process was lost), anything else with its rank.

    Of a job's processes, which may all have the same error, only the one that should speaks; `collective` says that an
    error comes of the command line, so that it is the first.
    """
    try:
        launch = detect_launch()
    except ConfigError as error:
        tell(f"error: {error}", sys.stderr)
        raise SystemExit(2) from None
    label = f"[rank {launch.rank}] " if launch.world_size > 1 else ""
    try:
        yield
    except UserError as error:
        if debug:
            tell(_labelled(traceback.format_exc(), label), sys.stderr)
        if launch.rank == error.reporter or not (error.collective or collective):
            tell(f"{label if launch.rank else ''}{error.label}{error}", sys.stderr)
        elif error.collective:
            time.sleep(1.0)  # the one that speaks goes first: launchers end the others as soon as one has gone
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if launch.rank == 0:
            tell("interrupted", sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)) and not debug:
            where = f"{error.filename}: " if error.filename else ""
            tell(
                f"{label}error: {where}{error.strerror}; correct that, or give another place (debug=true shows where).",
                sys.stderr,
            )
            raise SystemExit(2) from None
        tell(_labelled(traceback.format_exc(), label), sys.stderr)
        raise SystemExit(1) from None


def _labelled(text: str, label: str) -> str:
    return "\n".join(label + line for line in text.rstrip().splitlines())


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


# What Hydra makes an object of, by the class that a configuration names; nothing else of a configuration names one.
HYDRAS_CLASSES = {"hydra.callbacks": Callback, "hydra.launcher": Launcher, "hydra.sweeper": Sweeper}
LOGGING = ("hydra.job_logging", "hydra.hydra_logging")


def _check_overrides(name: str, arguments: list[str]) -> list[SweepJob]:
    """Compose once before Hydra does, so that a wrong override ends in our sentence and exit code.

    Returns the jobs of a sweep, none without --multirun. A sweep passes when one of its jobs can be composed.
    """
    if any(a in ("--help", "-h", "--hydra-help", "--version", "--info", "-i") for a in arguments):
        return []
    search = [arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("--config-dir", "-cd")]
    search += [a.split("=", 1)[1] for a in arguments if a.startswith("--config-dir=")]
    for folder in search:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder} is no folder.")
    pairs = zip(arguments, ["", *arguments], strict=False)
    values = [a for a, before in pairs if not a.startswith("-") and before not in FLAGS_WITH_VALUE]
    if search:
        values.append(f"hydra.searchpath=[{','.join('file://' + str(Path(s).resolve()) for s in search)}]")
    _check_numbers(values)
    looking = any(a in ("--cfg", "-c") for a in arguments)  # a configuration may be looked at unfinished
    multirun = any(a in ("--multirun", "-m") for a in arguments)
    _register_for(name, values)
    with _explained(name), initialize_config_dir(config_dir(), version_base="1.3"):
        jobs, composed = ([], compose(name, values)) if looking else _jobs_of(name, values, multirun)
    if jobs:
        _check_a_job(jobs)
    elif not looking:
        to_object(composed, name)
    return jobs


def _check_numbers(overrides: list[str]) -> None:
    """Raise ConfigError for 1_0, which Hydra reads as 10, in text too: a folder 2026_01 would become 202601."""
    for override in overrides:
        key, _, value = override.partition("=")
        if re.fullmatch(r"[+-]?\d[\d.]*(_\d[\d.]*)+(e[+-]?\d+)?", value.strip(), re.IGNORECASE):
            plain = value.replace("_", "")
            raise ConfigError(
                f"{override} is not a plain number; write {key}={plain}, or \"{key}='{value}'\" for a text."
            )


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


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what Hydra and omegaconf raise into a ConfigError that names the key, the value and the nearest valid key."""
    try:
        yield
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} cannot be read as KEY=VALUE; quote the whole argument for the shell if the value has "
            "spaces, commas or brackets."
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(name, error)) from error
    except OverflowError as error:  # a whole number of 400 digits where any number may stand
        key = re.search(r"full_key: (\S+)", str(error))
        raise ConfigError(f"{key[1] if key else 'a value'} is too large for a number.") from error
    except RecursionError as error:
        raise ConfigError("a value is nested too deeply; no setting is more than a list of lists.") from error
    except OSError as error:  # a name that is too long for any file, for one
        raise ConfigError(
            f"a file of the configuration cannot be read ({error.strerror}); check the names of data, model and the like."
        ) from error
    except AssertionError as error:  # omegaconf's answer to a key below a node that is null
        raise ConfigError(
            "a key below data.shapes, such as data.shapes.num_train=…, can be set with data=shapes only."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of the configuration is no YAML: {' '.join(str(error).split())}.") from error
    except UserError:
        raise
    except ValueError as error:  # Hydra's answer to model=3 or model=null
        raise ConfigError(f"groups such as data and model take a name, as in model=retinanet_r50 ({error}).") from error


def _sentence(name: str, error: Exception) -> str:
    """What Hydra or omegaconf found, with the key, the value and what would be right."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, value = str(error.missing_cfg_file).rpartition("/")
        near = difflib.get_close_matches(value, error.options, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        return f"{group}={value} does not exist; {hint} are {', '.join(error.options)}."
    known = _settings(_schemas[name])
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", str(error)):
        key, value = several.groups()
        one = f"[{value}]" if get_origin(known.get(key)) is list else f"'{value}'"
        return (
            f'{key}={value} is more than one value; write "{key}={one}" if one is meant, or add --multirun for a run '
            "with each."
        )
    cause, key = _cause(error)
    file = re.match(r"In '([^']+)'", str(error))
    where = f"{file[1]}.yaml: " if file else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and key:
        asked = re.match(r"Could not override '([^']+)'", str(error))
        return where + _unknown(name, asked[1] if asked and asked[1] not in known else key)
    if given := re.match(r"Error merging override \+*([^=]+)=(.*)", str(error)):
        if given[1] not in known:
            return _unknown(name, given[1])
        if not is_dataclass(_plain(known[given[1]])):
            return _wrong_type(given[1], given[2], _plain(known[given[1]]))
    if file and isinstance(cause, ValidationError) and key in known:
        return f"{where}{key} is not {_in_words(_plain(known[key]))}."
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return where + (f"{key}: " if key else "") + f"{reason.rstrip('.')}."


def _cause(error: BaseException) -> tuple[BaseException, str]:
    """The first exception of a chain, and the setting it was about, "" if none of them says."""
    key = getattr(error, "full_key", None) or ""
    while inner := error.__cause__ or error.__context__:
        error, key = inner, getattr(inner, "full_key", None) or key
    return error, re.sub(r"\[.*", "", key)


def _wrong_type(key: str, value: str, hint: Any) -> str:
    missing = str(hint).count("list[") - (len(value) - len(value.lstrip("[")))  # brackets left out
    remedy = f"; write {key}={'[' * missing}{value}{']' * missing}." if missing > 0 and value != "null" else "."
    return f"{key}={value} is not {_in_words(hint)}{remedy}"


def _unknown(name: str, key: str) -> str:
    """That there is no such setting, and which one may be meant: one that ends alike, else one spelled alike."""
    if key.endswith("_target_"):
        return f"{key} is not a setting: only {', '.join(HYDRAS_CLASSES)} name classes; leave it out."
    settings = _settings(_schemas[name])
    known = [k for k in settings if not key.startswith(f"{k}.") or not is_dataclass(_plain(settings[k]))]
    ends = [k.rpartition(".")[2] for k in known]
    end = key.rpartition(".")[2]
    alike = difflib.get_close_matches(key, known, 1, 0.6) or [
        known[ends.index(e)] for e in difflib.get_close_matches(end, ends, 1, 0.7)
    ]
    same = [k for k, e in zip(known, ends, strict=True) if e == end]
    near = list(dict.fromkeys([*same, *(alike if key == end else [])])) if same else alike
    if not same and (other := ELSEWHERE.get(end.lower())):
        if other.partition("=")[0] in known:
            near = [other]
        elif " " in other:
            return f"{key} is not a setting; {other}."
    command = f"python -m retina_dist.{name.replace('_', ' ')} --cfg job"
    hint = f"did you mean {' or '.join(near)}?" if near else f"see the keys with {command}."
    return f"{key} is not a setting; {hint}"


_LENGTH, _SIZES = "trainer.max_duration=12epochs", "data.min_sizes=[800]"
_PROCESSES = "the launcher starts the processes: torchrun --nproc-per-node N"

# What Lightning, ultralytics, Detectron2 and MMDetection call our settings, by the last part of the key in lower case.
ELSEWHERE = {
    "epochs": _LENGTH,
    "max_epochs": _LENGTH,
    "num_epochs": _LENGTH,
    "max_steps": "trainer.max_duration=90ksteps",
    "max_iter": "trainer.max_duration=90ksteps",
    "max_iters": "trainer.max_duration=90ksteps",
    "num_steps": "trainer.max_duration=90ksteps",
    "learning_rate": "optimizer.lr",
    "base_lr": "optimizer.lr",
    "lr0": "optimizer.lr",
    "lr_scheduler": "schedule",
    "warmup_epochs": "schedule.warmup=1epoch",
    "warmup_iters": "schedule.warmup=1000steps",
    "warmup_steps": "schedule.warmup=1000steps",
    "batch": "data.batch_size",
    "ims_per_batch": "data.batch_size",
    "workers": "data.num_workers",
    "imgsz": _SIZES,
    "img_size": _SIZES,
    "min_size_train": _SIZES,
    "max_size_train": "data.max_size",
    "accumulate_grad_batches": "trainer.accumulate",
    "gradient_clip_val": "trainer.gradient_clip",
    "check_val_every_n_epoch": "trainer.validate_every=1epoch",
    "val_check_interval": "trainer.validate_every=1epoch",
    "val_interval": "trainer.validate_every=1epoch",
    "eval_period": "trainer.validate_every=1epoch",
    "checkpoint_period": "trainer.checkpoint_every=1epoch",
    "log_every_n_steps": "trainer.log_every",
    "amp": "trainer.precision=bf16",
    "accelerator": "strategy.device",
    "devices": _PROCESSES,
    "gpus": _PROCESSES,
    "num_gpus": _PROCESSES,
    "num_nodes": _PROCESSES,
    "pretrained": "model.backbone_weights",
    "ckpt_path": "resume",
    "default_root_dir": "output_dir",
    "save_dir": "output_dir",
    "project": "output_dir",
    "conf": "score_threshold",
    "source": "input",
    "seed_everything": "seed",
}


def _settings(schema: type, prefix: str = "") -> dict[str, Any]:
    """Each dotted key of a schema and its type, sections included."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(schema).items():
        found[prefix + name] = hint
        if is_dataclass(section := _plain(hint)):
            found |= _settings(section, f"{prefix}{name}.")  # type: ignore[arg-type]
    return found


def _plain(hint: Any) -> Any:
    """X of `X | None`, else the type itself."""
    return next(a for a in get_args(hint) if a is not type(None)) if type(None) in get_args(hint) else hint


WORDS = {int: "whole number", float: "number", str: "text", bool: "switch; write true or false"}


def _in_words(hint: Any, plural: bool = False) -> str:
    """A type as people call it, such as "a list of whole numbers"."""
    noun, rest = WORDS.get(hint, "list"), ""
    if get_origin(hint) is list:
        rest = f" of {_in_words(_plain(get_args(hint)[0]), plural=True)}"
    return f"{noun}s{rest}" if plural else f"a {noun}{rest}"
