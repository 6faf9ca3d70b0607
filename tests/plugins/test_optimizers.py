"""An optimizer and a schedule from outside the package: their settings, and a training
with resume.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.base.errors import ConfigError
from retina_dist.config.compose import load_config
from retina_dist.run.assemble import train
from retina_dist.run.build import build_plan
from tests.plugins.lion import LionSettings
from tests.plugins.test_plugins import FOUND

CHOSEN = [FOUND, "optimizer=lion", "schedule=polynomial"]


def test_a_training_with_both_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped and resumed ends with the bits of one that was not, and validates
    better than it began.
    """
    monkeypatch.chdir(tmp_path)
    small = [
        "task=discs",
        "logging=quiet",
        "data.batch_size=16",
        "trainer.max_duration=30steps",
        "optimizer.lr=1e-4",
    ]
    small += [
        "trainer.validate_every=10steps",
        "schedule.warmup=2steps",
        "optimizer.weight_decay=0.01",
    ]

    def run(*overrides: str) -> dict[str, float]:
        return train(load_config("train", [*CHOSEN, *small, *overrides]))

    first = run("output_dir=half", "trainer.stop_after=10steps")
    resumed = run("output_dir=half", "resume=auto")
    whole = run("output_dir=whole")
    assert resumed == whole
    assert whole["val/loss"] < first["val/loss"]
    one, two = (
        torch.load(Path(name) / "checkpoints" / "last.pt", weights_only=True, map_location="cpu")
        for name in ("whole", "half")
    )
    assert all(torch.equal(two["model"][name], weights) for name, weights in one["model"].items())
    with pytest.raises(ConfigError, match="optimizer.name=adamw differs from the lion"):
        train(
            load_config(
                "train", [FOUND, *small, "output_dir=half", "resume=auto", "optimizer=adamw"]
            )
        )


def test_their_settings_are_typed() -> None:
    config = load_config(
        "train", [*CHOSEN, "optimizer.beta1=0.5", "optimizer.lr=0.1", "schedule.power=2"]
    )
    assert isinstance(config.optimizer, LionSettings)
    assert (config.optimizer.beta1, config.optimizer.lr, config.optimizer.name) == (
        0.5,
        0.1,
        "lion",
    )
    config.trainer.max_duration, config.schedule.warmup = "10steps", "2steps"
    plan = build_plan(config, 100, 1)
    assert [round(plan.lr_at(step), 4) for step in (0, 2, 6, 9)] == [0.0001, 0.1, 0.025, 0.0016]
    assert "polynomial, warm-up over 2 steps" in str(plan)
