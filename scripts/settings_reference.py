"""The reference of all settings, as Markdown:  python scripts/settings_reference.py > docs/settings.md"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

from retina_dist.base.settings import limits_of, section_of
from retina_dist.config.compose import config_dir, schema_of
from retina_dist.config.help import allowed, default_in_words, type_in_words
from retina_dist.config.run_config import TASKS, RunConfig, schema_of_task

HEAD = """# Settings

Every key, written by `python scripts/settings_reference.py`. The default holds where no file of `conf/` gives a value;
`python -m retina_dist.train --cfg job` prints the values of a training, and so for each command. The settings of a training come
first, those of the other commands after them."""


def key_reference() -> str:
    """A table for each section of a training's settings, then for each command with what it adds to them."""
    blocks = [HEAD, "## `python -m retina_dist.train`", *_tables(schema_of_task(TASKS[0]), set())]
    for task in TASKS[1:]:
        blocks.append(f"## `task={task}`\n\nThese sections take the places of those above.")
        blocks += _tables(
            schema_of_task(task),
            {f.name for f in dataclasses.fields(RunConfig)} - {"data", "model"},
        )
    for command in sorted(
        path.stem for path in Path(config_dir()).glob("*.yaml") if path.stem != "train"
    ):
        schema = schema_of(command)
        blocks.append(f"## `python -m retina_dist.{command.replace('benchmark_', 'benchmark ')}`")
        skipped: set[str] = set()
        if issubclass(schema, RunConfig):
            blocks.append("Also takes the settings of `train`.")
            skipped = {f.name for f in dataclasses.fields(RunConfig)}
        blocks += _tables(schema, skipped)
    return "\n\n".join(blocks) + "\n"


def _tables(schema: type, skipped: set[str], prefix: str = "") -> Iterator[str]:
    """The table of a dataclass, then those of its sections."""
    hints = get_type_hints(schema)
    fields = [f for f in dataclasses.fields(schema) if f.name not in skipped]
    rows = []
    for field in fields:
        if not section_of(hints[field.name]):
            limits = limits_of(schema, field.name)
            cells = (
                f"`{prefix}{field.name}`",
                type_in_words(hints[field.name]),
                default_in_words(field),
            )
            cells += (allowed(limits), limits.text)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        yield "\n".join(
            ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|", *rows]
        )
    for field in fields:
        if section := section_of(hints[field.name]):
            yield f"### `{prefix}{field.name}`\n\n{(section.__doc__ or '').splitlines()[0]}"
            yield from _tables(section, set(), f"{prefix}{field.name}.")


if __name__ == "__main__":
    print(key_reference(), end="")
