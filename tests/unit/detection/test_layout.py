"""Where a split lies below a data set's root."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.detection.splits import find_split
from retina_dist.errors import DataError


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/instances_val.json", "val"),
        ("annotations/instances_val.json", "images"),
        ("annotations/instances_val.json", "."),
        ("annotations/val.json", "images/val"),
        ("val.json", "val"),
        ("val.json", "."),
        ("valid/_annotations.coco.json", "valid"),
        ("val/_annotations.coco.json", "val"),
    ],
)
def test_layouts(tmp_path: Path, annotations: str, images: str):
    (tmp_path / images).mkdir(parents=True, exist_ok=True)
    (tmp_path / "train").mkdir()
    (tmp_path / annotations).parent.mkdir(exist_ok=True)
    (tmp_path / annotations).touch()
    assert find_split(tmp_path, "val") == (tmp_path / annotations, tmp_path / images)


def test_a_layout_that_is_not_known(tmp_path: Path):
    with pytest.raises(DataError, match="has no val annotations: looked for annotations/instances_val.*FILE"):
        find_split(tmp_path, "val")
    with pytest.raises(DataError, match="absent is not a folder"):
        find_split(tmp_path / "absent", "val")


@pytest.mark.parametrize(
    ("file", "root", "message"),
    [
        ("labels/val/a.txt", "", r"labels/\*/\*.txt is YOLO's format, which is not read; convert it to COCO json"),
        ("Annotations/a.xml", "", "looks like Pascal VOC; give data=voc"),
        ("val.csv", "", "it holds val.csv; give data=csv"),
        ("train/cat/a.jpg", "", "a folder for each class; give task=classification data=folders"),
        ("annotations/instances_val.json", "annotations", "give the folder above, "),
        ("annotations/train.json", "", "; to train without one, name data.train_annotations and data.train_images"),
    ],
)
def test_another_layout_is_named(tmp_path: Path, file: str, root: str, message: str):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(DataError, match=f"has no val annotations: .*{message}"):
        find_split(tmp_path / root, "val")


def test_keypoints_and_captions_are_no_boxes(tmp_path: Path):
    """What lies beside the instances in COCO's own annotation folder."""
    (tmp_path / "annotations").mkdir()
    for kind in ("captions", "person_keypoints"):
        (tmp_path / "annotations" / f"{kind}_val2017.json").touch()
    with pytest.raises(DataError, match="has no val annotations"):
        find_split(tmp_path, "val")
    (tmp_path / "annotations" / "instances_val2017.json").touch()
    assert find_split(tmp_path, "val")[0].name == "instances_val2017.json"


@pytest.mark.parametrize(
    ("folder", "split", "annotations", "images"),
    [
        ("coco-mini", "train", "annotations/instances_train2017.json", "train2017"),
        ("coco-mini", "val", "annotations/instances_val2017.json", "val2017"),
        ("bccd", "val", "annotations/instances_val.json", "val"),
        ("keras-retinanet-testdata/coco", "val", "annotations/instances_val2017.json", "images/val2017"),
    ],
)
def test_real_layouts(real_data: Path, folder: str, split: str, annotations: str, images: str):
    root = real_data / folder
    assert find_split(root, split) == (root / annotations, root / images)
