"""`retina-dist COMMAND`: every entry point is a command, help is light, an unknown command names the nearest."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from retina_dist import __main__ as console

ROOT = Path(__file__).resolve().parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["retina-dist", *arguments])
    console.main()


def entry_points() -> set[str]:
    """The modules of the package's top level that have a `main`, and the benchmark package."""
    found = {"benchmark"}
    for path in (ROOT / "retina_dist").glob("*.py"):
        functions = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        if "main" in functions and path.stem != "__main__":
            found.add(path.stem)
    return found


def test_every_entry_point_is_a_command() -> None:
    assert set(console.COMMANDS) == entry_points()
    for name in console.COMMANDS:
        assert find_spec(console.MODULES.get(name, f"retina_dist.{name}")) is not None


def test_help_lists_the_commands_without_importing_torch() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['retina-dist', '--help']\n"
        "try:\n    runpy.run_module('retina_dist', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print([m for m in ('torch', 'hydra', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    for name, summary in console.COMMANDS.items():
        assert sum(line.split() == [name, *summary.split()] for line in lines) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("trian", "there is no command trian; did you mean train?"),
        ("benchmarks", "did you mean benchmark?"),
        ("zzz", "there is no command zzz; the commands are train, evaluate,"),
    ],
)
def test_an_unknown_command_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, given: str, message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, given)
    assert message in capsys.readouterr().err


def test_a_wrong_setting_of_a_command_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "convert", "outptu=here.json")
    assert "did you mean output?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "benchmark", "spead")
    assert "there is no benchmark spead" in capsys.readouterr().err
