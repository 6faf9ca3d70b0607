"""The reference of all settings, as a page and for editors.

python scripts/settings_reference.py > docs/settings.md
python scripts/settings_reference.py --schema > conf/schema.json    the keys of an experiment
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Iterator
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from retina_dist.base.registry import FAMILIES, Entry, lookup, names
from retina_dist.base.settings import (
    Limits,
    default_of,
    kinds_of,
    limits_of,
    section_of,
    sections_of,
)
from retina_dist.config.compose import config_dir, load_config, schema_of
from retina_dist.config.help import allowed, type_in_words, value_in_words
from retina_dist.config.run_config import TASKS, RunConfig

HEAD = """# Settings

Every key, written by `python scripts/settings_reference.py`. The default holds where no file of
`conf/` gives a value, and in Python. The default run is `python -m retina_dist.train` without
arguments; its value stands where it is another. `--cfg job` prints the values of any command line.
The settings of a training come first, those of the other commands after them.

`conf/schema.json` has the same keys, types, choices, limits and meanings for an editor. In VS Code
with the YAML extension, a first line completes and checks an experiment's file:

```yaml
# yaml-language-server: $schema=/path/to/conf/schema.json
```

The file lies beside the installed configuration:
`python -c "from retina_dist.config.compose import config_dir; print(config_dir())"`."""

COLUMNS = ("key", "type", "default", "default run", "allowed", "meaning")


def key_reference() -> str:
    """A table for each section of a training's settings, and for what each command adds to them."""
    values = _values(load_config("train"))
    blocks = [HEAD, "## `python -m retina_dist.train`"]
    for name, section in (
        sections_of(RunConfig) | sections_of(lookup("task", TASKS[0]).settings)
    ).items():
        if name in FAMILIES and FAMILIES[name].key and FAMILIES[name].settings:
            blocks += _entries(name, section, values)
        else:
            blocks += _section(name, section, values)
    blocks[2:2] = _table(RunConfig, "", values)

    for task in TASKS[1:]:
        blocks.append(f"## `task={task}`\n\nThese sections take the places of those above.")
        values = _values(load_config("train", [f"task={task}"]))
        for name, section in sections_of(lookup("task", task).settings).items():
            blocks += _section(name, section, values)

    for command in sorted(path.stem for path in config_dir().glob("*.yaml")):
        if command == "train":
            continue
        schema = schema_of(command)
        blocks.append(f"## `python -m retina_dist.{command.replace('benchmark_', 'benchmark ')}`")
        skipped: set[str] = set()
        if issubclass(schema, RunConfig):
            blocks.append("Also takes the settings of `train`.")
            skipped = {field.name for field in dataclasses.fields(RunConfig)}
        blocks += _table(schema, "", {}, skipped)
    return "\n\n".join(blocks) + "\n"


