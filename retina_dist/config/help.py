"""The page of `python -m retina_dist.COMMAND --help`: what the command does, its settings and examples."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from retina_dist.base.settings import MISSING, Limits, default_of, limits_of, section_of
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.run_config import RunConfig

# Settings and entries that beginners do not need stand below a line.
LATER = ("logging", "strategy", "schedule", "optimizer", "task", "gpu", "debug", "worker")
RARE = "parity parity_classes shards synthetic detection_parity classification_parity quiet of_checkpoint".split()  # noqa: SIM905
FLAGS = """Hydra's options work as it documents them: --cfg job (the composed settings), --info, --multirun or -m (a sweep),
--config-dir FOLDER (entries of your own), --config-path RUN --config-name config (the settings of an earlier run).
All keys, with every limit: docs/settings.md."""


def help_page(name: str, config: Any, document: str, conf: Path, values: Mapping[str, str]) -> str:
    """The page: `document`, a module's docstring, then the groups that the command's configuration names, then its keys.

    `config` are the command's settings, or their class. A key has its value of `values`, else its default.
    """
    defaults = load_yaml(conf / f"{name}.yaml")["defaults"]
    named = [group for entry in defaults if isinstance(entry, dict) for group in entry]
    schema = config if isinstance(config, type) else type(config)
    groups = ["task", "data", "model"] if issubclass(schema, RunConfig) else []
    groups += [g for g in named if (conf / g).is_dir() and g not in ("hydra", "task", *groups)]
    blocks = [
        document.strip(),
        'Settings are written KEY=VALUE. Lists have brackets: "data.min_sizes=[640,800]".',
    ]
    if groups:
        blocks.append("Choices:\n" + "\n".join(_choices(conf / group) for group in groups))
    sections = {
        name: "\n".join([f"{name}:"] * bool(name) + rows)
        for name, rows in _sections(config, values)
    }
    later = [text for name, text in sections.items() if name.partition(".")[0] in LATER]
    blocks += [text for text in sections.values() if text not in later]
    if later:
        blocks += ["-- Rarely changed " + "-" * 72, *later]
    return "\n\n".join([*blocks, FLAGS]) + "\n"


def _choices(folder: Path) -> str:
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    rare = [name for name in names if name in RARE]
    usual = ", ".join(name for name in names if name not in RARE)
    text = f"{usual}{' (for checks and tools: ' + ', '.join(rare) + ')' if rare else ''}"
    return textwrap.fill(
        text, 120, initial_indent=f"  {folder.name + '=':<12}", subsequent_indent=" " * 14
    )


def _sections(
    config: Any, values: Mapping[str, str], prefix: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Each section's name and the lines of its keys; first the own ones of `config`, settings or their class."""
    schema = config if isinstance(config, type) else type(config)
    hints = get_type_hints(schema)
    rows = []
    sections = {}
    for field in dataclasses.fields(schema):
        value = getattr(config, field.name, None)
        section = value if dataclasses.is_dataclass(value) else section_of(hints[field.name])
        if section:
            sections[field.name] = section
        else:
            rows.append(_row(schema, field, hints[field.name], prefix, values))
    if rows:
        yield prefix.rstrip("."), rows
    for name, section in sections.items():
        yield from _sections(section, values, f"{prefix}{name}.")


def _row(schema: type, field: Any, hint: Any, prefix: str, values: Mapping[str, str]) -> str:
    limits, key = limits_of(schema, field.name), prefix + field.name
    among = f" ({words})" if (words := allowed(limits)) else ""
    meaning = f": {limits.text}" if limits.text else ""
    row = f"  {key:<30} {type_in_words(hint)} = {values.get(key, value_in_words(default_of(field)))}{among}{meaning}"
    return textwrap.fill(row, 130, subsequent_indent=" " * 35)


def type_in_words(hint: Any) -> str:
    """A type, such as `list of int or null`."""
    inner = [type_in_words(a) for a in get_args(hint)]
    if get_origin(hint) is list:
        return f"list of {inner[0]}"
    return " or ".join(inner) or {type(None): "null"}.get(hint, hint.__name__)


def value_in_words(value: Any) -> str:
    """A setting's value as it is written on a command line, "required" without one."""
    if value == MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("'", "")


def allowed(limits: Limits) -> str:
    """The values that a setting may have, "" without limits."""
    words = [
        str(choice or "null") if choice != 0 else "0" for choice in (*limits.choices, *limits.words)
    ]
    signs = (
        ("≥", limits.at_least),
        (">", limits.above),
        ("<", limits.below),
        ("≤", limits.at_most),
    )
    return ", ".join([*words, *(f"{sign} {limit:g}" for sign, limit in signs if limit is not None)])
