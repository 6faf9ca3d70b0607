"""Start a scenario of `scenarios.py` as several ranks and collect what each of them saw."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retina_dist.strategies.start_processes import command, environment, why_missing

ROOT = Path(__file__).resolve().parents[2]

# kind -> launcher; what runs there is chosen by strategy=auto
KINDS = {"single": "python", "ddp": "torchrun", "horovod": "horovodrun", "mpi": "mpirun"}


@dataclass
class Job:
    """What a launched scenario left behind."""

    exit_code: int
    output: str
    ranks: list[Any]  # what each rank returned, None for one that did not finish


def launched(launcher: str, processes: int, module: str, *arguments: str) -> list[str]:
    """The command line; skips, with the reason, where the launcher cannot be used."""
    if reason := why_missing(launcher):
        pytest.skip(f"{launcher}: {reason}")
    return command(launcher, processes, module, arguments)


def variables() -> dict[str, str]:
    """The environment of launched processes: one thread each, and this checkout."""
    return {**environment(1), "PYTHONPATH": str(ROOT)}


def run_ranks(
    kind: str, processes: int, scenario: str, *, check: bool = True, timeout: float = 180
) -> Job:
    """Run a scenario under the launcher of `kind`."""
    with tempfile.TemporaryDirectory() as folder:
        line = launched(KINDS[kind], processes, "tests.distributed.scenarios", scenario, folder)
        done = subprocess.run(
            line, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=timeout
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0 or not check, output
        files = [Path(folder) / f"rank_{rank}.json" for rank in range(processes)]
        found = [json.loads(f.read_text()) if f.exists() else None for f in files]
    return Job(done.returncode, output, found)
