"""The page of `python -m retina_dist.COMMAND --help`: what it does, its settings and examples."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from retina_dist.base.registry import FAMILIES, names
from retina_dist.base.settings import MISSING, Limits, default_of, limits_of, section_of
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.run_config import RunConfig

# Settings and entries that beginners do not need stand below a line.
LATER = ("logging", "strategy", "schedule", "optimizer", "task", "gpu", "debug", "worker")
RARE = (
    "parity",
    "parity_classes",
    "shards",
    "synthetic",
    "detection_parity",
    "classification_parity",
    "quiet",
    "of_checkpoint",
)
OPTIONS = """Hydra's options work as it documents them: --cfg job (the composed settings), --info,
--multirun or -m (a sweep), --config-dir FOLDER (entries of your own),
--config-path RUN --config-name config (the settings of an earlier run).
All keys, with every limit: docs/settings.md."""


def help_page(
    name: str, config: object, document: str, conf: Path, values: Mapping[str, str]
) -> str:
    """The page of the command `name`.

    Args:
        name: the command.
        config: its settings, or their class.
        document: the docstring of its module.
        conf: the folder of the configuration.
        values: the values by key; a key without one has its default.
    """
    blocks = [
        document.strip(),
        'Settings are written KEY=VALUE. Lists have brackets: "KEY=[640,800]".',
    ]
    schema = config if isinstance(config, type) else type(config)
    groups = _groups(name, schema, conf)
    if groups:
        blocks.append("Choices:\n" + "\n".join(_choices(conf / group) for group in groups))

    later: list[str] = []
    for section, rows in _sections(config, values):
        if section:
            rows.insert(0, f"{section}:")
        is_rare = section.partition(".")[0] in LATER
        page = later if is_rare else blocks
        page.append("\n".join(rows))
    if later:
        blocks += ["-- Rarely changed " + "-" * 72, *later]
    return "\n\n".join([*blocks, OPTIONS]) + "\n"


def _groups(name: str, schema: type, conf: Path) -> list[str]:
    """The groups of the configuration that a command chooses from."""
    groups = ["task", "data", "model"] if issubclass(schema, RunConfig) else []
    defaults = load_yaml(conf / f"{name}.yaml")["defaults"]
    for entry in defaults:
        if not isinstance(entry, dict):
            continue
        for group in entry:
            if (conf / group).is_dir() and group not in ("hydra", "task", *groups):
                groups.append(group)
    return groups


def _choices(folder: Path) -> str:
    """The line of a group: its files, and the entries of its family that need none."""
    entries = {path.stem for path in folder.glob("*.yaml")}
    family = FAMILIES.get(folder.name)
    if family and family.key == "name":
        entries |= set(names(folder.name))
    text = ", ".join(sorted(entries.difference(RARE)))
    rare = sorted(entries.intersection(RARE))
    if rare:
        text += f" (for checks and tools: {', '.join(rare)})"
    return textwrap.fill(
        text, 120, initial_indent=f"  {folder.name + '=':<12}", subsequent_indent=" " * 14
    )


def _sections(
    config: object, values: Mapping[str, str], prefix: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Each section's name and the lines of its keys; first the own ones of `config`."""
    schema = config if isinstance(config, type) else type(config)
    hints = get_type_hints(schema)
    rows = []
    sections = {}
    for field in dataclasses.fields(schema):
        value = getattr(config, field.name, None)
        section = value if dataclasses.is_dataclass(value) else section_of(hints[field.name])
        if section:
            sections[field.name] = section
            continue

        key = prefix + field.name
        limits = limits_of(schema, field.name)
        shown = values.get(key, value_in_words(default_of(field)))
        row = f"  {key:<30} {type_in_words(hints[field.name])} = {shown}"
        words = allowed(limits)
        if words:
            row += f" ({words})"
        if limits.text:
            row += f": {limits.text}"
        rows.append(textwrap.fill(row, 130, subsequent_indent=" " * 35))

    if rows:
        yield prefix.rstrip("."), rows
    for name, section in sections.items():
        yield from _sections(section, values, f"{prefix}{name}.")


def type_in_words(hint: Any) -> str:
    """A type, such as `list of int or null`."""
    inner = list(map(type_in_words, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {inner[0]}"
    if get_origin(hint) is dict:
        return f"mapping to {inner[1]}"
    if inner:
        return " or ".join(inner)
    if hint is type(None):
        return "null"
    return str(hint.__name__)


def value_in_words(value: object) -> str:
    """A setting's value as it is written on a command line, "required" without one."""
    if value == MISSING:
        return "required"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("'", "")


def allowed(limits: Limits) -> str:
    """The values that a setting may have, "" without limits."""
    words = list(map(value_in_words, (*limits.options, *limits.words)))
    bounds = (limits.at_least, limits.above, limits.below, limits.at_most)
    for sign, bound in zip("≥><≤", bounds, strict=True):
        if bound is not None:
            words.append(f"{sign} {bound:g}")
    return ", ".join(words)
