"""From overrides to typed settings.

Hydra composes without types: the sections of NAME_schema, with which `conf/NAME.yaml` begins, are empty and open. The composed task
and the classes that entries name decide which dataclass a section has. Hydra's errors become sentences.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retina_dist.base.errors import ConfigError, UserError, first_line
from retina_dist.base.redaction import MASK, redacted
from retina_dist.base.registry import (
    FAMILIES,
    as_dict,
    lookup,
    names_class,
    readers_of,
)
from retina_dist.base.registry import register as register_class
from retina_dist.base.settings import MISSING, flattened, leaves, make, settings_by_key, validate
from retina_dist.base.unknown_keys import no_value, unknown_key
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.plugins import load_plugins
from retina_dist.config.run_config import (
    TASKS,
    OfCheckpoint,
    RunConfig,
    chosen_task,
    name_of_root,
    section_types,
    task_class,
)

logger = logging.getLogger(__name__)

# Settings of a start, which a resume does not take from the run.
OF_ONE_START = ("resume", "output_dir", "dry_run", "debug", "trainer.stop_after")

SCHEMAS: dict[str, type] = {}  # of each command by its name, as its module states it

READERS = {
    "detection": "data=auto",
    "classification": "data=folders",
}  # of a root that was not drawn
DRAWN = ("shapes.json", "drawn.json")  # in the root of drawn data


def _name_of_root(entry: str, *, _parent_: DictConfig) -> str:
    try:
        return name_of_root(_parent_.get("root") or entry)
    except OmegaConfBaseException:  # which reading the root itself raises too
        return entry


OmegaConf.register_new_resolver("name_of_root", _name_of_root, replace=True)


def config_dir() -> str:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def command_of(name: str) -> str:
    """How the command `name` is started."""
    return f"python -m retina_dist.{name.replace('_', ' ', 1)}"


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
    """Register NAME_schema with Hydra: `content` or empty sections, and the overrides' keys, which are checked later."""
    load_plugins()
    node: dict[str, Any] = dict(content or {})
    if content is None:
        for field in fields(schema_of(name)):
            default = field.default_factory() if callable(field.default_factory) else field.default
            node[field.name] = {} if is_dataclass(default) else default
    for key in _keys(overrides):
        first, dot, _ = key.partition(".")
        is_group = not dot and (Path(config_dir()) / first).is_dir()
        if re.fullmatch(r"[A-Za-z_][\w-]*", first) and first != "hydra" and not is_group:
            node.setdefault(first, {} if dot else None)
    is_open = {"struct": False}
    store = {
        k: OmegaConf.create(v, flags=is_open) if isinstance(v, dict) else v for k, v in node.items()
    }
    ConfigStore.instance().store(name=f"{name}_schema", node=store)


