"""Detection on random images: no files, the same images on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.detection.data.synthetic import synthetic_annotations, synthetic_batch
from retina_dist.detection.settings import SyntheticConfig
from retina_dist.detection.task import DetectionTask
from retina_dist.strategies.single_device import SingleDeviceStrategy

CPU = torch.device("cpu")
SMALL = SyntheticConfig(canvas=[32, 64], num_boxes=3, num_classes=5, num_images=6)


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
    config = load_config("train", ["data=synthetic", "data.synthetic.canvas=[64,96]", "data.batch_size=2"])
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
