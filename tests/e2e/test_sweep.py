"""Sweeps as a user starts them: in one process, in lock-step, and each job by a launcher."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from retina_dist.strategies.start_processes import command
from tests.commands import run_process
from tests.e2e.conftest import SMALL

TINY = (
    *SMALL,
    "schedule.warmup=0steps",
    "trainer.max_duration=2steps",
    "logging=quiet",
    "output_dir=sweep",
)
SGD = ("optimizer=sgd", "trainer.gradient_clip=null")


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep" / "sweep.csv").open()))


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_launchers_of_hydra_run_jobs_beside_each_other(tmp_path: Path, launcher: str) -> None:
    pytest.importorskip(
        f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher",
        reason=f"no {launcher} launcher",
    )
    line = (sys.executable, "-m", "retina_dist.train", "-m", f"hydra/launcher={launcher}")
    run_process([*line, *TINY, "seed=1,2"], cwd=tmp_path)
    assert [row["status"] for row in table(tmp_path)] == ["ok", "ok"]


def test_processes_go_through_the_jobs_in_lock_step(tmp_path: Path) -> None:
    swept = (
        "trainer.max_nonfinite_steps=0",
        "optimizer.lr=1e30,1e-3",
        "schedule.warmup=1000steps,0steps",
    )
    run_process(
        command("torchrun", 2, "retina_dist.train", ["-m", *TINY, *SGD, *swept]), cwd=tmp_path
    )
    rows = table(tmp_path)
    assert [row["status"] for row in rows] == ["failed", "failed", "failed", "ok"]
    assert "schedule.warmup=1000steps fills all 2 steps" in rows[0]["error"]
    assert "loss or gradient is not finite" in rows[2]["error"]
    run = json.loads((tmp_path / rows[3]["folder"] / "result.json").read_text())
    assert (run["status"], run["world_size"], run["backend"]) == ("ok", 2, "DDP over Gloo")
