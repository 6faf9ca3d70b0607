"""The reference of all settings, as Markdown.

python scripts/settings_reference.py > docs/settings.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from retina_dist.base.registry import FAMILIES, Entry, lookup, names
from retina_dist.base.settings import default_of, limits_of, section_of, sections_of
from retina_dist.config.compose import config_dir, load_config, schema_of
from retina_dist.config.help import allowed, type_in_words, value_in_words
from retina_dist.config.run_config import TASKS, RunConfig

HEAD = """# Settings

Every key, written by `python scripts/settings_reference.py`. The default holds where no file of
`conf/` gives a value, and in Python. The default run is `python -m retina_dist.train` without
arguments; its value stands where it is another. `--cfg job` prints the values of any command line.
The settings of a training come first, those of the other commands after them."""

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

    for command in sorted(path.stem for path in Path(config_dir()).glob("*.yaml")):
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
    schema: type, prefix: str, values: dict[str, Any], skipped: set[str] = frozenset()
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


if __name__ == "__main__":
    print(key_reference(), end="")
