"""Boxes on images, and what a report shows of the last validation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from retina_dist.data.images import MAX_PIXELS
from retina_dist.detection.coco_metrics import evaluate_rows
from retina_dist.detection.pictures import class_color, draw_boxes, write_report_details
from retina_dist.detection.readers.load import load_annotations
from tests.coco_files import write_coco

NAMES = ("cat", "dog", "Müller-Ж")


def gray(height: int, width: int) -> Tensor:
    return torch.full((3, height, width), 128, dtype=torch.uint8)


def boxes(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def mask(picture: Tensor, label: int) -> Tensor:
    """[h, w]: where the picture has exactly the class's colour."""
    return (picture == torch.tensor(class_color(label), dtype=torch.uint8)[:, None, None]).all(
        dim=0
    )


def test_boxes_are_where_they_belong() -> None:
    image = torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8)
    assert torch.equal(draw_boxes(image, boxes(), torch.tensor([]), NAMES), image)
    picture = draw_boxes(
        gray(300, 700), boxes([100, 120, 200, 220]), torch.tensor([1]), NAMES, torch.tensor([0.5])
    )
    assert mask(picture, 1)[200].nonzero().flatten().tolist() == [100, 200]
    assert mask(picture, 1)[:, 190].nonzero().flatten().tolist() == [120, 220]
    enlarged = draw_boxes(gray(48, 64), boxes([10, 20, 30, 40]), torch.tensor([0]), NAMES)
    assert enlarged.shape == (3, 480, 640)
    assert {100, 300} <= set(mask(enlarged, 0)[390].nonzero().flatten().tolist())
    assert draw_boxes(gray(1, 1), boxes([0, 0, 1, 1]), torch.tensor([0]), NAMES).shape == (
        3,
        640,
        640,
    )


def test_odd_boxes_and_pixels_do_no_harm() -> None:
    odd = boxes([-50, -50, 2000, 2000], [10, 10, 10, 10], [float("nan"), 0, 5, 5], [9, 9, 5, 5])
    picture = draw_boxes(gray(480, 640).float() + 0.4, odd, torch.tensor([0, 1, 2, 70]), NAMES)
    assert mask(picture, 0)[479].all(), "cut at the border"
    assert mask(picture, 1)[10, 10], "without an area, still a dot"
    assert not mask(picture, 2).any()
    assert picture[0, 240, 320] == 128


def test_a_report_gets_images_with_objects_and_predictions(tmp_path: Path) -> None:
    """Those that analysis.json lists and that can be read, large ones smaller, marks in the pixels
    of the original.
    """
    Image.new("RGB", (1200, 600), "teal").save(tmp_path / "large.png")
    sizes = {7: ("large.png", 1200, 600), 8: ("missing.png", 64, 48), 9: ("unlisted.png", 64, 48)}
    images = [{"id": i, "file_name": f, "width": w, "height": h} for i, (f, w, h) in sizes.items()]
    write_coco(
        tmp_path / "val.json", images, [(7, 3, [600, 300, 100, 50], 0)], {3: "cat", 5: "dog"}
    )
    annotations = load_annotations(tmp_path / "val.json", tmp_path, missing_images="ignore")
    rows = [[7, 600, 300, 100, 50, 0.9, 3], [7, 0, 0, 9, 9, 0.2, 5], [8, 0, 0, 9, 9, 0.8, 3]]
    result = evaluate_rows(annotations.coco, np.array(rows, dtype=float))
    lists = {
        "worst": [{"image_id": 7}, {"image_id": 8}],
        "confident": [{"image_id": 7}],
        "best": [],
    }
    (tmp_path / "analysis.json").write_text(json.dumps({"threshold": {"threshold": 0.5}, **lists}))
    (tmp_path / "images").mkdir()
    for name in ("4.jpg", "7.jpg", "mine.jpg"):
        (tmp_path / "images" / name).write_bytes(b"")
    before = {"4": {"file": "images/4.jpg", "width": 9, "height": 9}}
    (tmp_path / "details.json").write_text(json.dumps({"images": before}))
    write_report_details(result, annotations, tmp_path, MAX_PIXELS)
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        "7.jpg",
        "7_.jpg",
        "mine.jpg",
    }, "4.jpg was ours"
    details = json.loads((tmp_path / "details.json").read_text())
    (image,) = details["images"].values()
    with Image.open(tmp_path / image["file"]) as kept:
        assert kept.size == (960, 480)
    assert (image["width"], image["height"]) == (1200, 600)
    assert image["marks"] == [
        {"kind": "object", "place": [600, 300, 100, 50], "text": "cat"},
        {"kind": "prediction", "place": [600, 300, 100, 50], "text": "cat 0.90"},
    ]
    half = details["precision_recall"]["IoU .50"]
    assert list(half) == ["all classes", "cat"], "a dog is nowhere"
    assert half["cat"] == [1.0] * 101
