"""The reference of all settings, as Markdown:  python scripts/settings_reference.py > docs/settings.md"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from retina_dist.config.builtin_tasks import settings_of_task
from retina_dist.config.commands import COMMANDS
from retina_dist.config.run_config import TASKS
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.settings import MISSING, Limits, limits_of

HEAD = """# Settings

Every key, written by `python scripts/settings_reference.py`. The default holds where no file of `conf/` gives a value;
`python -m retina_dist.train --cfg job` prints the values of a training, and so for each command."""


def key_reference() -> str:
    """A table for each section of a training's settings, then for each command with what it adds to them."""
    blocks = [HEAD]
    for command, schema in COMMANDS.items():
        blocks.append(f"## `python -m retina_dist.{command.replace('benchmark_', 'benchmark ')}`")
        skipped: set[str] = set()
        if schema is not DetectionRunConfig and issubclass(schema, DetectionRunConfig):
            blocks.append("Also takes the settings of `train`.")
            stated_again = schema.__dict__.get("__annotations__", {})
            skipped = {f.name for f in dataclasses.fields(DetectionRunConfig)} - set(stated_again)
        blocks += _tables(schema, skipped)
        if schema is DetectionRunConfig:
            for name in TASKS[1:]:
                blocks.append(f"## `task={name}`\n\nThese sections take the places of those above.")
                blocks += _tables(settings_of_task(name), set())
    return "\n\n".join(blocks) + "\n"


def _tables(schema: type, skipped: set[str], prefix: str = "") -> Iterator[str]:
    """The table of a dataclass, then those of its sections."""
    hints = get_type_hints(schema)
    fields = [f for f in dataclasses.fields(schema) if f.name not in skipped]
    rows = [_row(f, hints[f.name], limits_of(schema, f.name), prefix) for f in fields if not _section(hints[f.name])]
    if rows:
        yield "\n".join(["| key | type | default | allowed | meaning |", "|---|---|---|---|---|", *rows])
    for field in fields:
        if section := _section(hints[field.name]):
            yield f"### `{prefix}{field.name}`\n\n{(section.__doc__ or '').splitlines()[0]}"
            yield from _tables(section, set(), f"{prefix}{field.name}.")


def _section(hint: Any) -> type | None:
    return next((a for a in (hint, *get_args(hint)) if isinstance(a, type) and dataclasses.is_dataclass(a)), None)


def _row(field: Any, hint: Any, limits: Limits, prefix: str) -> str:
    cells = (f"`{prefix}{field.name}`", _type(hint), _default(field), _allowed(limits), limits.text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(hint: Any) -> str:
    inner = [_type(a) for a in get_args(hint)]
    if get_origin(hint) is list:
        return f"list of {inner[0]}"
    return " or ".join(inner) or {type(None): "null"}.get(hint, hint.__name__)


def _default(field: Any) -> str:
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    if value == MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("'", "")


def _allowed(limits: Limits) -> str:
    words = [str(choice or "null") if choice != 0 else "0" for choice in (*limits.choices, *limits.words)]
    if limits.within or limits.fraction:
        least, most = limits.within or (0, 1)
        words.append(f"{least:g} to {most:g}")
    signs = (("≥", limits.at_least), (">", limits.above), ("<", limits.below), ("≤", limits.at_most))
    return ", ".join([*words, *(f"{sign} {limit:g}" for sign, limit in signs if limit is not None)])


if __name__ == "__main__":
    print(key_reference(), end="")
