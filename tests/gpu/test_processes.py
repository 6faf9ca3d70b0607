"""Jobs on this machine's GPU, as a user starts them. Several processes share it over Gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retina_dist.strategies.start_processes import environment, why_missing
from tests.distributed.ranks import ROOT

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU that torch can use"
)

SHARED = ["strategy=ddp", "strategy.device=cuda", "strategy.process_group_backend=gloo"]
HOROVOD = ["launchers=[horovodrun]", "processes=[1]", "strategy.device=cuda"]


def output_of(module: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"retina_dist.{module}", *arguments],
        cwd=folder,
        env={**environment(1), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    """In float64, over accumulation, clipping, loss scaling, averages and synchronized norms."""
    table = output_of("parity", "processes=[2]", "launchers=[torchrun]", *SHARED, folder=tmp_path)
    assert "All others agree." in table


@pytest.mark.parametrize("task", ["detection_parity", "classification_parity"])
def test_one_two_and_four_processes_have_the_same_bits(task: str, tmp_path: Path) -> None:
    settings = ["bits=true", "steps=6", "processes=[2,4]", "launchers=[torchrun]", f"task={task}"]
    assert "All are equal, to the last bit." in output_of(
        "parity", *settings, *SHARED, folder=tmp_path
    )


def test_horovod_over_nccl_trains_what_plain_python_does(tmp_path: Path) -> None:
    if reason := why_missing("horovodrun"):
        pytest.skip(reason)
    assert "All others agree." in output_of("parity", *HOROVOD, folder=tmp_path)
    bits = output_of("parity", "bits=true", "steps=6", *HOROVOD, folder=tmp_path)
    assert "All are equal, to the last bit." in bits


def test_a_deterministic_run_is_reproduced_to_the_bit(tmp_path: Path) -> None:
    run = f"output_dir={tmp_path / 'run'}"
    recorded = ["trainer.deterministic=true", "logging.digest=true", "strategy.device=cuda"]
    length = ["trainer.max_duration=12steps", "trainer.validate_every=6steps"]
    output_of("train", run, *recorded, *length, folder=tmp_path)
    report = output_of("reproduce", f"run={tmp_path / 'run'}", "windows=all", folder=tmp_path)
    assert "losses, gradients, metrics, weights and optimizer are equal" in report
