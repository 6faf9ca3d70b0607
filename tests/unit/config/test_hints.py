"""What messages tell people to write can be written: each KEY=… of the package is a setting."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from retina_dist.base import other_names, unknown_keys
from retina_dist.base.errors import DataError, UserError
from retina_dist.base.registry import FAMILIES, lookup, names
from retina_dist.base.settings import settings_by_key
from retina_dist.config.compose import config_dir, load_config, schema_of
from retina_dist.config.entry_point import Command
from retina_dist.config.run_config import TASKS

PACKAGE = Path(__file__).resolve().parents[3] / "retina_dist"
COMMANDS = sorted(path.stem for path in config_dir().glob("*.yaml"))
GROUPS = {path.name for path in config_dir().iterdir() if path.is_dir()}
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


# What the command has already, where a hint adds to it.
BESIDE = {
    "convert": ["output=rows.json"],
    "export": ["checkpoint=best.pt", "output=model.onnx"],
    "serve": ["checkpoint=best.pt"],
    "shards": ["output=shards"],
    "data=folders": ["task=classification"],
    "optimizer.momentum=0.9": ["optimizer=sgd"],
}
LITERAL = re.compile(rf"(?!_){KEY.pattern}([\w.:/]*\w)(?=[\s;,.)\"']|$)")
HINT = re.compile(r"\b(?:give|write|set|use|add|or|by|with)\b.*", re.DOTALL)


OF_EVALUATE = (
    "detection/evaluation.py",
    "detection/detector.py",
    "task/predictor.py",
    "task/settings.py",
)


def command_of(path: Path) -> str:
    """The command that prints the hints of a file: its own, evaluate for a checkpoint's, or
    train.
    """
    name = path.relative_to(PACKAGE).as_posix()
    if name in OF_EVALUATE:
        return "evaluate"
    if name.startswith("serving/"):
        return "serve"
    return path.stem if path.stem in COMMANDS else "train"


def literals() -> dict[tuple[str, str], str]:
    """Each (command, KEY=VALUE) that a text of the package says to write, and its place."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            hint = HINT.search(node.value)
            if hint and "\n" not in node.value:
                for key, value in LITERAL.findall(hint[0]):
                    found[command_of(path), f"{key}={value}"] = f"{path.name}:{node.lineno}"
    return found


def test_every_hint_can_be_typed() -> None:
    """Each after the command that prints it, without the other settings of a run."""
    wrong = []
    for (command, hint), place in literals().items():
        try:
            load_config(command, [*BESIDE.get(command, []), *BESIDE.get(hint, []), hint])
        except UserError as error:
            wrong.append(f"{place}: {command} {hint}: {error}")
    assert len(literals()) >= 10
    assert not wrong, "\n".join(wrong)


def test_evaluate_speaks_of_its_own_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(config: object) -> None:
        raise DataError("name it with data.val_annotations=FILE, or set data.bad_images=skip.")

    monkeypatch.setattr(sys, "argv", ["evaluate", "checkpoint=best.pt"])
    with pytest.raises(SystemExit):
        Command("evaluate", fails, None).main()
    assert capsys.readouterr().err == "error: name it with annotations=FILE.\n"


def test_a_resume_by_auto_is_added_to_a_command() -> None:
    """By itself it takes the settings of no run; resume=RUN does."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        wrong += re.findall(r"continue with[\s\"f]*resume=auto", path.read_text())
    assert not wrong


@pytest.mark.parametrize("module", [other_names, unknown_keys], ids=lambda each: each.__name__)
def test_no_word_of_other_tools_has_two_rows(module: ModuleType) -> None:
    """Of two rows the second would win without a word."""
    words = []
    for row in module._TABLE.strip().splitlines():
        names, _, _ = row.partition(": ")
        if module is other_names:
            key = names.split()[0]
            words += [(key, word) for word in row.rpartition(": ")[2].split()]
        else:
            words += names.split()
    assert [word for word, count in Counter(words).items() if count > 1] == []
