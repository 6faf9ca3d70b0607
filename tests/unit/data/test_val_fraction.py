"""A share of the training images as validation split: the same each time, whole, and only where
there is none.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import retina_dist as rd
from retina_dist.base.errors import DataError
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.model import build_classifier
from retina_dist.classification.task import read_splits
from retina_dist.data.sources import RemoteFile
from retina_dist.data.val_fraction import first_of_same, held_out
from retina_dist.detection.splits import read_split
from retina_dist.strategies.settings import StrategyConfig
from tests.coco_files import split_of, write_coco
from tests.unit.data.test_shards import write


def coco(root: Path, split: str, count: int) -> rd.DetectionData:
    """Images of noise; image i has a box where i is odd, and a crowd region where 5 divides it."""
    (root / split).mkdir(parents=True)
    images, boxes = [], []
    for i in range(1, count + 1):
        Image.new("RGB", (40, 30), (i, 0, 0)).save(root / split / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 40, "height": 30})
        boxes += [(i, 1, [2, 3, 20, 20], kind) for kind in [0] * (i % 2) + [1] * (i % 5 == 0)]
    write_coco(root / "annotations" / f"instances_{split}.json", images, boxes)
    return rd.DetectionData(name="x", root=str(root), val_fraction=0.2)


def names(part: rd.Annotations | None) -> set[str]:
    assert part is not None
    return {record.file_name for record in part.records}


def test_a_hash_of_the_name_decides() -> None:
    many = [held_out(f"{i}.jpg", 0.2) for i in range(5000)]
    assert np.mean(many) == pytest.approx(0.2, abs=0.023)  # four standard deviations
    assert [held_out(f"{i}.jpg", 0.5) for i in range(8)] == [
        False,
        True,
        False,
        False,
        False,
        True,
        True,
        False,
    ]
    assert all(
        held_out(f"{i}.jpg", 0.4) for i in range(5000) if many[i]
    )  # a larger share holds the smaller one


def test_identical_images_stay_on_one_side(tmp_path: Path) -> None:
    data = coco(tmp_path, "train", 40).with_values(val_fraction=0.5)
    for i in range(2, 41, 2):  # each second one is a copy of the one before
        (tmp_path / f"train/{i}.png").write_bytes((tmp_path / f"train/{i - 1}.png").read_bytes())
    train, val = names(read_split(data, "train")), names(read_split(data, "val"))
    assert val == {
        f"{i + k}.png" for i in range(1, 41, 2) for k in (0, 1) if held_out(f"{i}.png", 0.5)
    }
    assert len(train) + len(val) == 40
    assert first_of_same([tmp_path / f"train/{i}.png" for i in (1, 3, 2, 4)]) == [0, 1, 0, 1]


def test_what_cannot_be_read_is_like_no_other_image(tmp_path: Path) -> None:
    """A pipe, a file that is gone, a folder, and what lies behind a URL."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.png").write_bytes(b"one")
    (tmp_path / "b.png").symlink_to("a.png")
    odd = [tmp_path / "pipe", tmp_path / "gone", tmp_path, RemoteFile("memory://x", "y")]
    assert first_of_same([*odd, *odd, tmp_path / "a.png", tmp_path / "b.png"]) == [*range(9), 8]


def test_both_parts_hold_each_image_once_with_its_ground_truth(tmp_path: Path) -> None:
    data = coco(tmp_path, "train", 40)
    train, val = read_split(data, "train"), read_split(data, "val")
    assert train is not None
    assert val is not None
    expected = {f"{i}.png" for i in range(1, 41) if held_out(f"{i}.png", 0.2)}
    assert names(val) == expected
    assert names(train) == {f"{i}.png" for i in range(1, 41)} - expected
    for part in (train, val):
        ids = {record.image_id for record in part.records}
        assert {image["id"] for image in part.coco["images"]} == ids
        assert {entry["image_id"] for entry in part.coco["annotations"]} <= ids
        assert part.num_crowd == sum(i % 5 == 0 for i in ids)
    assert "held out of train by data.val_fraction=0.2" in val.describe()
    small = data.with_values(keep_empty_images=False)
    assert all(record.image_id % 2 for record in read_split(small, "train").records)  # type: ignore[union-attr]
    assert names(read_split(small, "val")) == expected


def test_a_val_split_that_is_there_is_used(tmp_path: Path) -> None:
    coco(tmp_path, "train", 20)
    data = coco(tmp_path, "val", 3)
    assert names(read_split(data, "val")) == {"1.png", "2.png", "3.png"}
    assert len(names(read_split(data, "train"))) == 20


