"""Hydra's and omegaconf's errors as a sentence with the key, the value and the remedy; the nearest key of an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retina_dist.errors import ConfigError, UserError


@contextmanager
def translate_hydra_errors(name: str) -> Iterator[None]:
    """Turn what Hydra and omegaconf raise into a ConfigError that names the key, the value and the remedy."""
    try:
        yield
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} cannot be read as KEY=VALUE; quote the whole argument for the shell if the value has "
            "spaces, commas or brackets."
        ) from error
    except MissingConfigException as error:
        raise ConfigError(_missing_entry(error)) from error
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
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of the configuration is no YAML: {' '.join(str(error).split())}.") from error
    except UserError:
        raise
    except ValueError as error:  # Hydra's answer to model=3 or model=null
        if "integer string conversion" in str(error):  # Python's answer to a whole number of 5000 digits
            raise ConfigError("a value is too large for a number.") from error
        if "Config group override" not in str(error):
            raise
        raise ConfigError(f"groups such as data and model take a name, as in model=retinanet_r50 ({error}).") from error


def _missing_entry(error: MissingConfigException) -> str:
    """Hydra found no file for a choice such as model=yolo."""
    group, slash, value = str(error.missing_cfg_file).partition("/")
    options = error.options or []
    if not slash:
        return f"there is no configuration {group}; give another --config-name."
    if group == "data" and (place := no_format(value)):
        return place
    value = value.removesuffix(".yaml")
    near = difflib.get_close_matches(value, options, 1, 0.75)
    hint = f"did you mean {near[0]}? There" if near else "there"
    if group == "model" and value.lower().startswith(("resnet", "resnext")):
        hint = f"give model.backbone={value}, or task=classification model=classifier model.architecture={value}; there"
    own = "" if near else "; an entry of your own needs --config-dir FOLDER, where FOLDER/" + f"{group}/{value}.yaml is"
    return f"{group}={value} does not exist; {hint} are {', '.join(options)}{own}."


def no_format(value: str) -> str:
    """That data=VALUE names no format but a place or one that is not read; "" otherwise."""
    if value.lower().startswith("yolo"):
        return f"data={value} is not read; convert YOLO's labels to COCO json, and give data=coco data.root=FOLDER."
    if not value or ("/" not in value and "." not in value and not Path(value).is_dir()):
        return ""
    place = "FOLDER" if value.endswith((".yaml", ".yml")) else value
    return f"data={value}: data is the format, not the place; write data=coco data.root={place}."


def no_value(overrides: Sequence[str], number: int, known: Iterable[str]) -> str:
    """That `overrides[number]`, which has no "=", is not KEY=VALUE, and what may be meant."""
    word, before = overrides[number], overrides[number - 1] if number else ""
    after = "".join(overrides[number + 1 : number + 3])
    if before.endswith(","):
        return f"{before} ends in a comma; write {before}{word}, without spaces after commas."
    if before.endswith("="):
        return f'{before[:-1]} has no value; write {before}{word}, without spaces around "=".'
    if after.startswith("="):
        value = overrides[number + 1][1:] or after[1:]
        return f'{word} has no value; write {word}={value}, without spaces around "=".'
    if word in known:
        return f"{word} has no value; write {word}=VALUE."
    given = {o.partition("=")[0] for o in overrides}
    if "input" in given:
        return f'{word} is not KEY=VALUE; input takes one file, a folder or a glob, as in "input=photos/*.jpg".'
    keys = ("checkpoint", "resume") if word.endswith(".pt") else ("data.root", "input", "root")
    key = next((k for k in keys if k in known and k not in given), "KEY")
    return f"{word} is not KEY=VALUE; write {key}={word}."


def _sentence(name: str, error: Exception) -> str:
    """What Hydra or omegaconf refused, with the key, the value and what would be right."""
    text = str(error)
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        key, value = several.groups()
        if re.fullmatch(r"\d+,\d+", value) and not re.search("size|scale", key):
            point = f"{key}={value.replace(',', '.')}"
            return f"{key}={value} is more than one value; write {point}, or add --multirun for a run with each."
        return (
            f'{key}={value} is more than one value; write "{key}=[{value}]" for a list, "{key}=\'{value}\'" for a text, or add '
            "--multirun for a run with each."
        )
    if absent := re.match(r"Could not override '([^']+)'\.\s+No match in the defaults list", text):
        return f"{command_of(name)} has no choice of {absent[1]}; leave {absent[1]}=… out."
    cause: BaseException = error
    key = getattr(error, "full_key", None) or ""
    while inner := cause.__cause__ or cause.__context__:
        cause, key = inner, getattr(inner, "full_key", None) or key
    if given := re.match(r"Error merging override \+*([^=]+)=", text):  # a key below a value
        return f"{given[1]} is not a setting; see the keys with {command_of(name)} --help."
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return f"{key}: {reason.rstrip('.')}." if key else f"{reason.rstrip('.')}."


def command_of(name: str) -> str:
    """How the command `name` is started."""
    return f"python -m retina_dist.{name.replace('_', ' ', 1)}"


def wrong_type(key: str, value: Any, hint: Any) -> str:
    """That a value has another type than `hint`, and how it is written, where brackets are missing."""
    given = "null" if value is None else str(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
    given = given.replace("'", "").replace(", ", ",")
    last = key.rpartition(".")[2]
    if (key, given) == ("data.batch_size", "auto"):
        return f"{key}=auto is not a whole number; give one, and trainer.accumulate=auto to fit it into the memory."
    if last in PAIRS and not given.startswith("["):
        return f"{key}={given} is not {_in_words(hint)}; write two, such as {key}={PAIRS[last]}."
    if given.startswith("[") and "list[" not in str(hint):
        return f"{key}={given} is not {_in_words(hint)}; write one, or several without brackets with --multirun."
    missing = str(hint).count("list[") - (len(given) - len(given.lstrip("[")))
    remedy = f"; write {key}={'[' * missing}{given}{']' * missing}." if missing > 0 and value is not None else "."
    return f"{key}={given} is not {_in_words(hint)}{remedy}"


def unknown_key(name: str, key: str, schema: type, content: Mapping[str, Any] | None = None) -> str:
    """That there is no such setting, and which one may be meant.

    In this order: what other tools call a setting; the same name in another section; one that is misspelled. Keys of a section that
    `content`, the composed settings, leaves out are not proposed.
    """
    if key.endswith("_target_"):
        return f"{key} is not a setting: classes are named by entries of the groups task, data, model and the like; leave it out."
    settings = settings_by_key(schema)
    known = [k for k in settings if _is_there(k, settings, content)]
    section, _, end = key.rpartition(".")
    here = [k for k in known if k.rpartition(".")[0] == section]
    near = _spelled_like(end, here) if section else []
    if not near and (meant := habit(end, known)):
        near = [meant]
        if " " in meant:
            return f"{key} is not a setting; {meant}."
    near = near or [k for k in known if k.rpartition(".")[2] == end]
    near = (
        near or difflib.get_close_matches(key, known, 1, 0.85) or _spelled_like(end, [] if section in known else known)
    )
    hint = f"did you mean {' or '.join(near)}?" if near else f"see the keys with {command_of(name)} --help."
    return f"{key} is not a setting; {hint}"


def habit(end: str, known: Iterable[str]) -> str:
    """What is called `end` elsewhere: the key of `known` that it is here, perhaps with a value, or a clause; "" for neither."""
    names = HABITS.get(end.lower().replace("-", "_"), ())
    return next(
        (n for n in (names if isinstance(names, tuple) else (names,)) if " " in n or n.partition("=")[0] in known), ""
    )


def no_argument(schema: type, key: str) -> str:
    """That the settings `schema` have no argument `key` in Python, and which one may be meant."""
    own = settings_by_key(schema)
    known = {**{f"{section}.{k}": k for section in ("data", "model", "trainer") for k in own}, **{k: k for k in own}}
    meant = habit(key, known)
    near = [known.get(meant.partition("=")[0], meant)] if meant else _spelled_like(key, list(own))
    hint = f"{meant}." if " " in meant else f"did you mean {near[0]}?" if near else "docs/settings.md lists them."
    return f"{schema.__name__} has no argument {key}; {hint}"


def _spelled_like(end: str, keys: list[str]) -> list[str]:
    """The one of `keys` whose last part is spelled like `end`, if any."""
    ends = {k.rpartition(".")[2]: k for k in reversed(keys)}
    return [ends[e] for e in difflib.get_close_matches(end, ends, 1, 0.8)]


def _is_there(key: str, settings: Mapping[str, Any], content: Mapping[str, Any] | None) -> bool:
    """Whether no section above `key` is one that may be null and that `content` leaves out."""
    value: Any = content or {}
    parts = key.split(".")
    for i, part in enumerate(parts[:-1]):
        above = ".".join(parts[: i + 1])
        value = value.get(part) if isinstance(value, Mapping) else None
        if plain(settings[above]) is not settings[above] and not isinstance(value, Mapping):
            return False
    return True


_LENGTH, _STEPS, _EACH = (
    "trainer.max_duration=12epochs",
    "trainer.max_duration=90ksteps",
    "trainer.validate_every=1epoch",
)
_SIZES = ("data.min_sizes=[640]", "data.image_size", "size=[640,640]")
_WEIGHTS = ("model.weights",)
_PROCESSES = "the launcher starts the processes: torchrun --nproc-per-node N"
_NONE = (
    "see data.hflip, data.photometric and data.iou_crop for detection, data.mixup and data.cutmix for classification"
)

# A list of two numbers for which one may be given, and what to write.
PAIRS = {"size": "[640,640]", "canvas": "[640,640]", "growth": "[0,10]", "crop_scale": "[0.5,1.0]"}
PAIRS |= {"scale_jitter": "[0.8,1.25]", "betas": "[0.9,0.999]"}

# What Lightning, ultralytics, Detectron2 and MMDetection call our settings, by the last part of the key in lower case; the first
# that the command has.
HABITS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("epochs", "epoch", "max_epochs", "num_epochs", "num_train_epochs"), _LENGTH),
    **dict.fromkeys(("max_steps", "max_iter", "max_iters", "num_steps", "iterations", "steps"), _STEPS),
    **dict.fromkeys(("lr", "learning_rate", "base_lr", "lr0"), "optimizer.lr"),
    **dict.fromkeys(("lr_scheduler", "scheduler"), "schedule"),
    "warmup_epochs": "schedule.warmup=1epoch",
    **dict.fromkeys(("warmup_iters", "warmup_steps", "warmup"), "schedule.warmup=1000steps"),
    **dict.fromkeys(("batch", "batch_size", "ims_per_batch", "bs"), ("batch_size", "data.batch_size")),
    **dict.fromkeys(("workers", "num_workers"), ("num_workers", "data.num_workers", "leave it out")),
    **dict.fromkeys(("imgsz", "img_size", "image_size", "img_scale", "min_size_train", "min_size"), _SIZES),
    "min_sizes": ("data.min_sizes", *_SIZES),
    "max_size_train": "data.max_size",
    "accumulate_grad_batches": "trainer.accumulate",
    **dict.fromkeys(("gradient_clip_val", "clip_grad"), "trainer.gradient_clip"),
    **dict.fromkeys(("check_val_every_n_epoch", "val_check_interval", "val_interval", "eval_period"), _EACH),
    **dict.fromkeys(("checkpoint_period", "save_period"), "trainer.checkpoint_every=1epoch"),
    "log_every_n_steps": "trainer.log_every",
    **dict.fromkeys(("amp", "fp16", "mixed_precision"), "trainer.precision=bf16"),
    **dict.fromkeys(("accelerator", "device"), ("device", "strategy.device")),
    **dict.fromkeys(("devices", "gpus", "num_gpus", "num_nodes", "nproc"), _PROCESSES),
    **dict.fromkeys(("weights", "pretrained", "load_from"), ("checkpoint", *_WEIGHTS, "model.backbone_weights")),
    **dict.fromkeys(("ckpt_path", "resume_from", "resume_from_checkpoint"), ("resume", "checkpoint")),
    **dict.fromkeys(("default_root_dir", "save_dir", "work_dir", "project"), "output_dir"),
    **dict.fromkeys(("path", "data_dir", "data_path"), ("data.root", "root")),
    "output": "output_dir",
    "format": ("data.format", "output=model.onnx"),
    "opset": "leave it out",
    "split": "there is no such split; give the files of one",
    "val_split": "there is no such split; give the files of the validation set",
    **dict.fromkeys(("iou", "nms"), ("model.nms_threshold", "the one of the checkpoint, model.nms_threshold, is used")),
    "checkpoint": "evaluate, predict, serve and export take a checkpoint; train takes resume=RUN, and the doctor checks data",
    **dict.fromkeys(("multi_run", "sweep"), "give --multirun to train with each of several values"),
    "conf": "score_threshold",
    **dict.fromkeys(("source", "image"), "input"),
    "seed_everything": "seed",
    **dict.fromkeys(("patience", "early_stopping"), "trainer.patience"),
    **dict.fromkeys(("optim", "optimiser"), "optimizer"),
    **dict.fromkeys(("classes", "nc", "num_classes"), ("model.num_classes", "the data decides; leave it out")),
    **dict.fromkeys(("mosaic", "copy_paste", "augment", "augmentations"), _NONE),
    **dict.fromkeys(("fliplr", "flip"), "data.hflip"),
    "flipud": "data.vflip",
}


def settings_by_key(schema: type, prefix: str = "") -> dict[str, Any]:
    """Each dotted key of a schema and its type, sections included."""
    keys: dict[str, Any] = {}
    own = {field.name for field in fields(schema)}  # without class variables
    for name, hint in get_type_hints(schema).items():
        if name not in own:
            continue
        keys[prefix + name] = hint
        if is_dataclass(section := plain(hint)):
            keys |= settings_by_key(section, f"{prefix}{name}.")  # type: ignore[arg-type]
    return keys


def plain(hint: Any) -> Any:
    """X of `X | None`, else the type itself."""
    return next(a for a in get_args(hint) if a is not type(None)) if type(None) in get_args(hint) else hint


WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "switch; write true or false"}
WORDS |= {int | str: "whole number or auto"}


def _in_words(hint: Any, plural: bool = False) -> str:
    """A type as people call it, such as "a list of whole numbers"."""
    noun, rest = WORDS.get(hint, "list"), ""
    if get_origin(hint) is list:
        rest = f" of {_in_words(plain(get_args(hint)[0]), plural=True)}"
    return f"{noun}s{rest}" if plural else f"a {noun}{rest}"
