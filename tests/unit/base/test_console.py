"""`retina-dist COMMAND`: every entry point is a command, help is light, an unknown command names
the nearest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retina_dist import __main__ as console

ROOT = Path(__file__).resolve().parents[3]


def test_help_lists_the_commands_without_importing_torch() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['retina-dist', '--help']\n"
        "try:\n    runpy.run_module('retina_dist', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print([m for m in ('torch', 'hydra', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    for name, summary in console.COMMANDS.items():
        assert sum(line.split() == [name, *summary.split()] for line in lines) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("trian", "there is no command trian; did you mean train?"),
        ("zzz", "there is no command zzz; the commands are train, evaluate,"),
        (
            "compare",
            "error: compare takes two run folders or COCO results, as compare runs/a runs/b.",
        ),
        (
            "compare a",
            "error: compare takes two run folders or COCO results, as compare runs/a runs/b.",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, given: str, message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["retina-dist", *given.split()])
    with pytest.raises(SystemExit, match="2"):
        console.main()
    assert message in capsys.readouterr().err
