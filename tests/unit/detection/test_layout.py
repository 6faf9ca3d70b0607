"""Which format a folder has, and where a split lies below a data set's root."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.detection.readers.formats import find_split, recognise
from retina_dist.errors import DataError


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/val.json", "images/val"),
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
    assert recognise(tmp_path) == "coco"


def test_a_layout_that_is_not_known(tmp_path: Path):
    with pytest.raises(DataError, match="has no val annotations: looked for annotations/instances_val.*FILE"):
        find_split(tmp_path, "val")
    with pytest.raises(DataError, match="has no annotations of boxes: looked for COCO json, .*YOLO, .*FOLDER"):
        recognise(tmp_path)
    with pytest.raises(DataError, match="absent is not a folder"):
        recognise(tmp_path / "absent")


def test_another_format_is_named(tmp_path: Path):
    (tmp_path / "train.csv").touch()
    assert recognise(tmp_path) == "csv"
    with pytest.raises(
        DataError, match="has no val annotations in COCO json: it looks like keras-retinanet CSV; give data=auto"
    ):
        find_split(tmp_path, "val")


@pytest.mark.parametrize(
    ("file", "root", "message"),
    [
        ("photos.zip", "", "it holds photos.zip; unpack them"),
        ("train/cat/a.jpg", "", "a folder for each class; give experiment=finetune_classifier, or "),
        ("annotations/instances_val.json", "annotations", "give the folder above, "),
    ],
)
def test_what_is_no_format_is_named(tmp_path: Path, file: str, root: str, message: str):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(DataError, match=f"has no annotations of boxes: .*{message}"):
        recognise(tmp_path / root)


def test_keypoints_and_captions_are_no_boxes(tmp_path: Path):
    """What lies beside the instances in COCO's own annotation folder."""
    (tmp_path / "annotations").mkdir()
    for kind in ("captions", "person_keypoints"):
        (tmp_path / "annotations" / f"{kind}_val2017.json").touch()
    with pytest.raises(DataError, match="has no val annotations"):
        find_split(tmp_path, "val")
    (tmp_path / "annotations" / "instances_val2017.json").touch()
    assert find_split(tmp_path, "val")[0].name == "instances_val2017.json"