def _values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Each setting's value by its dotted key."""
    values: dict[str, Any] = {}
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            values |= _values(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def _section(name: str, schema: type, values: dict[str, Any]) -> Iterator[str]:
    """The table of a section, then those of the sections in it."""
    yield f"### `{name}`\n\n{(schema.__doc__ or '').splitlines()[0]}"
    yield from _table(schema, f"{name}.", values)
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        section = section_of(hints[field.name])
        if section:
            yield from _section(f"{name}.{field.name}", section, values)


def _entries(family: str, base: type, values: dict[str, Any]) -> Iterator[str]:
    """The table of what all entries of a family have, then of what each adds."""
    common = {field.name for field in dataclasses.fields(base)}
    yield f"### `{family}`\n\n{(base.__doc__ or '').splitlines()[0]}"
    yield from _table(base, f"{family}.", values)
    for name in names(family):
        settings = lookup(family, name).settings
        yield f"### `{family}={name}`\n\n{(settings.__doc__ or '').splitlines()[0]}"
        yield from _table(settings, f"{family}.", values, common)


def _table(
    schema: type, prefix: str, values: dict[str, Any], skipped: Collection[str] = ()
) -> Iterator[str]:
    hints = get_type_hints(schema)
    rows = []
    for field in dataclasses.fields(schema):
        if field.name not in skipped and not section_of(hints[field.name]):
            cells = _cells(schema, field, hints[field.name], prefix, values)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        yield "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows])


def _cells(
    schema: type, field: dataclasses.Field[Any], hint: Any, prefix: str, values: dict[str, Any]
) -> list[str]:
    key = prefix + field.name
    limits = limits_of(schema, field.name)
    choices = allowed(limits)
    if field.name == "name" and issubclass(schema, Entry) and "family" in vars(schema):
        choices = ", ".join(names(schema.family))
    default = value_in_words(default_of(field))
    run = value_in_words(values[key]) if key in values else default
    return [
        f"`{key}`",
        type_in_words(hint),
        default,
        run if run != default else "",
        choices,
        limits.text,
    ]


def yaml_schema() -> dict[str, Any]:
    """The JSON schema of an experiment's YAML: each key's type, limits and meaning."""
    properties: dict[str, Any] = {
        "defaults": {"type": "array", "description": "entries of the groups, see docs/settings.md"},
        "hydra": {"type": "object", "description": "Hydra's own settings"},
    }
    sections = [("", RunConfig)]
    for task in TASKS:
        settings = lookup("task", task).settings
        sections += [(name, kind) for name, kind in sections_of(settings).items()]
    for name, kind in sections_of(RunConfig).items():
        if name in FAMILIES and FAMILIES[name].key and FAMILIES[name].settings:
            sections += [(name, lookup(name, entry).settings) for entry in names(name)]
        elif name not in ("data", "model"):
            sections.append((name, kind))

    for name, kind in sections:
        found = _object(kind, () if name else sections_of(RunConfig))
        if name:
            found = {"properties": {name: found}}
        _merge(properties, found["properties"])
    for name in ("task", "optimizer", "schedule", "strategy", "augmentation"):
        properties[name]["properties"]["name"] = {"enum": list(names(name))}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of retina_dist",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _object(schema: type, skipped: Collection[str] = ()) -> dict[str, Any]:
    """The JSON schema of a dataclass."""
    hints = get_type_hints(schema)
    properties: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.name in skipped:
            continue
        section = section_of(hints[field.name])
        if section:
            properties[field.name] = _object(section)
        else:
            limits = limits_of(schema, field.name)
            properties[field.name] = _value(hints[field.name], limits)
            default = value_in_words(default_of(field))
            described = f"{limits.text} (default: {default})".strip()
            properties[field.name]["description"] = described
    return {"type": "object", "properties": properties, "additionalProperties": False}


JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
BOUNDS = {
    "minimum": "at_least",
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
    "maximum": "at_most",
}


def _value(hint: Any, limits: Limits) -> dict[str, Any]:
    """The JSON schema of a setting's type and limits."""
    kinds = kinds_of(hint)
    if len(kinds) > 1:
        return {"anyOf": [_value(kind, limits) for kind in kinds]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _value(get_args(hint)[0], limits), "minItems": 1}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(hint)[1], limits)}
    if hint is not NoneType and limits.options:
        return {"enum": [each for each in limits.options if each is not None]}
    if hint is str and limits.words:
        return {"enum": list(limits.words)}

    value: dict[str, Any] = {"type": JSON_TYPES[hint]}
    if hint in (int, float):
        for name, limit in BOUNDS.items():
            bound = getattr(limits, limit)
            if bound is not None:
                value[name] = bound
    return value


def _merge(properties: dict[str, Any], others: dict[str, Any]) -> None:
    """Add what others have; a key that two entries describe differently may be as in either."""
    for name, other in others.items():
        known = properties.setdefault(name, other)
        if "properties" in known and "properties" in other:
            _merge(known["properties"], other["properties"])
        elif other not in (known, *known.get("anyOf", ())):
            description = known.pop("description", "")
            properties[name] = {"anyOf": [known, other], "description": description}


def main() -> None:
    """Print the page, or with --schema the schema."""
    if sys.argv[1:] == ["--schema"]:
        print(json.dumps(yaml_schema(), indent=1, ensure_ascii=False))
    else:
        print(key_reference(), end="")


if __name__ == "__main__":
    main()
