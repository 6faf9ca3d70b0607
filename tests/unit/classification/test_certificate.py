"""A classifier's certificate: what passes, and which planted faults it notices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from retina_dist.classification import certificate as module
from retina_dist.classification.certificate import certify
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.export import exporter_of
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.engine.checkpoint.store import sealed
from retina_dist.serving.server import on_loopback
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task import certificate as shared
from retina_dist.task.certificate import NotCertified
from tests.unit.classification.test_task import SMALL

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")


@pytest.fixture(scope="module")
def run(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained classifier, sure enough of something, and its state_dict."""
    folder = tmp_path_factory.mktemp("certificate")
    settings = [*SMALL, f"data.root={drawn}", "data.val_resize=20"]  # else nothing is resized
    task = ClassificationTask(load_config("train", settings), SingleDeviceStrategy("cpu"))
    torch.manual_seed(0)
    model = task.build_model()
    next(model.model.parameters()).data *= 100  # untrained, it gives every image nearly the same
    model.model.fc.weight.data *= 2e4
    content = {"model": model.state_dict(), "ema": None, "step": 1, **task.metadata(model)}
    (folder / "a.pt").write_bytes(sealed(content))
    classifier = TrainedClassifier.from_checkpoint(folder / "a.pt")
    torch.save(exporter_of(classifier, "a.pt").state, folder / "state_dict.pt")
    return folder


def certificate(run: Path, output: Path, file: Path) -> dict[str, Any]:
    command = [f"checkpoint={run}/a.pt", f"certify=[{file}]", f"output_dir={output}", "device=cpu"]
    certify(load_config("evaluate", command), on_loopback)
    found: dict[str, Any] = json.loads((output / "certificate.json").read_text())
    return found


def test_it_passes_what_is_equal_and_notices_each_planted_fault(run: Path, tmp_path: Path) -> None:
    file = run / "state_dict.pt"
    found = certificate(run, tmp_path, file)
    assert found["passed"]
    assert found["images"] == 7
    for name, entry in found["forms"].items():
        assert entry["probability"] < 1e-6, name
        assert entry["top1"] == found["forms"]["PyTorch"]["top1"]
    assert list(found["forms"]) == ["PyTorch", str(file), "server"]
    caught = {name: entry["caught"] for name, entry in found["faults"].items()}
    assert caught == {
        "input in BGR order": True,
        "fp16 weights": True,
        "fp16 arithmetic": True,
        "resized to 110 %": True,
        "bicubic resize": True,
        "classes in another order": True,
    }


def test_a_broken_export_is_not_certified(run: Path, tmp_path: Path) -> None:
    weights = torch.load(run / "state_dict.pt", weights_only=True)
    weights["fc.bias"] += F.one_hot(torch.tensor(1), len(weights["fc.bias"])) * 0.01
    torch.save(weights, tmp_path / "broken.pt")
    with pytest.raises(NotCertified, match="broken.pt differs from .*a.pt by more than"):
        certificate(run, tmp_path, tmp_path / "broken.pt")
    weights["fc.bias"] *= torch.nan
    torch.save(weights, tmp_path / "broken.pt")
    with pytest.raises(NotCertified, match="broken.pt differs"):
        certificate(run, tmp_path, tmp_path / "broken.pt")
    assert json.loads((tmp_path / "certificate.json").read_text())["faults"]


def test_a_fault_that_makes_no_difference_is_not_caught(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (module, shared):
        monkeypatch.setattr(where, "changed", lambda predictor, **values: predictor)
    found = certificate(run, tmp_path, run / "state_dict.pt")
    assert [entry["caught"] for entry in found["faults"].values()] == [False] * 6
    assert (tmp_path / "certificate.md").read_text().count("NOT CAUGHT") == 6


def test_a_bad_image_is_left_out_as_the_checkpoint_says(
    run: Path, drawn: Path, tmp_path: Path
) -> None:
    """Without the first image, each answer is still compared with its own image's label."""
    shutil.copytree(drawn, tmp_path / "data")
    content = torch.load(run / "a.pt", weights_only=False)
    content["config"]["data"] |= {"bad_images": "skip", "root": str(tmp_path / "data")}
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/a.pt").write_bytes(sealed(content))
    val = TrainedClassifier.from_checkpoint(run / "a.pt").val_of(
        ClassificationData(name="drawn", root=str(tmp_path / "data"))
    )
    Path(str(val.sources[0])).write_bytes(b"no image")
    found = certificate(tmp_path / "run", tmp_path, run / "state_dict.pt")
    assert found["images"] == 6
    classifier = TrainedClassifier.from_checkpoint(run / "a.pt")
    hits = 0
    for source, label in zip(val.sources[1:], val.labels[1:], strict=True):
        hits += int(classifier.predict(str(source))[0].argmax()) == label
    assert found["forms"]["PyTorch"]["top1"]["value"] == pytest.approx(hits / 6)