def load_config(name: str, overrides: Sequence[str] = ()) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object (e.g. DetectionRunConfig). Raises ConfigError.

    For use as a library: `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    """
    check_overrides(name, overrides)
    overrides = [*overrides, *data_entry(name, overrides)]
    return to_object(_composed(name, overrides), name, overrides)


def data_entry(name: str, overrides: Sequence[str]) -> list[str]:
    """The override, such as data=auto, that data.root=FOLDER implies unless it was drawn into or an override names the data."""
    given = {key: value.strip("'\"") for key, _, value in (o.partition("=") for o in overrides)}
    root, resume = given.get("data.root", "null"), given.get("resume", "auto")
    chosen = any(
        re.match(r"(data|data\.(shapes|drawn|synthetic)\b.*|experiment)$", key)
        for key in _keys(overrides)
    )
    if (
        name not in ("train", "doctor", "shards")
        or chosen
        or root in ("null", "")
        or resume not in ("auto", "null")
    ):
        return []
    drawn = any(
        os.path.isfile(f"{part.strip()}/{file}") for part in root.split(",") for file in DRAWN
    )
    return [READERS[task]] if not drawn and (task := given.get("task", TASKS[0])) in READERS else []


def _composed(name: str, overrides: Sequence[str]) -> DictConfig:
    register(name, overrides)
    with (
        translate_hydra_errors(command_of(name)),
        initialize_config_dir(config_dir(), version_base="1.3"),
    ):
        return compose(name, list(overrides))


def register_defaults(name: str, overrides: Sequence[str], also: Sequence[str] = ()) -> None:
    """Register NAME_schema with all keys of these overrides' composition, for `--cfg`; `also` are Hydra's own overrides."""
    register(name, overrides, as_dict(typed(_composed(name, [*overrides, *also]), name, overrides)))


def described(
    name: str, overrides: Sequence[str], also: Sequence[str] = ()
) -> tuple[Any, dict[str, str]]:
    """A command's settings with these overrides, except swept ones, and the redacted values by key."""
    with translate_hydra_errors(command_of(name)):
        parsed = OverridesParser.create().parse_overrides(
            [*overrides, *data_entry(name, overrides)]
        )
    overrides = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
    config = typed(_composed(name, [*overrides, *also]), name, overrides)
    flat = {key: text for key, text in flattened(as_dict(config)).items() if text != MISSING}
    shown = {
        key: redacted(f'{key}="{text}"').partition("=")[2][1:-1]
        for key, text in flat.items()
        if text != "null"
    }
    return config, flat | shown


def to_object(composed: DictConfig, name: str, overrides: Sequence[str] = ()) -> Any:
    """The dataclass instance of a composed config, validated; `overrides` are what the command line added. Raises ConfigError."""
    config = typed(composed, name, overrides)
    for key in sorted(key for key, value in leaves(as_dict(config)) if value == MISSING):
        raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
    validate(config)
    if isinstance(config, RunConfig):
        settings = task_class(config).settings
        if hasattr(settings, "check"):
            settings.check(config)
    return config


def typed(composed: DictConfig, name: str, overrides: Sequence[str]) -> Any:
    """The composed values as the command's dataclass, each key and type checked."""
    with translate_hydra_errors(command_of(name)):
        content: Any = OmegaConf.to_container(composed, resolve=True)
    content = _with_run(content, name, overrides)
    command, again = schema_of(name), {}
    if issubclass(command, OfCheckpoint):
        again = _named_again(content, _keys(overrides))
    schema, sections = section_types(command, content)
    for group, kind in sections.items():
        if names_class(content.get(group)) and hasattr(kind, "family"):
            del content[group]["_target_"]
    _check_keys(name, schema, sections, content, overrides)
    config: Any = make(schema, content, sections=sections)
    for attribute, value in again.items():
        setattr(config, attribute, value)
    return config


def _named_again(content: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """Take `task`, `model` and `data` out of composed settings; return `OfCheckpoint`'s values. Raises ConfigError."""
    if not any(key.startswith("data.") for key in given):
        content.pop("data", None)  # of the task's entry
    again: dict[str, Any] = {}
    for group in ("task", "model"):
        if group not in content:
            continue
        section = content.pop(group)
        if names_class(section):
            if group == "task":
                again["outside_task"] = chosen_task({"task": section})
            else:
                again["outside_model"] = register_class("detector", section["_target_"]).settings
        elif group in given:
            raise ConfigError(
                f"a checkpoint names a {group} of the package itself; leave {group}=… out."
            )
        elif any(key.startswith(f"{group}.") for key in given):
            content[group] = section  # whose keys are unknown
    return again


def _keys(overrides: Iterable[str]) -> set[str]:
    return {o.lstrip("+~").partition("=")[0].partition("@")[0] for o in overrides}


def _with_run(composed: dict[str, Any], name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The settings that the run of `resume=RUN` wrote into its config.yaml, with those that the overrides give.

    Keys that this version lacks are left out, and nothing that the file names is looked up. With `experiment`, nothing is taken.
    """
    resume, given = composed.get("resume"), _keys(overrides)
    if (
        not isinstance(resume, str)
        or resume in ("", "auto")
        or "://" in resume
        or "experiment" in given
    ):
        return composed
    folder = Path(resume)  # a run folder, its checkpoints or one of them
    folder = folder.parent if folder.suffix == ".pt" else folder
    file = (folder.parent if folder.name == "checkpoints" else folder) / "config.yaml"
    if not file.is_file():
        return composed
    try:
        run: Any = OmegaConf.to_container(OmegaConf.create(load_yaml(file)))
        task = (run.get("task") or {}).get("name")
        for key in (*OF_ONE_START, *sorted(k for k in given if not k.startswith("hydra"))):
            _copy(key, composed, run)
    except (
        OSError,
        OmegaConfBaseException,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(
            f"{file} does not hold the settings of a run ({first_line(error)}); remove it."
        ) from error
    now = (run.get("task") or {}).get("name")
    if task not in (None, now):
        raise ConfigError(
            f"{resume} is a run of task={task}; leave task={now} out, or start a new run."
        )
    for group, section in run.items():
        if names_class(section) and group not in given:
            raise ConfigError(
                f"{file} has {group} from outside the package, which no file imports; give {group}=NAME."
            )
    for key, value in leaves(run):
        if isinstance(value, str) and MASK in value:
            raise ConfigError(f"{file} holds {key} without its secret; give {key}=… again.")
    schema, sections = section_types(schema_of(name), run)
    _remove_unknown(run, set(settings_by_key(schema, sections=sections)), given, file)
    return dict(run)


def _copy(key: str, source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy the value of the dotted `key` from `source` to `target`, None if `source` lacks it."""
    *sections, last = key.split(".")
    for section in sections:
        source, target = source.get(section) or {}, target.setdefault(section, {})
    target[last] = source.get(last)


def _remove_unknown(
    section: dict[str, Any], known: set[str], given: set[str], file: Path, prefix: str = ""
) -> None:
    for name in list(section):
        key = f"{prefix}{name}"
        if key not in known and not any(
            f"{key}.".startswith(f"{k}.") or k.startswith(f"{key}.") for k in given
        ):
            del section[name]
            logger.info(f"{file}: {key} is not a setting of this version")
        elif isinstance(section[name], dict):
            _remove_unknown(section[name], known, given, file, f"{key}.")


def _check_keys(
    name: str,
    schema: type,
    sections: Mapping[str, type],
    content: dict[str, Any],
    overrides: Sequence[str],
) -> None:
    """Raise ConfigError for the first key that the schema lacks, or that is given where nothing would read it."""
    known, given = settings_by_key(schema, sections=sections), _keys(overrides)
    for key, value in leaves(content):
        if key not in known:
            other = _of_another_entry(key, sections, content)
            if not other and key not in given:
                other = _of_another_task(key, content)
            raise ConfigError(other or unknown_key(command_of(name), key, known, value))
    for key in sorted(given & set(known)):
        section, _, _ = key.rpartition(".")
        optional = section in known and type(None) in get_args(known[section])
        if optional and not any(
            k.startswith(f"{section}.") and k not in given for k, _ in leaves(content)
        ):
            group, _, part = section.partition(".")
            entries = sorted((Path(config_dir()) / group).glob("*.yaml"))
            having = [
                f"{group}={e.stem}"
                for e in entries
                if re.search(rf"^{part}:", e.read_text(), re.MULTILINE)
            ]
            chosen = {o for o in overrides if o.startswith(f"{group}=")} or {
                f"{group}={content[group].get('name')}"
            }
            if not chosen & set(having):
                raise ConfigError(
                    f"{key} is read with {' or '.join(having)} only; choose that, or leave {key} out."
                )


def _of_another_entry(key: str, sections: Mapping[str, type], content: Mapping[str, Any]) -> str:
    """Message for a `key` that the chosen entry of a family lacks and another has; "" for other keys."""
    section, _, name = key.partition(".")
    family = getattr(sections.get(section), "family", "")
    others = readers_of(family, name) if family else []
    if not others:
        return ""
    given = content[section]
    chosen = f"{section}={given.get(FAMILIES[family].key)}"
    choices = " or ".join(f"{section}={other}" for other in others)
    return f"{key}={given[name]} has no effect with {chosen}; leave it out, or give {choices}."


def _of_another_task(key: str, content: Mapping[str, Any]) -> str:
    """Message for a chosen entry of data or model whose `key` is another built-in task's; "" for other keys."""
    tasks = [task for task in TASKS if key in settings_by_key(lookup("task", task).settings)]
    section = key.partition(".")[0]
    if (
        section not in ("data", "model")
        or not tasks
        or not isinstance(content.get("task"), Mapping)
    ):
        return ""
    named = (
        f"{section}={content[section]['name']}" if "name" in content[section] else f"this {section}"
    )
    return f"{named} is for task={tasks[0]}, but the task is {content['task'].get('name')}; give task={tasks[0]}."


def check_overrides(name: str, overrides: Sequence[str]) -> None:
    """Raise ConfigError unless each is KEY=VALUE, and for values such as 1_0 and 2026_01, which Hydra reads as 10 and 202601."""
    if isinstance(overrides, str):
        raise ConfigError(f'overrides is of type str; give a list such as ["{overrides}"].')
    for number, override in enumerate(overrides):
        key, equals, value = override.partition("=")
        if not equals and not override.startswith("~"):
            raise ConfigError(no_value(overrides, number, _known_keys(name)))
        if re.fullmatch(r"[+-]?\d[\d.]*(_\d[\d.]*)+(e[+-]?\d+)?", value.strip(), re.IGNORECASE):
            plain = value.replace("_", "")
            raise ConfigError(
                f"{override} is not a plain number; write {key}={plain}, or \"{key}='{value}'\" as text."
            )


def _known_keys(name: str) -> dict[str, Any]:
    """The keys of a command whose entries are those of the defaults."""
    schema, sections = section_types(schema_of(name), {})
    return settings_by_key(schema, sections=sections)


@contextmanager
def translate_hydra_errors(command: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a ConfigError that names the key, the value and the remedy."""
    try:
        yield
    except UserError:
        raise
    except OverrideParseException as error:
        raise ConfigError(_unreadable(str(error.override))) from error
    except MissingConfigException as error:
        raise ConfigError(_missing_entry(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(command, error)) from error
    except yaml.YAMLError as error:
        raise ConfigError(
            f"a file of the configuration is not YAML: {' '.join(str(error).split())}."
        ) from error
    except ValueError as error:
        if "Config group override" not in str(error):  # Hydra's answer to model=3 or model=null
            raise
        raise ConfigError(
            f"groups such as data and model take a name, as in model=retinanet_r50 ({error})."
        ) from error


def _unreadable(override: str) -> str:
    """Message for an override that Hydra cannot parse, with what to write."""
    key, _, value = override.partition("=")
    remedy = "close its brackets, or quote it"
    if value.startswith("(") and value.endswith(")"):
        remedy = f'write "{key}=[{value[1:-1]}]"'
    if value.startswith("~/"):  # which the shell leaves as it is
        remedy = f"write {key}=$HOME{value[1:]}"
    return f"{override} cannot be read as KEY=VALUE; {remedy}."


def _missing_entry(error: MissingConfigException) -> str:
    """Message for a choice without a file, such as model=yolo."""
    group, slash, value = str(error.missing_cfg_file).partition("/")
    if not slash:
        return f"there is no configuration {group}; give another --config-name."
    if (
        group == "data"
        and value
        and (re.search(r"[/.]|^yolo", value, re.IGNORECASE) or Path(value).is_dir())
    ):
        place = "FOLDER" if re.search(r"\.ya?ml$|^yolo", value, re.IGNORECASE) else value
        return f"data={value} is not an entry; give data=auto data.root={place}, which recognises the format."
    value, options = value.removesuffix(".yaml"), error.options or []
    if group == "model" and ("/" in value or value.endswith(".pt")):
        return f"model={value}: model is the kind of network; write checkpoint={value} or, in a training, model.weights={value}."
    near = get_close_matches(value, options, 1, 0.75)
    hint = f"did you mean {near[0]}? There" if near else "there"
    if group == "model" and value.lower().startswith(("resnet", "resnext")):
        hint = f"give model.backbone={value}, or task=classification model=classifier model.architecture={value}; there"
    own = (
        ""
        if near
        else "; an entry of your own needs --config-dir FOLDER, where FOLDER/"
        + f"{group}/{value}.yaml is"
    )
    return f"{group}={value} does not exist; {hint} are {', '.join(options)}{own}."


def _sentence(command: str, error: Exception) -> str:
    text = str(error)
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        key, value = several.groups()
        lists = f'write "{key}=[{value}]" for a list, "{key}=\'{value}\'" for a text, a point in a number'
        return (
            f"{key}={value} is more than one value; {lists}, or add --multirun for a run with each."
        )
    if absent := re.match(r"Could not override '([^']+)'\.\s+No match in the defaults list", text):
        return f"{command} has no choice of {absent[1]}; leave {absent[1]}=… out."
    cause: BaseException = error
    key = getattr(error, "full_key", None) or ""
    while inner := cause.__cause__ or cause.__context__:
        cause, key = inner, getattr(inner, "full_key", None) or key
    if given := re.match(r"Error merging override \+*([^=]+)=", text):  # a key below a value
        return f"{given[1]} is not a setting; see the keys with {command} --help."
    reason = next(
        (line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__
    )
    return f"{key}: {reason.rstrip('.')}." if key else f"{reason.rstrip('.')}."
