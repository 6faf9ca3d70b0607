"""Sweeps as a user starts them: in one process, in lock-step, and each job by a launcher."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, SMALL

OTHERWISE = ("data.batch_size=4", "schedule.warmup=2steps")
TINY = (
    *[setting for setting in SMALL if setting not in OTHERWISE],
    "schedule.warmup=0steps",
    "trainer.max_duration=2steps",
    "logging=quiet",
    "output_dir=sweep",
)
SGD = ("optimizer=sgd", "trainer.gradient_clip=null")
DIVERGING = "1e30"
SCRIPTS = Path(sys.executable).parent


def launched(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A launcher's command, which lies beside this Python."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{SCRIPTS}{os.pathsep}{environment['PATH']}"
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep" / "sweep.csv").open()))


def test_a_grid_in_one_process(tmp_path: Path, cli: Callable) -> None:
    grid = ("optimizer.lr=1e-3,1e-2", "data.batch_size=4,8")
    result = cli("retina_dist.train", "-m", *TINY, *grid, cwd=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"datasets", "sweep"}
    assert {p.name for p in (tmp_path / "sweep").iterdir()} == {
        "0_lr=0.001_batch_size=4",
        "1_lr=0.001_batch_size=8",
        "2_lr=0.01_batch_size=4",
        "3_lr=0.01_batch_size=8",
        "sweep.csv",
        "sweep.png",
    }
    for row in table(tmp_path):
        assert (row["status"], row["error"]) == ("ok", "")
        run = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert (run["status"], run["step"], run["world_size"], run["backend"]) == ("ok", 2, 1, "one process")
        for column, key in (("coco/AP", "best"), ("train/loss", "train/loss"), ("images_per_s", "images_per_s")):
            assert float(row[column]) == run[key]
    assert result.stdout.splitlines()[-1].startswith("best coco/AP 0.")


def test_a_job_that_diverges_is_marked(tmp_path: Path, cli: Callable) -> None:
    result = cli(
        "retina_dist.train",
        "-m",
        *TINY,
        *SGD,
        "trainer.max_nonfinite_steps=0",
        f"optimizer.lr={DIVERGING},1e-3",
        cwd=tmp_path,
    )
    failed, ok = table(tmp_path)
    assert (failed["status"], failed["coco/AP"], ok["status"], ok["error"]) == ("failed", "", "ok", "")
    assert failed["error"].startswith("step 2: loss or gradient is not finite")
    assert json.loads((tmp_path / failed["folder"] / "result.json").read_text())["error"] == failed["error"]
    assert result.stderr.count("the job failed: step 2: loss or gradient is not finite") == 1


def test_processes_go_through_the_jobs_in_lock_step(tmp_path: Path) -> None:
    command = ("torchrun", "--nproc-per-node", "2", "-m", "retina_dist.train", "-m", *TINY, *SGD)
    result = launched(
        *command,
        "trainer.max_nonfinite_steps=0",
        f"optimizer.lr={DIVERGING},1e-3",
        "schedule.warmup=1000steps,0steps",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = table(tmp_path)
    assert [row["status"] for row in rows] == ["failed", "failed", "failed", "ok"]
    assert "schedule.warmup=1000steps (1000 steps) leaves nothing" in rows[0]["error"]
    _check_lock_step(tmp_path, *rows[2:], "DDP over Gloo")


def _check_lock_step(folder: Path, diverged: dict[str, str], ok: dict[str, str], backend: str) -> None:
    assert "loss or gradient is not finite" in diverged["error"]
    run = json.loads((folder / ok["folder"] / "result.json").read_text())
    assert (run["status"], run["world_size"], run["backend"]) == ("ok", 2, backend)


@pytest.mark.long
def test_each_job_by_a_launcher(tmp_path: Path) -> None:
    launchers = "launcher=torchrun --nproc-per-node 2,torchrun --nproc-per-node 1"
    command = (sys.executable, "-m", "retina_dist.train", "-m", *TINY, launchers)
    result = launched(*command, "data.batch_size=3", "strategy=single", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    failed, ok = table(tmp_path)
    assert failed["error"].startswith("strategy=single under torchrun")
    assert (failed["status"], ok["status"], ok["error"]) == ("failed", "ok", "")
    assert json.loads((tmp_path / ok["folder"] / "result.json").read_text())["backend"] == "one process"
    assert f"writing to {ok['folder']}" in result.stdout  # what the job says is passed on


def test_a_launcher_is_for_sweeps(tmp_path: Path, cli: Callable) -> None:
    result = cli("retina_dist.train", *TINY, "launcher=mpirun -np 2", cwd=tmp_path, check=False)
    assert (result.returncode, list(tmp_path.iterdir())) == (2, [])
    assert result.stderr.startswith("error: launcher=mpirun -np 2 starts the jobs of a sweep; add --multirun")
