"""A data format from outside the package: the same annotations as from COCO, a training, and what a
checkpoint keeps of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retina_dist.config.compose import load_config
from retina_dist.detection.data.synthetic import CATEGORIES, make_shapes
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.run.assemble import train
from tests.plugins.lines_reader import LinesData
from tests.plugins.test_plugins import FOUND


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn data set, in COCO's layout and with the lines of the reader."""
    folder = tmp_path_factory.mktemp("data") / "shapes"
    make_shapes(folder, num_train=6, num_val=2, image_size=64, seed=0)
    for split in ("train", "val"):
        content = json.loads((folder / "annotations" / f"instances_{split}.json").read_text())
        boxes: dict[int, list[list[float]]] = {image["id"]: [] for image in content["images"]}
        for entry in content["annotations"]:
            if not entry["iscrowd"]:
                boxes[entry["image_id"]].append(
                    [list(CATEGORIES).index(entry["category_id"]), *entry["bbox"]]
                )
        lines = [
            {"file": image["file_name"], "boxes": boxes[image["id"]]} for image in content["images"]
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def overrides(root: Path) -> list[str]:
    return [
        FOUND,
        "data=lines",
        f"data.root={root}",
        f"data.class_names=[{','.join(CATEGORIES.values())}]",
    ]


def test_it_reads_what_coco_has(root: Path) -> None:
    config = load_config("train", overrides(root))
    assert isinstance(config.data, LinesData)
    for split in ("train", "val"):
        part, expected = (
            read_split(config.data, split),
            read_split(DetectionData(name="coco", root=str(root)), split),
        )
        assert part is not None
        assert expected is not None
        assert part.categories.names == expected.categories.names
        assert [record.file_name for record in part.records] == [
            record.file_name for record in expected.records
        ]
        assert [boxes.tolist() for boxes in part.boxes] == [
            boxes.tolist() for boxes in expected.boxes
        ]
        assert [labels.tolist() for labels in part.labels] == [
            labels.tolist() for labels in expected.labels
        ]


def test_it_trains(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "data.batch_size=3",
        "data.min_sizes=[64]",
        "data.max_size=64",
        "data.num_workers=0",
        "logging=quiet",
    ]
    small += [
        "trainer.max_duration=2steps",
        "schedule=constant",
        "model.backbone=mobilenet_v3_small",
        "output_dir=run",
    ]
    assert "coco/AP" in train(load_config("train", [*overrides(root), *small]))
