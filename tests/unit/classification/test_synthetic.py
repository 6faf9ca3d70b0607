"""Classification on random images: no files, the same images on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.run.assemble import train
from retina_dist.testing.task_contract import task_contract

SMALL = [
    "task=classification",
    "data=synthetic",
    "data.synthetic={num_classes: 5, num_images: 8}",
    "data.image_size=32",
    "model.architecture=shufflenet_v2_x0_5",
    "data.batch_size=5",
    "schedule=constant",
    "trainer.num_threads=1",
    "logging=quiet",
]


def test_the_task_keeps_its_contract() -> None:
    """Two and three ranks have one rank's losses and gradients, among others."""
    task_contract(ClassificationTask, load_config("train", [*SMALL, "model.norm=frozen_bn"]))


def test_it_trains_and_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(load_config("train", [*SMALL, "trainer.max_duration=2steps", "output_dir=run"])) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not Path("run/first_batch.jpg").exists()
    last = torch.load("run/checkpoints/last.pt", weights_only=True, map_location="cpu")
    assert (last["step"], last["classes"][-1]) == (2, "class 4")
