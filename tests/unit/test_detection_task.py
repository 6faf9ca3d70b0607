"""Where annotation files and a checkpoint meet: names decide which label a category has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.config import load_config
from retina_dist.data.categories import Categories
from retina_dist.doctor import examine
from retina_dist.errors import CheckpointError, DataError
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.tasks.detection import DetectionTask


def write_split(root: Path, split: str, ids: dict[str, int]) -> None:
    """Two images, with one box of each category in turn."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir(exist_ok=True)
    images, boxes = [], []
    for number in (1, 2):
        Image.new("RGB", (40, 40), (number, len(split), 0)).save(root / split / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 40, "height": 40})
    for i, category_id in enumerate(ids.values()):
        boxes.append({"id": i + 1, "image_id": i % 2 + 1, "category_id": category_id, "bbox": [i, i, 20, 20]})
    coco = {"images": images, "annotations": boxes, "categories": [{"id": i, "name": n} for n, i in ids.items()]}
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco))


def task(root: Path, train: dict[str, int], val: dict[str, int], *overrides: str) -> DetectionTask:
    write_split(root, "train", train)
    write_split(root, "val", val)
    config = load_config("train", ["data=coco", f"data.root={root}", *overrides])
    return DetectionTask(config, SingleDeviceStrategy("cpu"))


def labels(part: Any) -> list[list[int]]:
    return [row.tolist() for row in part.labels]


FIRST = {"person": 1, "dog": 2, "cat": 3}
ALPHABETICAL = {"person": 3, "dog": 2, "cat": 1}


def test_a_resumed_run_numbers_the_categories_as_its_checkpoint_does(tmp_path: Path) -> None:
    before = task(tmp_path / "a", FIRST, FIRST)
    now = task(tmp_path / "b", ALPHABETICAL, {"person": 7, "dog": 1, "cat": 0})
    assert labels(now.train) != labels(before.train)
    now.take_labels(before.metadata()["categories"], "last.pt")
    assert now.val is not None
    assert labels(now.train) == labels(now.val) == labels(before.train)
    assert (now.train.categories.ids, now.train.categories.names) == ((3, 2, 1), ("person", "dog", "cat"))
    assert now.val.categories.ids == (7, 1, 0)  # what results are written with
    assert now.train.categories.label_of(3) == 0
    now.take_labels(before.metadata()["categories"], "last.pt")
    assert labels(now.train) == labels(before.train)


@pytest.mark.parametrize("other", [{**FIRST, "tree": 4}, {"person": 1, "dog": 2}, {"person": 1, "dog": 2, "Cat": 3}])
def test_other_names_than_the_checkpoints_are_refused(tmp_path: Path, other: dict[str, int]) -> None:
    state = Categories.from_coco([{"id": i, "name": name} for name, i in FIRST.items()]).state()
    now = task(tmp_path, other, other)
    with pytest.raises(
        CheckpointError, match="last.pt was trained on other categories than data=coco has .*resume with"
    ):
        now.take_labels(state, "last.pt")
    with pytest.raises(CheckpointError, match=r"last.pt .*cannot be read"):
        now.take_labels({}, "last.pt")


def test_names_are_mapped_on_resume(tmp_path: Path) -> None:
    now = task(tmp_path, {"Cat": 1, "person": 2, "dog": 3}, FIRST, "data.category_map=[[Cat,cat],[cat,Cat]]")
    now.take_labels(Categories((1, 2, 3), ("person", "dog", "cat")).state(), "last.pt")
    assert labels(now.train) == [[2, 1], [0]]
    assert now.val is not None
    assert labels(now.val) == [[0, 2], [1]]


def test_train_and_doctor_refuse_the_same_names_in_the_same_words(tmp_path: Path) -> None:
    message = r"instances_val.json: 1 category name of it .* 'Dog' \(a label is 'dog'\); rename .*category_map=\[\[Dog,dog\]\]"
    with pytest.raises(DataError, match=message):
        task(tmp_path, FIRST, {"person": 1, "Dog": 2})
    arguments = ["data=coco", f"data.root={tmp_path}"]
    with pytest.raises(DataError, match=message):
        examine(load_config("doctor", arguments))
    mapped = [*arguments, "data.category_map=[[Dog,dog]]"]
    assert DetectionTask(load_config("train", mapped), SingleDeviceStrategy("cpu")).val is not None
    report = examine(load_config("doctor", [*mapped, "images=none"]))
    assert report.objects["val"]["dog"]["all"] == 1
