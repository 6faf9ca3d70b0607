"""Whole trainings from the command line under every launcher: the same numbers, checkpoints that
fit everywhere, clear ends.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import run_command, run_process
from tests.distributed.ranks import ROOT, launched
from tests.e2e.conftest import SMALL
from tests.metric_files import read_metrics

MODULE = "tests.distributed.float64"
GOLDEN = ROOT / "tests" / "golden" / "losses.json"
# 24 images, seven a step and three in the last, which 2 and 3 processes cannot share equally
TRAINED = ("data.batch_size=7", "model.norm=sync_bn", "trainer.max_duration=6steps", "trainer.validate_every=3steps",
           "optimizer=sgd", "optimizer.lr=0.005", "trainer.ema_decay=0.9", "trainer.check_replicas_every=1steps",
           "logging=quiet")  # fmt: skip
SETTINGS = {
    "detection": (*SMALL, *TRAINED, "model.score_threshold=0.001"),
    # whose checkpoints would be large
    "golden": (*SMALL, *TRAINED, "model.score_threshold=0.001", "model.backbone=resnet18",
               "trainer.checkpoint_dir=memory://golden"),
    "classification": ("task=classification", "data.drawn.image_size=16", "data.image_size=16", "data.val_resize=16",
                       "data.num_workers=0", "trainer.num_threads=1", "trainer.log_every=1", *TRAINED),
}  # fmt: skip


def train(
    launcher: str, processes: int, folder: Path, *arguments: str, task: str = "detection"
) -> str:
    """The training module in float64 under a launcher, in `folder`.

    Skips where the launcher cannot be used.
    """
    return start(launcher, processes, folder, MODULE, *SETTINGS[task], *arguments)


def start(launcher: str, processes: int, folder: Path, module: str, *arguments: str) -> str:
    if launcher == "python":
        return run_command(module, *arguments, cwd=folder).stdout
    return run_process(launched(launcher, processes, module, *arguments), cwd=folder)


def numbers(run: Path, name: str) -> list[float]:
    return read_metrics(run / "metrics.csv")[name][1]


def checkpoint(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


def same_training(run: Path, other: Path) -> None:
    """Every step once, and losses and weights that differ by rounding in float64 only."""
    assert (
        len(numbers(run, "train/loss"))
        == len(numbers(other, "train/loss"))
        == checkpoint(run)["step"]
    )
    assert numbers(run, "train/loss") == pytest.approx(numbers(other, "train/loss"), abs=1e-10)
    same_weights(run, other)


def same_weights(run: Path, other: Path) -> None:
    assert checkpoint(run)["sampler"] == checkpoint(other)["sampler"]
    for part in ("model", "ema"):
        found, expected = (checkpoint(folder)[part] for folder in (run, other))
        torch.testing.assert_close(
            found.get("model", found), expected.get("model", expected), rtol=0, atol=1e-10
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of these runs go, with one drawn data set."""
    return tmp_path_factory.mktemp("runs")


@cache
def alone(place: Path, task: str = "detection") -> Path:
    train("python", 1, place, f"output_dir=alone-{task}", task=task)
    return place / f"alone-{task}"


@cache
def together(place: Path, launcher: str) -> str:
    """What two processes print, whose run is `place / launcher`."""
    settings = (f"output_dir={launcher}", "data.num_workers=1")
    return train(launcher, 2, place, *settings, task="golden")


LONG = [
    pytest.param(name, marks=pytest.mark.long) for name in ("horovodrun", "mpirun")
]  # test_hosts.py has them on two hosts


@pytest.mark.parametrize("launcher", ["python", "torchrun", "horovodrun"])
def test_golden_losses(place: Path, launcher: str) -> None:
    """Each step's loss and gradient norm as recorded: a refactoring shows the same numbers."""
    if launcher != "python":
        together(place, launcher)
    run = alone(place, "golden") if launcher == "python" else place / launcher
    for name, expected in json.loads(GOLDEN.read_text())[
        "single" if launcher == "python" else launcher
    ].items():
        assert numbers(run, name) == pytest.approx(expected, rel=1e-9), name


@pytest.mark.parametrize("launcher", ["torchrun", *LONG])
def test_two_processes_train_what_one_does(place: Path, launcher: str) -> None:
    run = place / launcher
    said = together(place, launcher)
    one = alone(place, "golden")
    assert "2 processes x 3 or 4" in said
    for name in ("train/loss", "train/grad_norm", "train/lr", "val/loss"):
        rounding = 1e-6 if name == "val/loss" else 1e-10  # evaluators add up in float32
        assert numbers(run, name) == pytest.approx(numbers(one, name), rel=rounding), name
    assert numbers(run, "coco/AP") == pytest.approx(numbers(one, "coco/AP"), abs=1e-3)
    result = json.loads((run / "result.json").read_text())
    assert result["world_size"] == 2
    assert result["backend"].startswith(
        {"torchrun": "DDP", "horovodrun": "Horovod over Gloo", "mpirun": "Horovod over MPI"}[
            launcher
        ]
    )


def test_a_run_goes_on_under_another_backend_and_size(place: Path) -> None:
    train("horovodrun", 2, place, "output_dir=moved", "trainer.stop_after=2steps")
    said = train("torchrun", 3, place, "output_dir=moved", "resume=auto")
    one, run = alone(place), place / "moved"
    assert "resumed from" in said
    assert read_metrics(run / "metrics.csv")["train/loss"][0] == [1, 2, 3, 4, 5, 6]
    assert list(checkpoint(run)["model"]) == list(checkpoint(one)["model"])
    same_training(run, one)


def test_evaluation_of_a_checkpoint_over_two_processes(place: Path) -> None:
    best = alone(place) / "checkpoints" / "best.pt"
    tables = []
    for launcher, processes in (("python", 1), ("torchrun", 2)):
        arguments = (f"checkpoint={best}", f"output_dir={place}/evaluated-{processes}")
        printed = start(launcher, processes, place, "retina_dist.evaluate", *arguments)
        assert printed.count("IoU .50:.95") == 1, "one rank speaks"
        tables.append(json.loads((place / f"evaluated-{processes}" / "metrics.json").read_text()))
    assert tables[0] == tables[1]
