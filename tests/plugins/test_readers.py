"""A data format from outside the package: the same annotations as from COCO, a training, and what a checkpoint keeps of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retina_dist.config.compose import load_config
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.run.assemble import train
from tests.plugins.test_plugins import FOUND
from tests.plugins.yolo_reader import YoloData


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn data set, in COCO's layout below coco/ and in YOLO's below yolo/."""
    folder = tmp_path_factory.mktemp("data")
    make_shapes(folder / "coco", num_train=6, num_val=2, image_size=64, seed=0)
    for split in ("train", "val"):
        content = json.loads((folder / "coco" / "annotations" / f"instances_{split}.json").read_text())
        numbers = {category["id"]: i for i, category in enumerate(content["categories"])}
        images, labels = (folder / "yolo" / kind / split for kind in ("images", "labels"))
        shutil.copytree(folder / "coco" / split, images)
        labels.mkdir(parents=True)
        for image in content["images"]:
            width, height = Image.open(images / image["file_name"]).size
            lines = []
            entries = [a for a in content["annotations"] if a["image_id"] == image["id"] and not a["iscrowd"]]
            for entry in entries:
                x, y, w, h = entry["bbox"]
                shares = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
                lines.append(" ".join(map(repr, (numbers[entry["category_id"]], *shares))))
            (labels / Path(image["file_name"]).with_suffix(".txt")).write_text("\n".join(lines))
        names = [category["name"] for category in content["categories"]]
        (folder / "yolo" / "names").write_text(",".join(names))
    return folder


def overrides(root: Path) -> list[str]:
    names = (root / "yolo" / "names").read_text()
    return [FOUND, "data=yolo", f"data.root={root / 'yolo'}", f"data.class_names=[{names}]"]


def test_it_reads_what_coco_has(root: Path) -> None:
    config = load_config("train", overrides(root))
    assert isinstance(config.data, YoloData)
    for split in ("train", "val"):
        found = read_split(config.data, split)
        expected = read_split(DetectionData(name="coco", root=str(root / "coco")), split)
        assert found is not None
        assert expected is not None
        assert found.categories.names == expected.categories.names
        by_name = {r.file_name: i for i, r in enumerate(expected.records)}
        for record, boxes, labels in zip(found.records, found.boxes, found.labels, strict=True):
            other = by_name[record.file_name]
            assert np.allclose(boxes, expected.boxes[other], atol=1e-3)
            assert labels.tolist() == expected.labels[other].tolist()


def test_it_trains(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["data.batch_size=3", "data.min_sizes=[64]", "data.max_size=64", "data.num_workers=0", "logging=quiet"]
    small += ["trainer.max_duration=2steps", "schedule=constant", "model.backbone=mobilenet_v3_small", "output_dir=run"]
    assert "coco/AP" in train(load_config("train", [*overrides(root), *small]))
