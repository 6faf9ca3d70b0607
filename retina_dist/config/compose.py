"""From overrides to typed settings.

Hydra composes without types: the sections of NAME_schema, with which `conf/NAME.yaml` begins, are
empty and open. The composed task and the classes that entries name decide which dataclass a section
has. Hydra's errors become sentences.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retina_dist.base import registry
from retina_dist.base.arguments import public
from retina_dist.base.errors import ConfigError
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.registry import FAMILIES, as_dict, family_of, lookup, names_class, readers_of
from retina_dist.base.settings import (
    MISSING,
    Checked,
    Content,
    default_of,
    flattened,
    is_known,
    leaves,
    make,
    settings_by_key,
    validate,
)
from retina_dist.base.unknown_keys import no_value, unknown_key
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.hydra_errors import GROUPS, translate_hydra_errors
from retina_dist.config.plugins import load_plugins
from retina_dist.config.resumed_settings import config_file, settings_of_run
from retina_dist.config.run_config import (
    TASKS,
    OfCheckpoint,
    RunConfig,
    chosen_task,
    name_of_root,
    section_types,
    task_class,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMAS: dict[str, type] = {}  # of each command by its name, as its module states it

# The entry of the data for a root that was not drawn.
READERS = {"detection": "data=auto", "classification": "data=folders"}
# the recipe for data of one's own
RECIPES = {
    "detection": "experiment=finetune",
    "classification": "experiment=finetune_classifier",
}
# which say where the data are, as data.root does
FILE_KEYS = [
    f"data.{split}_{what}" for split in ("train", "val") for what in ("annotations", "images")
]
DRAWN = ("shapes.json", "drawn.json")  # in the root of drawn data
# an entry of the data, settings of drawn ones or a recipe
CHOOSES_DATA = re.compile(r"data|data\.(shapes|drawn|synthetic)\b.*|experiment")
# the recipe without any of these, and without a place of data
DEFAULT_JOB = "experiment=shapes"
CHOOSES_JOB = re.compile(rf"task|model|optimizer|schedule|trainer|{CHOOSES_DATA.pattern}")
# KEY=VALUE, or ~KEY of a setting; a run needs each group, with one entry, but takes recipes
_GROUP = f"(?!experiment)({'|'.join(GROUPS)})"
COMPLETE = re.compile(rf"(?!{_GROUP}=\[)[^=]*=|~(?!{_GROUP}$)")


def _name_of_root(entry: str, *, _parent_: DictConfig) -> str:
    try:
        return name_of_root(_parent_.get("root") or entry)
    except OmegaConfBaseException:  # which reading the root itself raises too
        return entry


def _unless_pretrained(norm: str, *, _parent_: DictConfig) -> str | None:
    if _parent_.get("weights") or _parent_.get("backbone_weights"):
        return None
    return norm


OmegaConf.register_new_resolver("name_of_root", _name_of_root, replace=True)
OmegaConf.register_new_resolver("unless_pretrained", _unless_pretrained, replace=True)


def config_dir() -> Path:
    """Directory of the Hydra configs: `retina_dist/conf` once installed, `conf/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    if (package / "conf").is_dir():
        return package / "conf"
    return package.parent / "conf"


def command_of(name: str) -> str:
    """How the command `name` is started."""
    return f"python -m retina_dist.{name.replace('_', ' ', 1)}"


def schema_of(name: str) -> type:
    """The settings of the command `name`, such as "train" or "benchmark_step"."""
    if str(name) not in SCHEMAS:
        if not (config_dir() / f"{name}.yaml").is_file():
            commands = sorted(path.stem for path in config_dir().glob("*.yaml"))
            near = get_close_matches(str(name), commands, 1) or commands
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigError(
                    f'{name} is no command; write load_config("train", ["KEY=VALUE"]).'
                )
            raise ConfigError(f"there is no command {name}; did you mean {' or '.join(near)}?")
        import_module(f"retina_dist.{name.replace('benchmark_', 'benchmark.')}")
    return SCHEMAS[name]


def commands_with(key: str) -> list[str]:
    """The commands that have a setting, as they are started."""
    commands = []
    for file in sorted(config_dir().glob("*.yaml")):
        schema, sections = section_types(schema_of(file.stem), {})
        if key in settings_by_key(schema, sections=sections):
            commands.append(command_of(file.stem))
    return commands


def register(name: str, overrides: Iterable[str], content: Content | None = None) -> None:
    """Register NAME_schema with Hydra: `content` or empty sections, and the overrides' keys."""
    load_plugins()
    _add_groups()
    node = dict(_empty(schema_of(name)) if content is None else content)
    for key in _values(overrides):
        first, dot, _ = key.partition(".")
        is_group = not dot and (config_dir() / first).is_dir()
        if re.fullmatch(r"[A-Za-z_][\w-]*", first) and first != "hydra" and not is_group:
            node.setdefault(first, {} if dot else None)

    for key, value in node.items():
        if isinstance(value, dict):
            node[key] = OmegaConf.create(value, flags={"struct": False})
    ConfigStore.instance().store(name=f"{name}_schema", node=node)


def _empty(schema: type) -> Content:
    """The defaults of a command's own settings, and its sections, empty."""
    content = {}
    for field in fields(schema):
        default = default_of(field)
        content[field.name] = {} if is_dataclass(default) else default
    return content


def _add_groups() -> None:
    """Let each entry of a family be chosen by its name, also where no file of its group has it."""
    for family, kind in FAMILIES.items():
        if kind.key != "name" or not kind.settings:
            continue
        for name in registry.names(family):
            if not (config_dir() / kind.section / f"{name}.yaml").is_file():
                ConfigStore.instance().store(group=kind.section, name=name, node={"name": name})


@public
def load_config(name: str, overrides: Sequence[str] = ()) -> Any:
    """Compose `conf/NAME.yaml` with Hydra overrides into its typed object, such as a `RunConfig`.

    Raises ConfigError.

    For use as a library:
    `train(load_config("train", ["experiment=bccd", "data.root=/data/bccd"]))`.
    """
    check_overrides(name, overrides)
    overrides = [*overrides, *data_entry(name, overrides)]
    return to_object(_composed(name, overrides), name, overrides)


def data_entry(name: str, overrides: Sequence[str]) -> list[str]:
    """The override that a command line implies: data=auto for a place of data, the recipe of the
    default job where no entry is chosen.
    """
    given = _values(overrides)
    _, place = place_of_data(overrides)
    is_resumed = config_file(given.get("resume")) is not None
    if name not in ("train", "doctor", "shards") or is_resumed:
        return []
    if place in ("null", ""):
        if name == "shards" or any(map(CHOOSES_JOB.fullmatch, given)):
            return []
        return [DEFAULT_JOB]

    entry = READERS.get(given.get("task", TASKS[0]))
    if entry is None or any(map(CHOOSES_DATA.fullmatch, given)):
        return []
    for root, file in product(place.split(","), DRAWN):
        if os.path.isfile(f"{root.strip()}/{file}"):
            return []
    return [entry]


def repeated(overrides: Sequence[str]) -> str:
    """A sentence on settings that are given twice, where the last one counts, or that lack what
    belongs to them or take its place; "" for none.
    """
    given = _values(overrides)
    name = given.get("optimizer.name", "")
    if name and "optimizer" not in given:
        return (
            f"optimizer.name={name} keeps the other's lr and weight_decay; give optimizer={name}."
        )
    kept = _lr_of_recipe(given)
    if kept:
        return f"optimizer={given['optimizer']} keeps the recipe's {kept}; give optimizer.lr too."
    if config_file(given.get("resume")) and "experiment" in given:
        return "experiment takes the place of all settings of the run; leave it out to keep them."
    folder = given.get("output_dir", "")
    if re.search("(?<![:/])//", folder) or _lacks_name(folder):
        return f"output_dir={folder} has no name behind a slash, as of an unset variable."
    last: dict[str, str] = {}
    for override in overrides:
        key, equals, _ = override.lstrip("+").partition("=")
        if equals and last.get(key, override) != override:
            return f"{last[key]} and {override} are both given; {override} counts: leave one out."
        last[key] = override
    return ""


def _lr_of_recipe(given: Mapping[str, str]) -> str:
    """The lr that a recipe sets for another optimizer than the given one; "" for none."""
    recipe = config_dir() / "experiment" / f"{given.get('experiment')}.yaml"
    if "optimizer" not in given or "optimizer.lr" in given or not recipe.is_file():
        return ""
    content = load_yaml(recipe, as_texts=True)
    lr = (content.get("optimizer") or {}).get("lr")
    chosen: dict[str, str] = {}
    for entry in (*load_yaml(config_dir() / "train.yaml")["defaults"], *content["defaults"]):
        if isinstance(entry, dict):
            chosen |= entry
    own = chosen.get("override /optimizer", chosen["optimizer"])
    return f"lr={lr}, for {own}" if lr and own != given["optimizer"] else ""


def _lacks_name(folder: str) -> bool:
    """Whether a folder ends as `runs/$UNSET` does: it is the place of runs, and none itself."""
    place = Path(folder)
    if not folder.endswith("/") or (place / "config.yaml").exists():
        return False
    return folder.count("/") == 1 or any(place.glob("*/config.yaml"))


def place_of_data(overrides: Iterable[str]) -> tuple[str, str]:
    """The key and value of the first override that says where the data are, "null" without one."""
    given = _values(overrides)
    for key in ("data.root", *FILE_KEYS):
        if key in given:
            return key, given[key]
    return "", "null"


def _values(overrides: Iterable[str]) -> dict[str, str]:
    values = {}
    for each in overrides:
        key, _, value = each.lstrip("+~").partition("=")
        values[key.partition("@")[0]] = value.strip("'\"")
    return values


def _composed(name: str, overrides: Sequence[str]) -> DictConfig:
    register(name, overrides)
    GlobalHydra.instance().clear()  # a command may compose the settings of a run
    with (
        translate_hydra_errors(command_of(name)),
        initialize_config_dir(str(config_dir()), version_base="1.3"),
    ):
        return compose(name, list(overrides))


def register_defaults(name: str, overrides: Sequence[str], also: Sequence[str]) -> None:
    """Register NAME_schema with all keys of a composition, for `--cfg`; `also` are Hydra's."""
    config = typed(_composed(name, [*overrides, *also]), name, overrides)
    register(name, overrides, as_dict(config))


def described(
    name: str, overrides: Sequence[str], also: Sequence[str] = ()
) -> tuple[object, dict[str, str]]:
    """A command's settings without swept overrides, and the redacted values by key."""
    with translate_hydra_errors(command_of(name)):
        given = [*overrides, *data_entry(name, overrides)]
        parsed = OverridesParser.create().parse_overrides(given)
    fixed = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
    config = typed(_composed(name, [*fixed, *also]), name, fixed)

    shown = flattened(redacted_tree(as_dict(config)))
    return config, {key: text for key, text in shown.items() if text != MISSING}


def to_object(composed: DictConfig, name: str, overrides: Sequence[str]) -> Any:
    """The dataclass instance of a composed config, validated.

    `overrides` are what the command line added. Raises ConfigError.
    """
    config = typed(composed, name, overrides)
    for key, value in sorted(leaves(as_dict(config)), key=itemgetter(0)):
        if value == MISSING:
            raise ConfigError(f"{key} is not set; give {key}=… on the command line.")
    validate(config)
    if isinstance(config, RunConfig):
        settings = task_class(config).settings
        if issubclass(settings, Checked):
            settings.check(config)
    return config


def typed(composed: DictConfig, name: str, overrides: Sequence[str]) -> DataclassInstance:
    """The composed values as the command's dataclass, each key and type checked."""
    with translate_hydra_errors(command_of(name)):
        content: Any = OmegaConf.to_container(composed, resolve=True)
    given = set(_values(overrides))
    command = schema_of(name)
    content = settings_of_run(content, command, given)
    named_again: Content = {}
    if issubclass(command, OfCheckpoint):
        named_again = _named_again(content, given)

    schema, sections = section_types(command, content)
    for group, kind in sections.items():
        if names_class(content.get(group)) and family_of(kind):
            del content[group]["_target_"]
    known = settings_by_key(schema, sections=sections)
    for key, value in leaves(content):
        if not is_known(key, known):
            reason = _of_another_entry(key, sections, content)
            if not reason and key not in given:
                recipe = _values(overrides).get("experiment", "")
                reason = _of_another_task(key, content, recipe)
            others = commands_with(key)
            raise ConfigError(reason or unknown_key(command_of(name), key, known, value, others))
    for key in sorted(given.intersection(getattr(command, "unread", ()))):
        raise ConfigError(f"{key} is not read: the images are noise; leave it out.")
    _check_read(known, content, overrides)
    config: DataclassInstance = make(schema, content, sections=sections)
    for attribute, value in named_again.items():
        setattr(config, attribute, value)
    return config


def _named_again(content: Content, given: set[str]) -> Content:
    """Take `task`, `model` and `data` out of composed settings; return `OfCheckpoint`'s values.

    Raises ConfigError.
    """
    if not any(key.startswith("data.") for key in given):
        content.pop("data", None)  # of the task's entry
    again: Content = {}
    for group in ("task", "model"):
        if group not in content:
            continue
        section = content.pop(group)
        if names_class(section) and group == "task":
            again["outside_task"] = chosen_task({"task": section})
        elif names_class(section):
            again["outside_model"] = registry.register("detector", section["_target_"]).settings
        elif group in given:
            raise ConfigError(
                f"a checkpoint names a {group} of the package itself; leave {group}=… out."
            )
        elif any(key.startswith(f"{group}.") for key in given):
            content[group] = section  # whose keys are unknown
    return again


def _of_another_entry(key: str, sections: Mapping[str, type], content: Content) -> str:
    """Message for a `key` that another entry of the family has; "" for other keys."""
    section, _, name = key.partition(".")
    family = family_of(sections.get(section, object))
    others = family and readers_of(family, name)
    if not others:
        return ""
    given = content[section]
    chosen = f"{section}={given.get(FAMILIES[family].key)}"
    choices = " or ".join(f"{section}={other}" for other in others)
    return f"{key}={given[name]} has no effect with {chosen}; leave it out, or give {choices}."


def _of_another_task(key: str, content: Content, recipe: str) -> str:
    """Message for an entry of data or model, or a recipe, that is for another task; "" for other
    keys.
    """
    section, _, _ = key.partition(".")
    chosen = content.get("task")
    if section not in ("data", "model") or not isinstance(chosen, Mapping):
        return ""
    named = f"this {section}"
    if "name" in content[section]:
        named = f"{section}={content[section]['name']}"
    for task in TASKS:
        if key in settings_by_key(lookup("task", task).settings):
            now = chosen.get("name")
            if recipe and f"experiment={recipe}" != DEFAULT_JOB:
                return (
                    f"experiment={recipe} is for task={task}, but the task is {now}; leave "
                    f"task={now} out, or give {RECIPES.get(str(now), 'its own')}."
                )
            return f"{named} is for task={task}, but the task is {now}; give task={task}."
    return ""


def _check_read(known: Content, content: Content, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a key of an optional section that the command line alone makes.

    Nothing would read it: the chosen entry does not have the section.
    """
    given = set(_values(overrides))
    read = {key.rpartition(".")[0] for key, _ in leaves(content) if key not in given}
    for key in sorted(given & known.keys()):
        section, _, _ = key.rpartition(".")
        is_optional = section in known and type(None) in get_args(known[section])
        if not is_optional or section in read:
            continue

        group, _, part = section.partition(".")
        having = _entries_with(group, part)
        named = f"{group}={content[group].get('name')}"
        chosen = [each for each in overrides if each.startswith(f"{group}=")] or [named]
        if not set(chosen) & set(having):
            raise ConfigError(
                f"{key} is read with {' or '.join(having)} only; choose that, or leave {key} out."
            )


def _entries_with(group: str, section: str) -> list[str]:
    """The choices of a group whose file has a section of that name."""
    choices = []
    for entry in sorted((config_dir() / group).glob("*.yaml")):
        if re.search(rf"^{section}:", entry.read_text(), re.MULTILINE):
            choices.append(f"{group}={entry.stem}")
    return choices


def _without_value(key: str, following: str) -> str:
    """Message for a setting without a value, and what follows it."""
    if following and "=" not in following:
        return f"{key} is empty, since a space follows it; write {key}={following}."
    return f"{key} is empty, as of an unset variable; give a value, or leave it out."


def check_overrides(name: str, overrides: Sequence[str]) -> None:
    """Raise ConfigError unless each is KEY=VALUE, and for 2026_01, which Hydra reads as 202601."""
    if not isinstance(overrides, list | tuple):
        raise ConfigError(
            f'overrides is of type {type(overrides).__name__}; give a list such as ["data.root=a"].'
        )
    for number, override in enumerate(overrides):
        key, equals, value = override.partition("=")
        if equals and not value:
            raise ConfigError(_without_value(key, "".join(overrides[number + 1 : number + 2])))
        has_no_value = not COMPLETE.match(override)
        if has_no_value or "/" in key:
            schema, sections = section_types(schema_of(name), {})
            known = {"experiment": str, **settings_by_key(schema, sections=sections)}
            if has_no_value:
                raise ConfigError(no_value(overrides, number, known))
            meant = key.replace("/", ".")
            if meant in known:
                raise ConfigError(f"{key} is not a setting; write {meant}={value}.")
        if re.fullmatch(r"[+-]?\d[\d.]*(_\d[\d.]*)+(e[+-]?\d+)?", value.strip(), re.IGNORECASE):
            plain = value.replace("_", "")
            raise ConfigError(
                f"{override} is not a plain number; write {key}={plain}, "
                f"or \"{key}='{value}'\" as text."
            )
