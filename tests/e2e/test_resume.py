"""A run that stopped and went on is the same run, bit for bit, with the real model and data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.e2e.conftest import SMALL

from retina_dist.config import load_config
from retina_dist.engine.checkpoint import load_checkpoint
from retina_dist.train import train


def run(folder: Path, *overrides: str) -> dict:
    data = f"data.root={folder.parent / 'data'}"
    augment = ("data.photometric=0.5", "data.iou_crop=0.5", "data.scale_jitter=[0.8,1.25]", "data.min_sizes=[48,64]")
    common = (*SMALL, data, *augment, "trainer.length=20steps", "trainer.ema_decay=0.9", "logging=quiet")
    train(load_config("train", [*common, f"output_dir={folder}", *overrides]))
    return load_checkpoint(folder / "checkpoints" / "last.pt")


@pytest.mark.parametrize("workers", [0, 2])
def test_20_steps_are_7_and_13(tmp_path: Path, workers: int) -> None:
    whole = run(tmp_path / "whole", "data.num_workers=0")
    run(tmp_path / "parts", "trainer.stop_after=7steps", f"data.num_workers={workers}")
    parts = run(tmp_path / "parts", "resume=auto", f"data.num_workers={workers}")
    assert whole["step"] == parts["step"] == 20
    for kind in ("model", "ema"):
        expected = whole[kind]["model"] if kind == "ema" else whole[kind]
        found = parts[kind]["model"] if kind == "ema" else parts[kind]
        for name, value in expected.items():
            assert torch.equal(value, found[name]), name
    for key, state in whole["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, parts["optimizer"]["state"][key][name])
    assert whole["sampler"] == parts["sampler"] == {"epoch": 3, "cursor": 8}
    assert whole["metrics"] == parts["metrics"]
