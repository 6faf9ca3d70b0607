"""The comparison of a detector's forms counts what differs; the long test runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.benchmark.agreement import AgreementConfig, agreement, compare
from retina_dist.detection.batch import Detections
from retina_dist.detection.detector import Detector
from tests.coco_files import write_coco
from tests.unit.serving.server import make_image, small_detector


def detections(*rows: tuple[float, float, int]) -> Detections:
    """Boxes of 10 px at x, by (x, score, label)."""
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    x, y = columns[0], torch.zeros(len(rows))
    return Detections(
        boxes=torch.stack((x, y, x + 10, y + 10), 1), scores=columns[1], labels=columns[2]
    )


def test_counterparts_are_near_and_of_one_label() -> None:
    expected = detections((0.0, 0.9, 1), (50.0, 0.8, 1), (80.0, 0.5, 2))
    other = detections((50.5, 0.8, 1), (0.0, 0.895, 1), (80.0, 0.5, 1))
    detector = small_detector()
    found = compare(detector, [expected], [other])
    assert found == {"box": 0.5, "score": pytest.approx(0.005), "unmatched": 2}
    assert compare(detector, [expected], [expected]) == {"box": 0, "score": 0, "unmatched": 0}
    unsure = detections(
        (0.0, 0.9, 1), (50.0, 0.8, 1), (80.0, 0.5, 2), (90.0, detector.model.score_thresh, 2)
    )
    assert compare(detector, [expected], [unsure])["unmatched"] == 0, (
        "the other side may be below the threshold"
    )


@pytest.mark.long
def test_all_forms_of_a_detector_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
    pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
    detector = small_detector()
    detector.min_size, detector.max_size = 130, 160
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: detector)
    (tmp_path / "val").mkdir()
    images = [
        {"id": i, "file_name": f"{i}.png", "width": 150 + 10 * i, "height": 170} for i in (1, 2)
    ]
    for image in images:
        (tmp_path / "val" / image["file_name"]).write_bytes(
            make_image(image["id"], (image["width"], 170))
        )
    boxes = [(i, 3, [9, 9, 60, 60], 0) for i in (1, 2)]
    for split in ("train", "val"):
        write_coco(
            tmp_path / "annotations" / f"instances_{split}.json",
            images,
            boxes,
            {3: "cat", 8: "dog"},
        )
    (tmp_path / "train").symlink_to("val")
    table = agreement(AgreementConfig(checkpoint="best.pt", root=str(tmp_path)))
    assert list(table) == ["PyTorch", ".pt", ".pt2", ".onnx", "server", "one tile"]
    for name, line in table.items():
        assert line["unmatched"] == 0
        most = 1e-2 if name.startswith(".") else 0  # px
        assert line["box"] <= most, name
        assert line["AP"] == pytest.approx(table["PyTorch"]["AP"], abs=1e-6)
