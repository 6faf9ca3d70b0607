"""The files for other tools hold what the detector says; each is read as its tool reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from retina_dist.base.errors import ConfigError
from retina_dist.config.compose import load_config
from retina_dist.detection import commands
from retina_dist.detection.detector import Detector
from retina_dist.detection.readers.load import load_annotations
from tests.unit.serving.server import make_image, small_detector

THRESHOLD = 0.3
NAME = "b/c \udcff.png"  # of bytes that are no UTF-8


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images, one in a folder below, 90 x 60 and 40 x 80 px."""
    monkeypatch.setattr(Detector, "from_checkpoint", lambda path, **how: small_detector())
    folder = tmp_path / "photos"
    (folder / "b").mkdir(parents=True)
    (folder / "a.png").write_bytes(make_image(1))
    (folder / NAME).write_bytes(make_image(2, (40, 80)))
    return folder


def written(photos: Path, tool: str) -> Path:
    output = photos.parent / "out"
    files = f"input='{photos}/**/*.png'"
    command = [
        "checkpoint=best.pt",
        files,
        f"output_dir={output}",
        f"format={tool}",
        f"score_threshold={THRESHOLD}",
    ]
    commands.predict(load_config("predict", command))
    return output


def expected(photos: Path, name: str) -> list[tuple[str, list[float], float]]:
    """Category, corners and score of each object."""
    with Image.open(photos / name) as image:
        (output,) = small_detector().predict(image)
    names = small_detector().categories.names
    rows = zip(
        output["labels"].tolist(), output["boxes"].tolist(), output["scores"].tolist(), strict=True
    )
    objects = [(names[k], box, score) for k, box, score in rows if names[k] and score >= THRESHOLD]
    assert objects
    return objects


def test_fiftyone(photos: Path) -> None:
    content = json.loads((written(photos, "fiftyone") / "labels.json").read_text())
    assert content["classes"] == ["cat", "dog"]
    for name, (width, height) in (("a", (90, 60)), (NAME[:-4], (40, 80))):
        for label, (category, (x1, y1, x2, y2), score) in zip(
            content["labels"][name], expected(photos, f"{name}.png"), strict=True
        ):
            assert (label["label"], label["confidence"]) == (category, score)
            shares = [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
            torch.testing.assert_close(label["bounding_box"], shares)


def test_label_studio(photos: Path) -> None:
    tasks = json.loads((written(photos, "label_studio") / "label_studio.json").read_text())
    assert [task["data"]["image"] for task in tasks] == [
        "/data/local-files/?d=photos/a.png",
        "/data/local-files/?d=photos/b/c%20%FF.png",
    ]
    results = tasks[1]["predictions"][0]["result"]
    for one, (category, (x1, y1, x2, y2), score) in zip(
        results, expected(photos, NAME), strict=True
    ):
        assert (one["original_width"], one["original_height"], one["score"]) == (40, 80, score)
        assert (one["from_name"], one["to_name"], one["value"]["rectanglelabels"]) == (
            "label",
            "image",
            [category],
        )
        percent = [x1 / 0.4, y1 / 0.8, (x2 - x1) / 0.4, (y2 - y1) / 0.8]
        torch.testing.assert_close(
            [one["value"][key] for key in ("x", "y", "width", "height")], percent
        )


def test_cvat_is_read_back_by_our_reader(photos: Path) -> None:
    output = written(photos, "cvat")
    (output / "annotations.xml").rename(photos / "annotations.xml")
    found = load_annotations(photos, photos, format="cvat", missing_images="ignore")
    for row, name in enumerate(("a.png", NAME)):
        assert found.records[row].file_name == name.replace("\udcff", "\\udcff")
        names = [found.categories.names[label] for label in found.labels[row]]
        boxes = [pytest.approx(box, abs=0.01) for box in found.boxes[row].tolist()]
        right = [(category, corners) for category, corners, _ in expected(photos, name)]
        assert right == list(zip(names, boxes, strict=True))


def test_a_classifier_has_no_boxes(photos: Path) -> None:
    from retina_dist.classification import commands as classification

    with pytest.raises(ConfigError, match="format=cvat is for detection"):
        classification.predict(
            load_config("predict", ["checkpoint=best.pt", f"input={photos}", "format=cvat"])
        )
