"""The limits of a detector's output: one meaning in Python, in each command and in what is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import box_iou

from retina_dist.base.errors import ConfigError
from retina_dist.classification.commands import export as export_classifier
from retina_dist.classification.commands import predictor_of as classifier_of
from retina_dist.config.compose import load_config
from retina_dist.detection import commands
from retina_dist.detection.batch import Detections
from retina_dist.detection.detector import Detector
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.export import OUTPUTS
from retina_dist.serving.scoring import Scorer
from tests.plugins.cell_detector import CellDetector, CellSettings
from tests.unit.serving.server import make_image, score, small_detector

SIDE = 64  # px, which the small detector does not resize
GIVEN = {"score_threshold": 0.06, "nms_threshold": 0.4, "detections_per_image": 20}
ARGUMENTS = [f"{name}={value}" for name, value in GIVEN.items()]
COMMANDS = {
    "evaluate": [],
    "predict": ["input=images"],
    "serve": [],
    "export": ["output=model.onnx"],
}


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image in the current folder, and the small detector as the checkpoint of every command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: small_detector())
    (tmp_path / "images").mkdir()
    path = tmp_path / "images" / "1.png"
    path.write_bytes(make_image(size=(SIDE, SIDE)))
    return path


def command(name: str, *overrides: str) -> Any:
    return load_config(name, ["checkpoint=best.pt", *COMMANDS[name], *overrides])


def rows_of(found: Detections) -> list[tuple[int, float, list[float]]]:
    return list(
        zip(
            found["labels"].tolist(), found["scores"].tolist(), found["boxes"].tolist(), strict=True
        )
    )


def test_each_limit_does_what_it_says(image: Path) -> None:
    every = small_detector().predict(image)[0]
    rows = rows_of(every)
    assert len(rows) > 12

    middle = rows[len(rows) // 2][1]
    above = small_detector().set_limits(score_threshold=middle).predict(image)[0]
    assert rows_of(above) == [row for row in rows if row[1] > middle]
    strict = small_detector(score_threshold=0.6).set_limits(score_threshold=0.05)
    assert rows_of(strict.predict(image)[0]) == rows  # below the checkpoint's too
    # of which those beside the image are left out
    few = rows_of(small_detector().set_limits(detections_per_image=8).predict(image)[0])
    assert 0 < len(few) <= 8 < len(rows)
    assert few == rows[: len(few)]

    apart = small_detector().set_limits(nms_threshold=0.1).predict(image)[0]
    overlaps = box_iou(apart["boxes"], apart["boxes"]).fill_diagonal_(0)
    overlaps[apart["labels"][:, None] != apart["labels"]] = 0
    assert overlaps.max() <= 0.1
    assert len(apart["scores"]) < len(rows)


@pytest.mark.parametrize("name", COMMANDS)
def test_null_is_the_checkpoints_own(name: str, image: Path) -> None:
    config = command(name)
    assert [getattr(config, key) for key in GIVEN] == [None, None, None]
    if name != "export":
        about = commands.predictor_of(config, "cpu").metadata()
        assert [about[key] for key in GIVEN] == [0.05, 0.5, 300]


@pytest.mark.parametrize(
    ("form", "given"),
    [
        ("onnx", {"score_threshold": 0.2, "nms_threshold": 0.4}),
        ("pt2", {"nms_threshold": 0.4, "detections_per_image": 20}),
    ],
)
def test_eager_file_and_server_give_the_same(form: str, given: dict[str, Any], image: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    arguments = [f"{name}={value}" for name, value in given.items()]
    detector = commands.predictor_of(command("predict", *arguments), "cpu")
    (expected,) = detector.predict(image)
    for name in given:  # each counts
        others = {key: value for key, value in given.items() if key != name}
        (without,) = small_detector().set_limits(**others).predict(image)
        assert rows_of(without) != rows_of(expected), name

    pixels = torch.from_numpy(np.asarray(Image.open(image)).copy()).permute(2, 0, 1)[None]
    output = f"model.{form}"
    files = ["images=images", f"size=[{SIDE},{SIDE}]", f"output={output}"]
    commands.export(command("export", *files, *arguments))
    about = dict.fromkeys(given, "")
    if form == "onnx":
        session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
        about = session.get_modelmeta().custom_metadata_map
        outputs = session.run(None, {"images": pixels.numpy()})
    else:
        outputs = torch.export.load(output, extra_files=about).module()(pixels)
    assert {key: json.loads(about[key]) for key in given} == given
    found = {name: torch.as_tensor(x) for name, x in zip(OUTPUTS, outputs, strict=True)}
    has_area = (found["boxes"][:, 2:] > found["boxes"][:, :2]).all(dim=1)
    assert found["labels"][has_area].tolist() == expected["labels"].tolist()
    for name, tolerance in (("scores", 1e-5), ("boxes", 1e-2)):
        torch.testing.assert_close(found[name][has_area], expected[name], rtol=0, atol=tolerance)

    served = commands.predictor_of(command("serve", *arguments), "cpu")
    (answer,) = score(Scorer(served), "image/png", image.read_bytes())
    assert answer["detections"] == detector.to_dict(expected)["detections"]


def test_predict_draws_what_it_writes_or_what_is_sure(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """results.json has every detection; without a threshold pictures show those from 0.3 on."""

    def written(*overrides: str) -> tuple[int, int]:
        folder = commands.predict(command("predict", "format=fiftyone", *overrides))
        labels = json.loads((folder / "labels.json").read_text())["labels"]["1"]
        return len(json.loads((folder / "results.json").read_text())), len(labels)

    detector = small_detector()
    own = detector.to_dict(detector.predict(image)[0])["detections"]
    sure = [each for each in own if each["score"] >= 0.3]
    many = [each for each in own if each["score"] > 0.1]
    assert written() == (len(own), len(sure))
    assert written("score_threshold=0.1") == (len(many), len(many))
    assert len(sure) < len(many) < len(own)
    capsys.readouterr()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("score_threshold=1", "score_threshold=1.0 is too large; it must be below 1."),
        ("nms_threshold=-0.1", "nms_threshold=-0.1 is too small; it must be at least 0."),
        ("detections_per_image=0", "detections_per_image=0 is too small; it must be at least 1."),
    ],
)
def test_the_same_values_are_refused_everywhere(name: str, given: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        command(name, given)
    assert message in str(caught.value)
    key, _, value = given.partition("=")
    with pytest.raises(ConfigError, match=f"{key}=.* is too"):
        small_detector().set_limits(**{key: json.loads(value)})


def test_limits_without_effect_are_refused(image: Path) -> None:
    config = load_config("evaluate", ["results=r.json", "annotations=a.json", *ARGUMENTS])
    with pytest.raises(ConfigError, match="leave them out for results=r.json"):
        evaluate(config)
    with pytest.raises(ConfigError, match=r"a .pt holds no score_threshold"):
        commands.export(command("export", "output=model.pt", *ARGUMENTS))
    cells = Detector(CellDetector(CellSettings(), 2), ["a", "b"])
    with pytest.raises(
        ConfigError, match=r"=0.3 has no effect on CellDetector, which does not set"
    ):
        cells.set_limits(score_threshold=0.3)
    with pytest.raises(ConfigError, match=r"score_threshold='0.3' is not a number"):
        small_detector().set_limits(score_threshold="0.3")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ARGUMENTS)
def test_a_classifier_has_no_boxes_to_limit(given: str) -> None:
    for name in ("evaluate", "predict", "serve"):
        with pytest.raises(ConfigError, match=f"{given} is for detection, and a classifier has no"):
            classifier_of(command(name, given), "cpu")
    with pytest.raises(ConfigError, match=f"{given} is for detection"):
        export_classifier(command("export", given))


def test_a_threshold_is_of_the_scores_with_their_temperature(image: Path) -> None:
    """As they are given: after calibration, in the order that they had before."""
    calibrated = small_detector()
    calibrated.record = {"calibration": {"temperature": 2.0}}
    rows = rows_of(calibrated.predict(image)[0])
    threshold = (rows[5][1] + rows[6][1]) / 2
    assert rows[5][1] > rows_of(small_detector().predict(image)[0])[5][1]
    calibrated.set_limits(score_threshold=threshold)
    assert rows_of(calibrated.predict(image)[0]) == rows[:6]
    assert calibrated.metadata()["score_threshold"] == pytest.approx(threshold)
