"""From what Hydra and omegaconf raise to a sentence with the key, the value and the nearest valid key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from retina_dist.config.commands import ACTIVE
from retina_dist.errors import ConfigError, UserError

# What Hydra makes an object of, by the class that a configuration names; nothing else of a configuration names one.
HYDRAS_CLASSES = {"hydra.callbacks": Callback, "hydra.launcher": Launcher, "hydra.sweeper": Sweeper}


@contextmanager
def translate_hydra_errors(name: str) -> Iterator[None]:
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
            "a key below data.shapes, data.drawn or data.synthetic, such as data.shapes.num_train=…, can be set with data=shapes, "
            "data=drawn_classes or data=synthetic only."
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
    known = settings_by_key(ACTIVE[name])
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", str(error)):
        key, value = several.groups()
        one = f"[{value}]" if get_origin(known.get(key)) is list else f"'{value}'"
        return (
            f'{key}={value} is more than one value; write "{key}={one}" if one is meant, or add --multirun for a run '
            "with each."
        )
    if absent := re.match(r"Could not override '([^']+)'\.\s+No match in the defaults list", str(error)):
        return f"python -m retina_dist.{name.replace('_', ' ')} has no choice of {absent[1]}; leave {absent[1]}=… out."
    cause, key = _cause(error)
    file = re.match(r"In '([^']+)'", str(error))
    where = f"{file[1]}.yaml: " if file else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and key:
        asked = re.match(r"Could not override '([^']+)'", str(error))
        return where + unknown_key(name, asked[1] if asked and asked[1] not in known else key)
    if given := re.match(r"Error merging override \+*([^=]+)=(.*)", str(error)):
        if given[1] not in known:
            return unknown_key(name, given[1])
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


def unknown_key(name: str, key: str) -> str:
    """That there is no such setting, and which one may be meant: one that ends alike, else one spelled alike."""
    if key.endswith("_target_"):
        return f"{key} is not a setting: only {', '.join(HYDRAS_CLASSES)} name classes; leave it out."
    settings = settings_by_key(ACTIVE[name])
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


def settings_by_key(schema: type, prefix: str = "") -> dict[str, Any]:
    """Each dotted key of a schema and its type, sections included."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(schema).items():
        found[prefix + name] = hint
        if is_dataclass(section := _plain(hint)):
            found |= settings_by_key(section, f"{prefix}{name}.")  # type: ignore[arg-type]
    return found


def _plain(hint: Any) -> Any:
    """X of `X | None`, else the type itself."""
    return next(a for a in get_args(hint) if a is not type(None)) if type(None) in get_args(hint) else hint


WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "switch; write true or false"}
WORDS |= {int | str: "whole number or auto"}


def _in_words(hint: Any, plural: bool = False) -> str:
    """A type as people call it, such as "a list of whole numbers"."""
    noun, rest = WORDS.get(hint, "list"), ""
    if get_origin(hint) is list:
        rest = f" of {_in_words(_plain(get_args(hint)[0]), plural=True)}"
    return f"{noun}s{rest}" if plural else f"a {noun}{rest}"
