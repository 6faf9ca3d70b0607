"""Data that is made up: drawn files, reproducible and whole or absent, and images of noise."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from retina_dist.base.errors import DataError
from retina_dist.config.compose import load_config
from retina_dist.detection.data.synthetic import (
    CATEGORIES,
    make_shapes,
    synthetic_annotations,
    synthetic_batch,
)
from retina_dist.detection.settings import SyntheticConfig
from retina_dist.detection.task import DetectionTask
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.coco_files import split_of

CPU = torch.device("cpu")
SMALL = SyntheticConfig(canvas=[32, 64], num_boxes=3, num_classes=5, num_images=6)


def digest(root: Path) -> str:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(p.name.encode() + p.read_bytes() for p in files)).hexdigest()


def test_the_same_seed_draws_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_shapes(tmp_path / name, num_train=6, num_val=3, image_size=64, seed=seed)
        (tmp_path / name / "shapes.json").unlink()
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_it_is_a_sound_data_set_with_everything_real_ones_have(tmp_path: Path) -> None:
    make_shapes(tmp_path / "shapes", num_train=150, num_val=10, image_size=64)
    data = split_of(tmp_path / "shapes")
    assert len(data.records) == 150
    assert not data.dropped
    assert not data.clipped
    assert data.num_crowd > 0
    assert any(not len(boxes) for boxes in data.boxes)
    assert len({(r.width, r.height) for r in data.records}) == 5
    assert data.categories.ids == tuple(CATEGORIES)  # with gaps
    assert set(np.concatenate(data.labels)) == set(range(6))


def test_an_existing_folder_is_reused_or_refused(tmp_path: Path) -> None:
    root = tmp_path / "shapes"
    make_shapes(root, num_train=2, num_val=1, image_size=48)
    before = digest(root)
    make_shapes(root, num_train=2, num_val=1, image_size=48)
    assert digest(root) == before
    with pytest.raises(
        DataError, match=r"\(num_train 2, not 3\); give another, or delete this one"
    ):
        make_shapes(root, num_train=3, num_val=1, image_size=48)


def test_an_image_does_not_depend_on_its_batch() -> None:
    annotations = synthetic_annotations(SMALL, seed=1)
    whole = synthetic_batch(annotations, [0, 1, 2, 3], 1.0, seed=1, device=CPU)
    part = synthetic_batch(annotations, [3], 0.5, seed=1, device=CPU)
    for name in ("images", "boxes", "labels", "num_boxes", "image_ids", "image_sizes"):
        assert torch.equal(getattr(whole, name)[3:], getattr(part, name)), name
    assert whole.images.shape == (4, 3, 32, 64)
    assert whole.images.float().std() > 50, "noise"
    assert not torch.equal(whole.images[0], whole.images[1])
    assert whole.num_boxes.tolist() == [3] * 4
    boxes = whole.boxes[:, :3]
    assert bool((boxes[..., 2:] > boxes[..., :2]).all())
    assert bool((boxes >= 0).all())
    assert bool((boxes <= torch.tensor([64.0, 32.0, 64.0, 32.0])).all())
    assert int(whole.labels.max()) < 5


def test_the_task_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(
        "train", ["data=synthetic", "data.synthetic.canvas=[64,96]", "data.batch_size=2"]
    )
    task = DetectionTask(config, SingleDeviceStrategy("cpu"))
    assert task.num_images == task.planned_images(config) == 800
    assert not task.validates
    assert "64 x 96 px of noise" in task.describe()
    data = task.build_data()
    [batch] = next(iter(data.train_steps(0, 1)))
    losses = task.build_model().train()(batch)
    assert all(bool(value.isfinite()) for value in losses.values())
    assert task.build_evaluator(data) is None
    task.draw_inputs(data, tmp_path)
    assert list(tmp_path.iterdir()) == []
