"""One small trained run that the end-to-end tests share."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Small enough for seconds, complete in every other way.
SMALL = (
    "data.shapes.num_train=24",
    "data.shapes.num_val=10",
    "data.shapes.image_size=64",
    "data.batch_size=4",
    "data.val_batch_size=4",
    "data.min_sizes=[64]",
    "data.max_size=96",
    "data.num_workers=0",
    "schedule.warmup=2steps",
    "trainer.num_threads=1",
    "trainer.log_every=1",
)


def run_module(module: str, *arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` as a user would, from `cwd`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def run_inside(module: str, *arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """The same within this process, which has torch already: for what does not need a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    argv, folder, code = sys.argv, os.getcwd(), 0
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            importlib.import_module(module).main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
        os.chdir(folder)
    result = subprocess.CompletedProcess([module, *arguments], code, out.getvalue(), err.getvalue())
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="session")
def inside() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_inside


@pytest.fixture(scope="session")
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_module


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a two-epoch run on small shapes was started in; its run is runs/shapes."""
    folder = tmp_path_factory.mktemp("trained")
    run_module("retina_dist.train", *SMALL, "trainer.max_duration=2epochs", "model.score_threshold=0.001", cwd=folder)
    return folder
