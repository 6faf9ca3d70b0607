"""Start a scenario of `scenarios.py` as several ranks and collect what each of them saw."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retina_dist.strategies.start_processes import command, environment, why_missing

ROOT = Path(__file__).resolve().parents[2]

# kind -> launcher; what runs there is chosen by strategy=auto
KINDS = {"single": None, "ddp": "torchrun", "horovod": "horovodrun", "mpi": "mpirun"}


@dataclass
class Job:
    """What a launched scenario left behind."""

    exit_code: int
    seconds: float
    output: str
    ranks: list[Any]  # what each rank returned, None for one that did not finish


def run_ranks(kind: str, processes: int, scenario: str, *, check: bool = True, timeout: float = 180) -> Job:
    """Run a scenario under the launcher of `kind`; skips, with the reason, where that launcher cannot be used."""
    launcher = KINDS[kind]
    module = "tests.distributed.scenarios"
    env = {**environment(1), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        if launcher is None:
            line = [sys.executable, "-m", module, scenario, folder]
        else:
            reason = why_missing(launcher)  # type: ignore[arg-type]
            if reason:
                pytest.skip(f"{launcher}: {reason}")
            line = command(launcher, processes, module, [scenario, folder])  # type: ignore[arg-type]
        started = time.monotonic()
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
        seconds = time.monotonic() - started
        output = done.stdout + done.stderr
        if check:
            assert done.returncode == 0, output
        files = [Path(folder) / f"rank_{rank}.json" for rank in range(processes)]
        found = [json.loads(f.read_text()) if f.exists() else None for f in files]
    return Job(done.returncode, seconds, output, found)
