"""A detector's certificate: what passes, which planted faults it notices, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.config.compose import load_config
from retina_dist.detection.certificate import certify
from retina_dist.detection.detector import Detector
from retina_dist.detection.export import exporter_of
from retina_dist.engine.checkpoint.store import sealed
from retina_dist.serving.server import on_loopback
from retina_dist.task.certificate import NotCertified
from tests.coco_files import write_coco
from tests.unit.serving.server import content, make_image

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

FAULTS = {
    "input in BGR order",
    "fp16 weights",
    "fp16 arithmetic",
    "resized to 90 %",
    "bicubic resize",
    "classes in another order",
    "nms_threshold=0.45",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images, of which a client cannot send the BMP as it is, a checkpoint, its state_dict."""
    folder = tmp_path_factory.mktemp("certificate")
    images = []
    for i, form in enumerate(("PNG", "JPEG", "BMP", "PNG"), start=1):
        name = f"{i}.{form.lower()}"
        (folder / name).write_bytes(make_image(i, (80 + 10 * i, 70), form))
        images.append({"id": i, "file_name": name, "width": 80 + 10 * i, "height": 70})
    boxes = [(i, 3, [9, 9, 40, 40], 0) for i in range(1, 5)]
    write_coco(folder / "truth.json", images, boxes, {3: "cat", 8: "dog"})
    settings = {"data": {"name": "mine"}}
    (folder / "a.pt").write_bytes(sealed({"step": 1, **content(), "config": settings}))
    torch.save(exporter_of(Detector.from_checkpoint(folder / "a.pt"), "a.pt").state, state(folder))
    return folder


def state(folder: Path) -> Path:
    return folder / "state_dict.pt"


def certificate(
    run: Path, output: Path, *settings: str, file: str = "", checkpoint: str = "a.pt"
) -> dict[str, Any]:
    command = [
        f"checkpoint={run}/{checkpoint}",
        f"annotations={run}/truth.json",
        f"certify=[{file or state(run)}]",
        f"output_dir={output}",
        "device=cpu",
    ]
    certify(load_config("evaluate", [*command, *settings]), on_loopback)
    found: dict[str, Any] = json.loads((output / "certificate.json").read_text())
    return found


