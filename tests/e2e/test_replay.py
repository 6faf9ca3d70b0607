"""A step that was left out is repeated from its file: the same step, the same images, the same losses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.config.compose import load_config
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.nonfinite import Divergence
from retina_dist.errors import ConfigError
from retina_dist.replay import replay
from retina_dist.run.assemble import train
from tests.e2e.conftest import SMALL


def ruined(model: torch.nn.Module) -> float:
    """NaN for a model with huge weights, else 1."""
    return float("nan") if any(bool((p.abs() > 1e20).any()) for p in model.parameters()) else 1.0


def test_the_step_of_a_file_is_that_of_the_metrics_and_its_images_come_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    autocast: list[bool] = []  # of each batch that is looked at image by image
    inspect = DetectionTask.inspect

    def look(*arguments: Any) -> Any:
        autocast.append(torch.is_autocast_enabled("cpu"))
        return inspect(*arguments)

    monkeypatch.setattr(DetectionTask, "inspect", look)
    build = DetectionTask.build_model

    def build_fragile(*arguments: Any, **named: Any) -> Any:
        # norms and ReLUs can make finite losses of ruined weights
        model = build(*arguments, **named)
        model.register_forward_hook(lambda module, _, losses: {k: v * ruined(module) for k, v in losses.items()})
        return model

    monkeypatch.setattr(DetectionTask, "build_model", build_fragile)
    run = tmp_path / "run"
    settings = [
        *SMALL,
        "logging=quiet",
        f"data.root={tmp_path / 'data'}",
        f"output_dir={run}",
        "schedule.warmup=0steps",
    ]
    settings += ["trainer.precision=bf16"]
    # the first step ruins the weights, so that the second and third have no finite loss
    settings += ["optimizer=sgd", "optimizer.lr=1e30", "trainer.max_nonfinite_steps=1", "trainer.max_duration=4steps"]
    with pytest.raises(Divergence, match="step 3: loss or gradient is not finite"):
        train(load_config("train", settings))
    with open(run / "metrics.csv", newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1"]  # the last that was taken
    path = run / "nonfinite_00000003.json"
    event = json.loads(path.read_text())
    assert (event["step"], event["steps_before"], event["checkpoint"]) == (3, 2, "nonfinite_00000002.pt")
    capsys.readouterr()
    replay(load_config("replay", [f"event={path}"]))
    printed = capsys.readouterr().out
    assert printed.startswith("step 3, epoch 0.500, lr ")  # 24 images, four a step
    recorded = [image["image_id"] for batch in event["ranks"][0]["micro_batches"] for image in batch]
    lines = [line.split() for line in printed.splitlines() if line.startswith("  image ")]
    assert [int(words[1].rstrip(",")) for words in lines] == recorded
    assert "nan" in printed
    assert autocast == [True, True, True]  # two steps of the run, one of the replay

    path.write_text(json.dumps({name: value for name, value in event.items() if name != "steps_before"}))
    with pytest.raises(ConfigError, match=r"is no nonfinite_STEP\.json \('steps_before'\)"):
        replay(load_config("replay", [f"event={path}"]))
