"""A task from outside the package: its settings, a training of two processes, and the commands that
take it.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from retina_dist import doctor
from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import task_class
from retina_dist.detection.task import DetectionTask
from retina_dist.testing.task_contract import task_contract
from tests.commands import run_command, run_process
from tests.plugins.cell_detector import CellDetector
from tests.plugins.counting_task import CountingDetection
from tests.plugins.disc_task import DiscData, DiscTask
from tests.plugins.test_plugins import FOUND, HERE, under_mpirun

QUIET = ["logging=quiet", "trainer.num_threads=1", "trainer.log_every=1"]


def settings(*overrides: str) -> list[str]:
    return [FOUND, "task=discs", *overrides]


class Float64Detection(DetectionTask):
    def build_model(self) -> torch.nn.Module:
        return super().build_model().double()


@pytest.mark.parametrize("weights", ["null", "auto"])
def test_detection_keeps_the_contract(tmp_path: Path, weights: str) -> None:
    """In float32 the batch size may round an activation near 0 to the other side of a ReLU, on one
    CPU and not on another.
    """
    small = ["data=parity", "model.norm=frozen_bn", f"data.root={tmp_path / 'shapes'}"]
    small.append(f"data.class_weights={weights}")
    task_contract(Float64Detection, load_config("train", small))


def test_a_task_and_a_strategy_from_outside_train_together(tmp_path: Path) -> None:
    """Two processes on mpi4py end with the weights of one process; 24 discs a step, of 64 in an
    epoch, do not divide.
    """
    line = ["retina_dist.train", "--config-dir", str(HERE / "conf"), "task=discs", *QUIET]
    line += ["data.batch_size=24", "data.num_train=64"]
    line += [
        "trainer.max_duration=4steps",
        "schedule=constant",
        "optimizer=sgd",
        "optimizer.lr=0.01",
    ]
    assert "data: discs" in run_command(*line, "output_dir=alone", cwd=tmp_path).stdout
    run_process(under_mpirun(*line, "strategy=mpi4py", "output_dir=two"), cwd=tmp_path)
    alone, two = (
        torch.load(
            tmp_path / name / "checkpoints" / "last.pt", weights_only=True, map_location="cpu"
        )["model"]
        for name in ("alone", "two")
    )
    for name, weights in alone.items():
        assert torch.allclose(two[name], weights, rtol=1e-4, atol=1e-6), name


def test_the_settings_of_a_task_are_sections_of_the_configuration() -> None:
    config = load_config("train", settings("data.num_train=5", "model.width=2"))
    assert isinstance(config.data, DiscData)
    assert (config.data.num_train, config.model.width, config.data.batch_size) == (5, 2, 16)
    assert task_class(config) is DiscTask
    assert sorted(asdict(config)["model"]) == ["width"], "nothing of detection's"
    assert task_class(load_config("train", [FOUND])) is DetectionTask, (
        "what was chosen before leaves nothing behind"
    )


def test_a_sweep_may_try_classes_from_outside_and_built_in_ones(tmp_path: Path) -> None:
    """Each job is typed by what it chose."""
    short = ["trainer.max_duration=1steps", "data.num_train=32", "output_dir=s", *QUIET]
    line = [
        "-m",
        "--config-dir",
        str(HERE / "conf"),
        "task=discs",
        "optimizer=lion,sgd",
        "model.width=1,2",
        *short,
    ]
    run_command("retina_dist.train", *line, "optimizer.lr=0.01", cwd=tmp_path)
    rows = [
        row.split(",")[:4] for row in (tmp_path / "s" / "sweep.csv").read_text().splitlines()[1:]
    ]
    assert [",".join(row) for row in rows] == [
        "0,lion,1,ok",
        "1,lion,2,ok",
        "2,sgd,1,ok",
        "3,sgd,2,ok",
    ]


def test_the_doctor_takes_a_task_and_a_model_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_doctor(*overrides: str) -> str:
        monkeypatch.setattr(sys, "argv", ["doctor", *overrides])
        doctor.main()
        return capsys.readouterr().out

    assert run_doctor(FOUND, "task=discs") == "discs\n\nNo errors, no warnings: fit to train on.\n"
    with pytest.raises(SystemExit, match="1"):
        run_doctor(FOUND, "task=discs", "data.num_train=5")
    assert "train  discs: 5\n         -> draw at least 100" in capsys.readouterr().out
    assert "Data: 256 discs" in run_doctor(FOUND, "task=discs", "cluster=true")
    assert load_config("parity", [FOUND, "task=discs", "processes=[3]"]).processes == [3]


def test_commands_of_checkpoints_take_a_task_from_outside() -> None:
    assert load_config("evaluate", [FOUND, "task=discs"]).outside_task is DiscTask
    config = load_config(
        "predict", [FOUND, "task=counting", "model=cells", "checkpoint=a", "input=b"]
    )
    assert (config.outside_task, class_of(config.outside_model())) == (
        CountingDetection,
        CellDetector,
    )
    for given in ("task=detection", "model=retinanet_r50"):
        with pytest.raises(
            ConfigError, match=f"a checkpoint names a {given.split('=')[0]} of the package itself"
        ):
            load_config("export", [given, "checkpoint=a", "output=b"])
