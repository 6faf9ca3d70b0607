"""Files for other runtimes hold the detector that they were made of, or are not written."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torchvision.transforms.v2.functional import resize_image

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.detection import export as module
from retina_dist.detection.batch import Detections
from retina_dist.detection.detector import Detector
from retina_dist.detection.export import OUTPUTS, export, prepare_stretched
from retina_dist.detection.model.postprocess import matrix_nms
from retina_dist.task.settings import ExportConfig
from tests.commands import ROOT
from tests.unit.serving.server import make_image, small_detector


@pytest.fixture(scope="module")
def detector() -> Detector:
    return small_detector()


@pytest.fixture(autouse=True)
def checkpoint(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: detector)


def settings(path: Path, **changes: object) -> ExportConfig:
    config = ExportConfig(checkpoint="best.pt", output=str(path))
    return replace(config, **changes)  # type: ignore[arg-type]


def test_onnx_is_run_and_says_what_it_is(tmp_path: Path) -> None:
    """Of one size, which takes a third of the time; one for any size is compared on several
    whenever a user makes it.
    """
    pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    found = export(settings(tmp_path / "model.onnx", size=[48, 40]))
    assert found["detections"] > 10
    assert found["boxes"] < 1e-2
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("images", "tensor(uint8)", [1, 3, 48, 40])
    ]
    assert [o.name for o in session.get_outputs()] == ["boxes", "scores", "labels"]
    about = {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}
    assert about["categories"] == {"0": {"id": 3, "name": "cat"}, "2": {"id": 8, "name": "dog"}}
    assert (about["min_size"], about["max_size"], about["score_threshold"]) == (64, 96, 0.05)
    assert about["versions"]["torch"] == version("torch")


def test_the_documented_lines_name_what_a_file_detects(
    tmp_path: Path,
    detector: Detector,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On an image that its resize leaves as it is, so that the boxes are those of the detector."""
    pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    monkeypatch.chdir(tmp_path)
    export(settings(Path("model.onnx"), size=[64, 64]))
    capsys.readouterr()
    Path("image.jpg").write_bytes(make_image(size=(64, 64), form="JPEG"))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/inference.md").read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if "onnxruntime" in block]
    exec(compile(lines.replace("score >= 0.3", "score >= 0.06"), "inference.md", "exec"), {})

    expected = []
    for one in detector.to_dict(detector.predict("image.jpg")[0], 0.06)["detections"]:
        expected.append(f"{one['category_name']} {round(one['score'], 2)}")
    printed = [line.split(" [")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(expected) > 3
    assert printed == expected


def test_pt2_of_one_size(tmp_path: Path, detector: Detector) -> None:
    found = export(settings(tmp_path / "model.pt2", size=[64, 96]))
    assert found["detections"] > 10
    assert found["boxes"] < 1e-2
    extra = {"categories": "", "input": ""}
    loaded = torch.export.load(str(tmp_path / "model.pt2"), extra_files=extra)
    assert json.loads(extra["categories"])["2"] == {"id": 8, "name": "dog"}
    with pytest.raises(AssertionError, match="Guard failed"):
        loaded.module()(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"needs 129 px a side, not 64; give size=\[64,96\]"):
        export(settings(tmp_path / "model.pt2"))


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_matrix_nms_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Of one size; hard NMS would not leave as many."""
    if ending == "onnx":
        pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    matrix = small_detector(nms="matrix", nms_threshold=0.8)
    hard = small_detector(nms_threshold=0.8)
    image = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
    lowered, scores = (one.predict(image)[0]["scores"] for one in (matrix, hard))
    assert scores[0] == lowered[0]
    assert scores[5] > lowered[5]
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: matrix)
    found = export(settings(tmp_path / f"model.{ending}", size=[64, 96]))
    assert found["detections"] > 10
    assert found["scores"] < 1e-4


class Lowered(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        return matrix_nms(boxes, scores, labels)


def test_matrix_nms_of_a_file_for_any_size_takes_any_number_of_candidates() -> None:
    """Past `MATRIX_CANDIDATES`, as images of different sizes have them."""

    def candidates(count: int) -> tuple[Tensor, Tensor, Tensor]:
        corners = torch.rand(1, count, 2) * 100
        boxes = torch.cat((corners, corners + 20), dim=2)
        return boxes, torch.rand(1, count), torch.arange(count)[None] % 3

    dynamic = [{1: Dim.AUTO}] * 3
    graph = torch.export.export(Lowered(), candidates(700), dynamic_shapes=dynamic, strict=False)
    for count in (700, 801):
        given = candidates(count)
        assert torch.equal(graph.module()(*given), matrix_nms(*given))


def test_a_state_dict_of_matrix_nms_says_that_torchvision_detects_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = small_detector(nms="matrix", nms_threshold=0.8)
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: matrix)
    assert export(settings(tmp_path / "state_dict.pt"))["scores"] < 1e-4
    assert "give it nms_thresh=0.5, or write a .onnx or .pt2" in caplog.text
    assert matrix.model.settings.nms == "matrix"


def test_an_image_for_a_file_of_one_size_is_stretched(detector: Detector) -> None:
    """Boxes are in pixels of the stored image: 90 / 40 and 60 / 80 times those of the input."""
    pixels = torch.randint(0, 256, (3, 60, 90), dtype=torch.uint8)
    found = detector.run([prepare_stretched(detector, [80, 40], pixels)])[0]
    small = resize_image(pixels, [80, 40], antialias=True)
    other = Detector(detector.model, detector.categories, min_size=40, max_size=80)
    expected = other.predict(small)[0]
    assert len(found["scores"]) > 10
    assert found["scores"].tolist() == expected["scores"].tolist()
    scale = torch.tensor([2.25, 0.75, 2.25, 0.75])
    torch.testing.assert_close(found["boxes"], expected["boxes"] * scale)
    assert (detector.min_size, detector.max_size) == (64, 96)


def test_a_state_dict_is_torchvisions(tmp_path: Path, detector: Detector) -> None:
    assert export(settings(tmp_path / "state_dict.pt"))["detections"] > 10
    state = torch.load(tmp_path / "state_dict.pt", weights_only=True)
    assert state.keys() == detector.model.state_dict().keys()


def test_the_model_card_says_what_the_checkpoint_says(tmp_path: Path, detector: Detector) -> None:
    detector.record = {
        "step": 40,
        "world_size": 2,
        "images": "ab12",
        "metrics": {"coco/AP": 0.51234},
        "config": {
            "data": {"root": "https://me:secret@host/data|a", "batch_size": 8},
            "model": {"backbone": "resnet18", "backbone_weights": "DEFAULT"},
        },
        "versions": {"torch": "2.15.0"},
        "origin": {"license": "CC BY 4.0", "weights": "ResNet18_Weights.DEFAULT"},
    }
    export(settings(tmp_path / "state_dict.pt", intended_use="Count animals."))
    rows = dict(
        re.fullmatch(r"\| (.*?) \| (.*) \|", line).groups()  # type: ignore[union-attr]
        for line in (tmp_path / "state_dict.pt_card.md").read_text().splitlines()
        if line.startswith("| ") and line != "| | |"
    )
    assert rows["root"] == "https://host/data\\|a"
    assert rows["length"] == "40 steps of 8 images over 2 processes"
    assert (rows["coco/AP"], rows["backbone"], rows["torch"]) == ("0.5123", "resnet18", "2.15.0")
    text = (tmp_path / "state_dict.pt_card.md").read_text()
    started = text.partition("## Starting weights")[2].partition("## ")[0]
    assert "| weights | ResNet18_Weights.DEFAULT |\n| license | unknown |" in started
    assert "| source | https://download.pytorch.org/models/resnet18-f37072fd.pth |" in started
    assert (rows["license"], rows["source"]) == ("CC BY 4.0", "unknown"), "of the data"
    assert (rows["classes"], rows["images and use"]) == ("2: cat, dog", "Count animals.")
    assert rows["SHA-256"] == hashlib.sha256((tmp_path / "state_dict.pt").read_bytes()).hexdigest()


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("mobilenet_v3_small", "pt2"),
        ("mobilenet_v3_small", "pt"),
        ("convnext_tiny", "onnx"),
        ("swin_t", "pt"),
    ],
)
def test_other_bodies(
    body: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
        pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    made = small_detector(backbone=body)
    head = made.model.head.classification_head
    # scores that differ: nearly all of an untrained body's are 0.01, and large weights make them
    # all 1
    with torch.no_grad():
        logits = head(list(made.model.backbone(torch.randn(1, 3, 64, 96)).values()))
        head.cls_logits.weight *= 2 / logits.std()
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: made)
    size = {} if form == "pt" else {"size": [64, 96]}
    found = export(settings(tmp_path / f"model.{form}", **size))
    assert found["detections"] > 10
    assert found["boxes"] < 1e-2


def shifted(found: Detections, boxes: float = 0.0, scores: float = 0.0) -> Detections:
    return Detections(
        boxes=found["boxes"] + boxes, scores=found["scores"] + scores, labels=found["labels"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda found: shifted(found, boxes=0.2),
            "its boxes differ by up to 0.2 px, more than 0.1 px",
        ),
        (
            lambda found: shifted(found, scores=0.002),
            "its scores differ by up to 0.002, more than 0.001",
        ),
        (
            lambda found: Detections(**{k: v[:0] for k, v in found.items()}),
            "its boxes differ by up to inf",
        ),  # type: ignore
        (lambda found: shifted(found, boxes=float("nan")), "its boxes differ by up to inf"),
    ],
)
def test_what_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, words: str
) -> None:
    load = module._with_state

    def wrong(detector: Detector, state: Any) -> module.Runner:
        run = load(detector, state)
        return lambda image: [
            *change(Detections(**dict(zip(OUTPUTS, run(image), strict=True)))).values()
        ]  # type: ignore

    monkeypatch.setattr(module, "_with_state", wrong)
    (tmp_path / "state_dict.pt").write_text("the old one")
    with pytest.raises(UserError, match=words):
        export(settings(tmp_path / "state_dict.pt"))
    assert [p.name for p in tmp_path.iterdir()] == ["state_dict.pt"]
    assert (tmp_path / "state_dict.pt").read_text() == "the old one"


def test_a_detector_without_detections_is_not_exported(
    tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before the graph is traced, which takes minutes."""
    monkeypatch.setattr(detector.model, "score_thresh", 1.0)
    monkeypatch.setattr(
        detector, "record", {"best": {"name": "coco/AP", "mode": "max", "value": 0.0}}
    )
    monkeypatch.delattr(module, "Exporter")
    message = r"best.pt detects nothing in . images to compare "
    message += r"\(its run's best coco/AP is 0.000\); train it for longer"
    with pytest.raises(UserError, match=message):
        export(settings(tmp_path / "state_dict.pt"))
