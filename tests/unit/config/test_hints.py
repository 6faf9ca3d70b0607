"""What messages tell people to write can be written: each KEY=… of the package is a setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from retina_dist.base.registry import FAMILIES, lookup, names
from retina_dist.base.settings import settings_by_key
from retina_dist.config.compose import config_dir, schema_of
from retina_dist.config.run_config import TASKS

PACKAGE = Path(__file__).resolve().parents[3] / "retina_dist"
COMMANDS = sorted(path.stem for path in Path(config_dir()).glob("*.yaml"))
GROUPS = {path.name for path in Path(config_dir()).iterdir() if path.is_dir()}
REMEDY = re.compile(r"\b(?:give|write|set|use|start a new run with|resume with)\b.*", re.DOTALL)
KEY = re.compile(r"(?<![\w.$-])([a-z_]+(?:\.[a-z_]+)*)=(?=\S)")


def known_keys() -> set[str]:
    keys = set(GROUPS)
    for command in COMMANDS:
        keys |= settings_by_key(schema_of(command)).keys()
    for task in TASKS:
        keys |= settings_by_key(lookup("task", task).settings).keys()
    for family, kind in FAMILIES.items():
        if kind.key == "name" and kind.settings:
            for name in names(family):
                keys |= settings_by_key(lookup(family, name).settings, f"{kind.section}.").keys()
    return keys


def remedies(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of errors after "give", "write" or "set", by line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        text = ""
        for part in ast.walk(node.exc):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                text += part.value
        found = REMEDY.search(text)
        if found:
            yield node.lineno, found[0]


@pytest.fixture(scope="module")
def known() -> set[str]:
    return known_keys()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_a_remedy_names_settings(path: Path, known: set[str]) -> None:
    wrong = []
    for line, text in remedies(path):
        wrong += [f"{path.name}:{line}: {key}" for key in KEY.findall(text) if key not in known]
    assert not wrong