def test_the_plan_says_that_val_fraction_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = coco(tmp_path / "a", "train", 20).with_values(val_fraction=0.2, root=str(tmp_path / "a"))
    trainer = rd.Trainer(
        data=data,
        model=rd.ModelConfig(backbone="resnet18"),
        optimizer=rd.OptimizerConfig(lr=0.1),
        max_duration="1steps",
        dry_run=True,
    )
    trainer.fit()
    assert "has no effect" not in "".join(capsys.readouterr())
    coco(tmp_path / "a", "val", 3)
    trainer.fit()
    said = "".join(capsys.readouterr())
    assert "data.val_fraction=0.2 has no effect: the data have a val split" in said


def test_a_val_csv_that_is_there_is_used(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (40, 30), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "classes.csv").write_text("thing,0\n")
    (tmp_path / "train.csv").write_text("".join(f"{i}.png,2,3,22,23,thing\n" for i in range(4)))
    data = rd.DetectionData(name="x", root=str(tmp_path), val_fraction=0.5)
    assert (
        names(read_split(data, "val"))
        == {f"{i}.png" for i in range(4) if held_out(f"{i}.png", 0.5)}
        == {"0.png"}
    )
    (tmp_path / "val.csv").write_text("1.png,2,3,22,23,thing\n")
    assert names(read_split(data, "val")) == {"1.png"}


def test_a_part_without_an_image_is_an_error(tmp_path: Path) -> None:
    data = coco(tmp_path, "train", 3).with_values(val_fraction=0.001)
    with pytest.raises(
        DataError, match=r"data\.val_fraction=0\.001 of 3 images leaves none for val; give another"
    ):
        read_split(data, "val")
    assert read_split(data.with_values(val_fraction=None), "val") is None


def test_shards_hold_both_parts(tmp_path: Path) -> None:
    data = coco(tmp_path / "set", "train", 30)
    write(tmp_path / "set", tmp_path / "out", "data.val_fraction=0.2")
    for split in ("train", "val"):
        part = split_of(tmp_path / "out", split, format="shards")
        assert names(part) == names(read_split(data, split))
        assert {image["id"] for image in part.coco["images"]} == {r.image_id for r in part.records}


def test_a_damaged_val_split_is_an_error(tmp_path: Path) -> None:
    """Not a reason to hold images of train out."""
    coco(tmp_path / "set", "train", 5), coco(tmp_path / "set", "val", 2)
    write(tmp_path / "set", tmp_path / "out")
    next((tmp_path / "out").glob("val*.json")).write_text("{")
    with pytest.raises(DataError, match="is not an index of shards"):
        split_of(tmp_path / "out", "val", format="shards", val_fraction=0.2)


def test_a_torch_dataset_is_split_too() -> None:
    items = [(np.full((30, 40, 3), i, np.uint8), [[2.0, 3.0, 20.0, 20.0]], [0]) for i in range(30)]
    data = rd.TorchDatasetConfig(train=items, categories=["thing"], val_fraction=0.2)  # type: ignore[arg-type]
    train, val = read_split(data, "train"), read_split(data, "val")
    assert len(names(train)) + len(names(val)) == 30
    assert not names(train) & names(val)


def test_class_folders_are_split_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(40):
        folder = tmp_path / "train" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")
    data = rd.ClassificationData(name="x", root=str(tmp_path), val_fraction=0.25)
    train, val = read_splits(data)
    assert val is not None
    assert set(val.names) == {name for name in {*train.names, *val.names} if held_out(name, 0.25)}
    assert len(train) + len(val) == 40
    assert train.classes == val.classes == ("a", "b")
    assert val.describe().endswith("held out of train by data.val_fraction=0.25")
    # an evaluation judges on the same images
    classifier = TrainedClassifier(
        build_classifier("resnet18", 2), ("a", "b"), image_size=32, short_side=32, arguments={}
    )
    result = classifier.evaluate(
        replace(data, num_workers=0), strategy=StrategyConfig(device="cpu")
    )
    assert result.confusion.sum() == len(val)
    assert f"evaluating on {len(val)} images" in "".join(capsys.readouterr())
    with pytest.raises(DataError, match=r"data\.val_fraction=0\.0001 of 40 images leaves none"):
        read_splits(rd.ClassificationData(name="x", root=str(tmp_path), val_fraction=0.0001))
