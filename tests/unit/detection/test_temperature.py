"""A temperature of the scores: fitted by `evaluate`, and the same wherever the checkpoint runs."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import CheckpointError, ConfigError, UserError
from retina_dist.detection import export as module
from retina_dist.detection.batch import scaled
from retina_dist.detection.detector import Detector
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.export import export
from retina_dist.detection.settings import DetectionData
from retina_dist.engine.checkpoint import store
from retina_dist.engine.checkpoint.store import amend, load_checkpoint, sealed
from retina_dist.serving.scoring import Scorer
from retina_dist.task.settings import EvaluateConfig, ExportConfig
from tests.coco_files import write_coco
from tests.unit.serving import server

NAMES = {3: "cat", 8: "dog"}
SIZE = (90, 60)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise on which every third detection is right."""
    data = tmp_path_factory.mktemp("noise")
    detector = server.small_detector()
    for split, first in (("val", 0), ("test", 20)):
        (data / split).mkdir(parents=True)
        images = []
        boxes = []
        for number in range(first, first + 2):
            file = data / split / f"{number}.png"
            file.write_bytes(server.make_image(number, SIZE))
            images.append({"id": number, "file_name": file.name, "width": 90, "height": 60})
            found = detector.to_dict(detector.predict(str(file))[0], 0.0)["detections"]
            boxes += [(number, each["category_id"], each["bbox"], 0) for each in found[::3]]
        write_coco(data / "annotations" / f"instances_{split}.json", images, boxes, NAMES)
    return data


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Path:
    """A run folder."""
    content = server.content() | {
        "step": 1,
        "metrics": {"coco/AP": math.nan},
        "config": {"data": asdict(replace(DetectionData(name="coco"), root=str(data)))},
    }
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step_00000001.pt").write_bytes(sealed(content))
    os.link(checkpoints / "step_00000001.pt", checkpoints / "best.pt")
    return tmp_path / "run"


