"""A data set with known defects: each is found, once; and anchor coverage against every anchor tried."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.config import DoctorConfig, ModelConfig, load_config
from retina_dist.data.checks import anchor_coverage
from retina_dist.data.coco import load_annotations
from retina_dist.data.synthetic import make_shapes
from retina_dist.doctor import advice, examine, format_report
from retina_dist.model.retinanet import anchor_generator, build_retinanet
from retina_dist.model.targets import pairwise_iou
from tests.unit.test_model import CANVAS, make_batch


def settings(root: Path) -> DoctorConfig:
    return load_config("doctor", ["data=coco", f"data.root={root}", "data.min_sizes=[128]", "data.max_size=192"])


def defective(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
    (root / "annotations").mkdir()

    def picture(path: Path, size: tuple[int, int] = (60, 40)) -> None:
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)

    for name in ("a", "b", "c", "turned", "cut"):
        picture(root / "train" / f"{name}.png")
    picture(root / "train" / "wrong.png", (50, 40))
    (root / "train" / "twin.png").write_bytes((root / "train" / "a.png").read_bytes())
    (root / "train" / "cut.png").write_bytes((root / "train" / "cut.png").read_bytes()[:-2000])
    picture(root / "val" / "v.png")
    (root / "val" / "leak.png").write_bytes((root / "train" / "b.png").read_bytes())

    names = ["a", "b", "c", "turned", "cut", "wrong", "twin", "gone"]
    boxes = [[1, 1, 20, 20], [5, 5, 0, 10], [100, 100, 5, 5], [50, 30, 30, 30], [1, 1, 8, 8]]
    entries = [
        {"id": i, "image_id": image, "category_id": 1, "bbox": box}
        for i, (image, box) in enumerate(zip([1, 1, 2, 3, 4], boxes, strict=True), start=1)
    ]
    entries.append({"id": 9, "image_id": 2, "category_id": 1, "bbox": [0, 0, 30, 30], "iscrowd": 1})
    categories = [{"id": 1, "name": "thing"}, {"id": 4, "name": "never"}]
    train = [{"id": i, "file_name": f"{n}.png", "width": 60, "height": 40} for i, n in enumerate(names, start=1)]
    val = [{"id": i, "file_name": f"{n}.png", "width": 60, "height": 40} for i, n in enumerate(["v", "leak"], start=1)]
    for split, images, boxed in (("train", train, entries), ("val", val, entries[:1])):
        content = {"images": images, "annotations": boxed, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def test_each_defect_is_found_once(tmp_path: Path) -> None:
    defective(tmp_path)
    report = examine(settings(tmp_path))
    found = {(f.level, f.split, f.what): (f.count, f.examples) for f in report.findings}
    assert len(found) == len(report.findings)
    assert found.pop(("error", "train", "images missing"))[0] == 1
    assert "cut.png" in found.pop(("error", "train", "images unreadable"))[1][0]
    size = ("wrong.png is 50 x 40, annotated 60 x 40",)
    assert found.pop(("error", "train", "images of another size")) == (1, size)
    assert found.pop(("error", "val", "images that are in train too")) == (1, ("leak.png = b.png of train",))
    assert found.pop(("warning", "train", "files with the same bytes")) == (1, ("a.png = twin.png",))
    assert found.pop(("warning", "train", "boxes of zero or negative size"))[1] == ("annotation 2: [5, 5, 0, 10]",)
    assert found.pop(("warning", "train", "boxes outside the image"))[0] == 1
    assert found.pop(("warning", "train", "categories without a box")) == (1, ("never",))
    assert found.pop(("info", "train", "boxes that reach out of their image"))[0] == 1
    assert found.pop(("info", "train", "crowd regions"))[0] == 1
    assert found.pop(("info", "train", "images without boxes"))[0] == 5
    assert found.pop(("info", "val", "images without boxes"))[0] == 1
    assert found.pop(("info", "val", "categories without a box"))[0] == 1
    assert found.pop(("info", "train", "2 unused ids between 1 and 4 for 2 categories"))[0] == 2
    assert not found
    assert report.num_errors == 4
    text = format_report(report)
    assert "ERROR" in text
    assert json.loads(json.dumps(report.to_dict()))["errors"] == 4


def test_a_sound_data_set_has_no_errors_or_warnings(tmp_path: Path) -> None:
    make_shapes(tmp_path / "shapes", num_train=60, num_val=30, image_size=64)
    report = examine(settings(tmp_path / "shapes"))
    assert {f.level for f in report.findings} <= {"info"}
    assert sum(row["all"] for row in report.objects["train"].values()) == len(report.coverage.best_iou)


def test_coverage_equals_trying_every_anchor(tmp_path: Path) -> None:
    """One image the size of its canvas, so that boxes are in canvas pixels, against the network's own anchors."""
    batch = make_batch([8], num_classes=2, seed=4)
    height, width = CANVAS
    boxes = torch.cat((batch.boxes[0], torch.tensor([[0.0, 0.0, 5.0, 5.0], [100.0, 20.0, 104.0, 110.0]])))
    xywh = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), dim=1).tolist()
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": width, "height": height}],
        "annotations": [{"id": i, "image_id": 1, "category_id": 1, "bbox": b} for i, b in enumerate(xywh, start=1)],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = load_annotations(tmp_path / "a.json", tmp_path, missing_images="ignore")
    sizes = [[8, 10], [16, 20], [32, 40], [64, 80], [128, 160]]
    model = build_retinanet(num_classes=2, backbone="resnet18", fpn_channels=32, anchor_sizes=sizes)
    anchors = torch.cat(model.predict(batch)[1])
    cells = [a.numpy() for a in anchor_generator(sizes, (0.5, 1.0, 2.0)).cell_anchors]
    coverage = anchor_coverage(data, cells, min_size=min(CANVAS), max_size=max(CANVAS), num_buckets=1)
    expected = pairwise_iou(boxes[None].double(), anchors.double())[0].amax(dim=1)
    np.testing.assert_allclose(coverage.best_iou, expected.numpy(), atol=1e-5)
    assert sum(row["boxes"] for row in coverage.rows("size")) == 10
    assert sum(row["boxes"] for row in coverage.rows("aspect")) == 10


@pytest.mark.parametrize(
    ("side", "words"), [((6.0, 6.0), "smaller anchors"), ((900.0, 900.0), "larger anchors"), ((40.0, 400.0), "aspect")]
)
def test_advice(side: tuple[float, float], words: str, tmp_path: Path) -> None:
    entries = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, *side]}]
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 1000, "height": 1000}],
        "annotations": entries,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = load_annotations(tmp_path / "a.json", tmp_path, missing_images="ignore")
    model = ModelConfig(anchor_sizes=[[32], [64], [128], [256], [400]])
    cells = [a.numpy() for a in anchor_generator(model.anchor_sizes, model.aspect_ratios).cell_anchors]
    coverage = anchor_coverage(data, cells, min_size=1000, max_size=1000, num_buckets=1)
    assert words in str(advice(coverage, model))
