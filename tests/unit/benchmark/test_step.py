"""The step benchmark compares like with like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet

from retina_dist.benchmark import step
from retina_dist.config.compose import load_config
from retina_dist.detection.model.build import build_model
from retina_dist.detection.model.retinanet import as_torchvision
from retina_dist.errors import ConfigError

SMALL = [
    "model=retinanet_tiny", "canvases=[[64,64]]", "batch_sizes=[2]", "num_classes=3", "boxes=2",
    "steps=1", "warmup=0", "rounds=2", "strategy.device=cpu",
]  # fmt: skip


def test_both_take_the_same_first_step(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "found.json"
    step.benchmark(load_config("benchmark_step", [*SMALL, f"output={path}"]))
    found = json.loads(path.read_text())
    rows = {row["path"]: row for row in found["rows"]}
    assert list(rows) == ["torchvision", "fp32", "bf16"]
    assert rows["fp32"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=1e-5)
    assert rows["bf16"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=2e-2)
    assert rows["torchvision"]["ratio"] == [1.0, 1.0, 1.0]
    assert found["ratios"].keys() == {"fp32 64x64 batch 2", "bf16 64x64 batch 2"}
    printed = capsys.readouterr()
    progress = [line for line in printed.err.splitlines() if line.startswith("64x64, batch 2: ")]
    paths = [f"first steps of {name}" for name in ("torchvision", "fp32", "bf16")]
    assert [line[16:] for line in progress] == [*paths, "round 1 of 2", "round 2 of 2"]


def test_torchvisions_model_is_torchvisions(tmp_path: Path) -> None:
    config = load_config("benchmark_step", SMALL)
    model = build_model(config.model, 3)
    theirs = as_torchvision(model, (64, 64))
    assert type(theirs) is TorchvisionRetinaNet
    assert {type(m).__module__.split(".")[0] for m in theirs.modules()} <= {"torch", "torchvision"}
    assert type(model) is not TorchvisionRetinaNet  # ours stays ours
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("paths", ["[]", "[torchvision,fp64]"])
def test_an_unknown_path_is_named(paths: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of torchvision, torchvision-tf32"):
        step.benchmark(load_config("benchmark_step", [*SMALL, f"paths={paths}"]))