def test_it_passes_what_is_equal_and_notices_each_planted_fault(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = certificate(run, tmp_path)
    said = capsys.readouterr()
    assert found["passed"]
    assert list(found["forms"]) == ["PyTorch", str(state(run)), "server"]
    expected = Detector.from_checkpoint(run / "a.pt").predict(run / "1.png")[0]
    assert len(expected["scores"]) > 10, "else a test of few differences"
    for name, entry in found["forms"].items():
        assert entry["box_px"] <= (1e-3 if name == str(state(run)) else 0), name
        assert entry["unmatched"] == 0
        assert entry["AP"]["reason"] == "too few images with objects (4 of 10)"
    assert found["faults"].keys() == FAULTS
    assert [name for name, entry in found["faults"].items() if not entry["caught"]] == []
    data = b"".join((run / name).read_bytes() for name in ("1.png", "2.jpeg", "3.bmp", "4.png"))
    assert found["sha256"]["images"] == hashlib.sha256(data).hexdigest()
    for key, file in (("checkpoint", run / "a.pt"), (str(state(run)), state(run))):
        assert found["sha256"][key] == hashlib.sha256(file.read_bytes()).hexdigest()
    page = (tmp_path / "certificate.md").read_text()
    assert "a.pt: passed\n\n## Model" in page
    assert page.count(", passed |") == 3
    assert page.count(", caught |") == len(FAULTS)
    assert "|" not in said.out
    assert said.out.startswith(f"Certificate of {run}/a.pt: passed\n\nforms\n  PyTorch  ")
    assert len(said.out.splitlines()) == 1 + 2 * 2 + 3 + len(FAULTS) + 2
    assert found["forms"]["PyTorch"]["AP"]["value"] > 0
    assert "warning" not in found
    assert "warning" not in said.out + page


def test_a_detector_that_is_never_right_proves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    truth = json.loads((run / "truth.json").read_text())
    for box in truth["annotations"]:
        box["bbox"] = [0, 0, 2, 2]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    found = certificate(tmp_path, tmp_path / "out", "num_images=1")
    assert found["forms"]["PyTorch"]["AP"]["value"] == 0
    warning = found["warning"]
    assert warning.startswith("AP of PyTorch is not above 0 on these images, so that equal answers")
    first = f"Certificate of {tmp_path}/a.pt: passed; warning: {warning}\n"
    assert capsys.readouterr().out.startswith(first)
    assert (tmp_path / "out/certificate.md").read_text().startswith(f"# {first}")


def test_a_broken_export_is_not_certified(run: Path, tmp_path: Path) -> None:
    """A weight that is a thousandth larger; the certificate is written all the same."""
    weights = torch.load(state(run), weights_only=True)
    weights["head.classification_head.cls_logits.weight"] *= 1.001
    torch.save(weights, tmp_path / "broken.pt")
    with pytest.raises(NotCertified, match="broken.pt differs from .*a.pt by more than") as caught:
        certificate(run, tmp_path, file=f"{tmp_path}/broken.pt")
    assert caught.value.exit_code == 1
    found = json.loads((tmp_path / "certificate.json").read_text())
    passed = {name: entry["passed"] for name, entry in found["forms"].items()}
    assert passed == {"PyTorch": True, f"{tmp_path}/broken.pt": False, "server": True}
    assert not found["passed"]
    assert "a.pt: NOT PASSED" in (tmp_path / "certificate.md").read_text()


def test_a_server_of_tiles_is_compared_with_them(run: Path, tmp_path: Path) -> None:
    found = certificate(run, tmp_path, "tile=64", "num_images=2")
    assert found["images"] == 2
    assert found["forms"]["tiles"]["unmatched"] > 0
    assert "passed" not in found["forms"]["tiles"]
    assert found["forms"]["server"]["unmatched"] == 0
    assert found["forms"]["server"]["AP"] == found["forms"]["tiles"]["AP"]
    assert found["passed"]


def test_a_file_of_one_size_is_compared_with_pytorch_at_that_size(
    run: Path, tmp_path: Path
) -> None:
    file = str(tmp_path / "fixed.pt2")
    detector = Detector.from_checkpoint(run / "a.pt")
    exporter_of(detector, "a.pt", [64, 48]).write(Path(file), lambda run: None)
    found = certificate(run, tmp_path, "num_images=2", file=file)
    assert list(found["forms"]) == ["PyTorch", "PyTorch, 64 x 48 px", file, "server"]
    stretched = found["forms"]["PyTorch, 64 x 48 px"]
    assert stretched["unmatched"] > 0.5
    assert "passed" not in stretched
    assert found["forms"][file]["beside"] == "PyTorch, 64 x 48 px"
    assert found["forms"][file]["unmatched"] == 0
    assert found["passed"]
    assert "beside PyTorch, 64 x 48 px, passed |" in (tmp_path / "certificate.md").read_text()


def test_a_state_dict_is_compared_with_hard_nms(run: Path, tmp_path: Path) -> None:
    matrix = content(nms="matrix", nms_threshold=0.8)
    (run / "matrix.pt").write_bytes(
        sealed({"step": 1, **matrix, "config": {"data": {"name": "mine"}}})
    )
    found = certificate(run, tmp_path, "num_images=2", checkpoint="matrix.pt")
    assert found["forms"]["PyTorch, nms=hard"]["unmatched"] > 0.1
    assert found["forms"][str(state(run))]["beside"] == "PyTorch, nms=hard"
    assert found["forms"][str(state(run))]["passed"]
    assert found["forms"]["server"]["unmatched"] == 0


def test_a_bad_image_is_left_out_as_the_checkpoint_says(run: Path, tmp_path: Path) -> None:
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "2.jpeg").write_bytes((run / "2.jpeg").read_bytes()[:300])
    with pytest.raises(UserError, match=r"2.jpeg is not a readable image"):
        certificate(tmp_path, tmp_path / "out")
    settings = {"data": {"name": "mine", "bad_images": "skip"}}
    (tmp_path / "a.pt").write_bytes(sealed({"step": 1, **content(), "config": settings}))
    found = certificate(tmp_path, tmp_path / "out")
    assert found["passed"]
    assert found["images"] == 3
    data = b"".join((run / name).read_bytes() for name in ("1.png", "3.bmp", "4.png"))
    assert found["sha256"]["images"] == hashlib.sha256(data).hexdigest()
    assert found["forms"]["PyTorch"]["AP"]["reason"] == "too few images with objects (3 of 10)"


def test_nothing_detected_is_nothing_compared(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a.pt detects nothing in 4 images"):
        certificate(run, tmp_path, "score_threshold=0.999")
    assert not (tmp_path / "certificate.json").exists()


def test_a_file_that_does_not_run_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.pt").write_bytes(state(run).read_bytes()[:1000])
    with pytest.raises(UserError, match=r"cut.pt does not run on .*1.png"):
        certificate(run, tmp_path, file=f"{tmp_path}/cut.pt")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["certify=[a.onnx]", "calibrate=true"], "leave out results, calibrate and max_detections"),
        (["num_images=3"], "without certify: evaluate takes all images; leave it out"),
        (["certify=a.onnx"], r"write certify=\[model.onnx,model.pt2\]"),
    ],
)
def test_settings_that_exclude_each_other(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("evaluate", ["checkpoint=a.pt", *settings])


@pytest.mark.long
def test_every_kind_of_file_is_certified(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    detector = Detector.from_checkpoint(run / "a.pt")
    detector.min_size, detector.max_size = 130, 190
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: detector)
    files = [str(tmp_path / f"model{ending}") for ending in (".onnx", ".pt2")]
    for file in files:
        exporter_of(detector, "a.pt").write(Path(file), lambda run: None)
    found = certificate(run, tmp_path, file=",".join(files))
    assert found["passed"]
    assert list(found["forms"]) == ["PyTorch", *files, "server"]