def evaluated(run: Path, **changes: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Metrics, what is printed, and analysis.json."""
    out = run.parent / "out"
    small: dict[str, Any] = {"num_workers": 0, "device": "cpu", "output_dir": str(out)}
    result, printed = evaluate(EvaluateConfig(checkpoint=str(run), **small, **changes))
    return result.to_dict(), printed, json.loads((out / "analysis.json").read_text())


def test_a_fitted_temperature_changes_scores_alone_and_everywhere_alike(
    run: Path, data: Path
) -> None:
    image = str(data / "val/0.png")
    raw = Detector.from_checkpoint(run).predict(image)[0]
    weights = load_checkpoint(run)["model"]
    metrics, printed, before = evaluated(run, calibrate=True)
    temperature = before["calibration"]["temperature"]
    assert abs(temperature - 1) > 0.1
    file = run.resolve() / "checkpoints/step_00000001.pt"
    best = file.with_name("best.pt")
    assert printed.splitlines()[-1] == (
        f"temperature {temperature:.4f}, fitted to 2 images of val, is in {best}: "
        "measure its calibration on other images"
    )

    content = load_checkpoint(file)
    assert best.samefile(file)
    assert content["calibration"]["temperature"] == temperature
    assert content["model"].keys() == weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in content["model"].items())
    assert not [each for each in file.parent.iterdir() if ".tmp" in each.name]

    detector = Detector.from_checkpoint(run)
    found = detector.predict(image)[0]
    assert torch.equal(found["boxes"], raw["boxes"])
    assert torch.equal(found["labels"], raw["labels"])
    expected = [sigmoid(math.log(s / (1 - s)) / temperature) for s in raw["scores"].tolist()]
    assert found["scores"].tolist() == pytest.approx(expected, abs=1e-6)

    again, printed, after = evaluated(run)
    assert again == metrics, "the order is the same"
    assert after["calibration"]["ece"] == pytest.approx(before["calibration"]["after"]["ece"])
    assert after["calibration"]["temperature"] == pytest.approx(1, abs=1e-4)
    assert "the checkpoint's temperature was fitted to these images: no" in printed
    assert "fitted to these images" not in evaluated(run, split="test")[1]

    (answer,) = server.score(Scorer(detector), "image/png", Path(image).read_bytes())
    served = sorted(each["score"] for each in answer["detections"])
    assert served == sorted(
        score for _, _, score in server.expected(detector, Path(image).read_bytes())
    )
    rows = json.loads((run.parent / "out/results.json").read_text())
    assert {row["image_id"] for row in rows} == {20, 21}


def test_tiles_are_merged_by_the_raw_scores(run: Path, data: Path) -> None:
    image = str(data / "val/0.png")
    raw = Detector.from_checkpoint(run).tiled(64).predict(image)[0]
    amend(str(run), {}, calibration={"temperature": 3.0})
    found = Detector.from_checkpoint(run).tiled(64).predict(image)[0]
    assert torch.equal(found["boxes"], raw["boxes"])
    assert torch.equal(found["scores"], scaled(raw["scores"], 3.0))


def test_a_temperature_is_fitted_to_the_scores_of_tiles(run: Path) -> None:
    _, _, found = evaluated(run, tile=64, calibrate=True)
    written = load_checkpoint(run / "checkpoints/best.pt")["calibration"]["temperature"]
    assert written == found["calibration"]["temperature"]


@pytest.mark.parametrize("ending", ["pt", "pt2", pytest.param("onnx", marks=pytest.mark.long)])
def test_an_export_has_the_temperature(
    run: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    amend(str(run), {}, calibration={"temperature": 2.5})
    output = tmp_path / f"model.{ending}"
    size = None if ending == "pt" else [64, 96]
    worst = export(ExportConfig(checkpoint=str(run), output=str(output), size=size))
    assert worst["scores"] < 1e-4
    assert ("divide logits by temperature=2.5" in capsys.readouterr().out) == (ending == "pt")
    if ending == "pt2":
        extra = {"temperature": ""}
        graph = torch.export.load(str(output), extra_files=extra).module()
        assert extra["temperature"] == "2.5"
        pixels = torch.zeros(1, 3, 64, 96, dtype=torch.uint8)
        exact = server.small_detector().model.exportable().eval()
        with torch.no_grad():
            assert torch.allclose(graph(pixels)[1], scaled(exact(pixels)[1], 2.5), atol=1e-5)


def test_an_export_without_its_temperature_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amend(str(run), {}, calibration={"temperature": 2.5})
    monkeypatch.setattr(module.ScaledModel, "forward", lambda self, images: self.model(images))
    settings = ExportConfig(checkpoint=str(run), output=str(tmp_path / "m.pt2"), size=[64, 96])
    with pytest.raises(UserError, match="was not written: its scores differ"):
        export(settings)


def test_scaling_keeps_the_order_of_neighbours_and_ends() -> None:
    """Of adjacent float32, none is moved past the next."""
    start = torch.tensor([0.05, 0.3, 0.7, 0.999]).view(torch.int32)[:, None]
    near = (start + torch.arange(1000, dtype=torch.int32)).view(torch.float32).flatten()
    for temperature in (0.3, 1.7):
        found = scaled(near, temperature)
        assert bool((found.diff()[near.diff() > 0] >= 0).all())
    assert scaled(near, 1.0) is near
    assert scaled(torch.tensor([0.0, 1.0]), 2.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "hot"])
def test_a_checkpoint_with_an_impossible_temperature_is_refused(run: Path, value: object) -> None:
    amend(str(run), {}, calibration={"temperature": value})
    with pytest.raises(CheckpointError, match="does not describe a detector"):
        Detector.from_checkpoint(run)


def test_what_cannot_be_calibrated_is_refused(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for checkpoint in ({"results": "a.json"}, {"checkpoint": "ResNet50_Weights.DEFAULT"}):
        with pytest.raises(ConfigError, match="calibrate=true writes into a checkpoint; give"):
            evaluate(EvaluateConfig(calibrate=True, **checkpoint))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="best.pt was replaced meanwhile; evaluate it again"):
        amend(str(run), {"step": 2}, calibration={"temperature": 2.0})
    empty = {"images": [{"id": 0, "file_name": "0.png", "width": 90, "height": 60}]}
    names = [{"id": 3, "name": "cat"}, {"id": 8, "name": "dog"}]
    (tmp_path / "empty.json").write_text(
        json.dumps({**empty, "annotations": [], "categories": names})
    )
    images = str(data / "val")
    before = (run / "checkpoints/best.pt").read_bytes()
    with pytest.raises(UserError, match="no temperature fits these scores"):
        evaluated(run, annotations=str(tmp_path / "empty.json"), images=images, calibrate=True)
    monkeypatch.setattr("retina_dist.reporting.analysis.find_spec", lambda name: None)
    with pytest.raises(UserError, match="calibrate=true needs hotcoco; pip install"):
        evaluated(run, calibrate=True)
    assert (run / "checkpoints/best.pt").read_bytes() == before


def test_a_disk_that_is_full_leaves_the_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run / "checkpoints/best.pt").read_bytes()

    def refuse(*_: object) -> None:
        raise UserError("no space left")

    monkeypatch.setattr(store, "write_bytes", refuse)
    with pytest.raises(UserError, match="no space left"):
        amend(str(run), {}, calibration={"temperature": 2.0})
    assert (run / "checkpoints/best.pt").read_bytes() == before
