"""Classification on random images: no files, the same images on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.classification.drawn import synthetic_batch, synthetic_samples
from retina_dist.classification.settings import SyntheticClassesConfig
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.run.assemble import train
from retina_dist.testing.task_contract import task_contract

CPU = torch.device("cpu")
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


def test_an_image_does_not_depend_on_its_batch() -> None:
    samples = synthetic_samples(SyntheticClassesConfig(num_classes=5, num_images=6), seed=1)
    whole = synthetic_batch(samples, [0, 1, 2, 3], 1.0, size=16, seed=1, device=CPU)
    part = synthetic_batch(samples, [3], 0.5, size=16, seed=1, device=CPU)
    for name in ("images", "labels", "other_labels", "share", "image_ids"):
        assert torch.equal(getattr(whole, name)[3:], getattr(part, name)), name
    assert (whole.images.shape, whole.images.dtype) == ((4, 3, 16, 16), torch.uint8)
    assert whole.images.float().std() > 50, "noise"
    assert not torch.equal(whole.images[0], whole.images[1])
    assert set(samples.labels.tolist()) <= set(range(5))


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
