from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retina_dist.base.errors import DataError
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.voc import VOC_CLASSES
from retina_dist.detection.settings import DetectionData

SIZE = "<size><width>100</width><height>80</height><depth>3</depth></size>"


CHALLENGE = "<source><database>The VOC2007 Database</database></source>"


def content_of(root: Path, split: str, **settings: Any) -> Content | None:
    return DetectionData(name="x", format="voc", root=str(root), **settings).reader().content(split)


def read_voc(root: Path, split: str, **settings: Any) -> dict[str, Any]:
    content = content_of(root, split, **settings)
    assert content is not None
    return content.coco


def thing(name: str, corners: tuple[object, ...], difficult: int = 0) -> str:
    tags = "".join(
        f"<{t}>{v}</{t}>" for t, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    )
    inside = f"<name>{name}</name><difficult>{difficult}</difficult><bndbox>{tags}</bndbox>"
    return f"<object>{inside}</object>"


def make(root: Path, splits: dict[str, dict[str, str]]) -> Path:
    """A VOC folder: split -> image name -> what its annotation holds."""
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for split, images in splits.items():
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text(
            "".join(f"{name}\n" for name in images)
        )
        for name, content in images.items():
            xml = f"<annotation><filename>{name}.jpg</filename>{content}</annotation>"
            (root / "Annotations" / f"{name}.xml").write_text(xml)
    return root


def test_corners_of_the_challenge_count_from_one_and_are_both_inside(tmp_path: Path):
    """The box 1, 1, 100, 80 is the whole image of 100 x 80 pixels; 5, 6, 5, 6 is one pixel."""
    content = (
        CHALLENGE
        + SIZE
        + thing("dog", (1, 1, 100, 80))
        + thing("person", (5, 6, 5, 6), difficult=1)
    )
    coco = read_voc(make(tmp_path, {"train": {"b 1": content, "a": SIZE}}), "train")
    assert coco["images"] == [
        {"id": 1, "file_name": "b 1.jpg", "width": 100, "height": 80},
        {"id": 2, "file_name": "a.jpg", "width": 100, "height": 80},
    ]
    assert coco["annotations"] == [
        {"image_id": 1, "category_id": 12, "bbox": [0, 0, 100, 80], "iscrowd": 0},
        {"image_id": 1, "category_id": 15, "bbox": [4, 5, 1, 1], "iscrowd": 1},
    ]
    assert tuple(entry["name"] for entry in coco["categories"]) == VOC_CLASSES


@pytest.mark.parametrize(
    ("database", "offset", "left"),
    [
        ("The VOC2007 Database", None, 4),
        ("Pascal VOC 2012", None, 4),
        ("Unknown", None, 5),
        ("", None, 5),
        ("roboflow.com", None, 5),
        ("Unknown", 1, 4),
        ("The VOC2007 Database", 0, 5),
    ],
)
def test_other_tools_count_from_zero(
    tmp_path: Path, database: str, offset: int | None, left: int
) -> None:
    source = f"<source><database>{database}</database></source>"
    root = make(tmp_path, {"train": {"a": source + SIZE + thing("dog", (5, 6, 50, 60))}})
    box = read_voc(root, "train", voc_offset=offset)["annotations"][0]["bbox"]
    assert box == [left, left + 1, 50 - left, 60 - left - 1]


def test_own_classes_have_the_same_ids_in_every_split(tmp_path: Path):
    splits = {
        "train": {"a": SIZE + thing("zebra", (1, 1, 9, 9)) + thing("car", (1, 1, 9, 9))},
        "val": {"b": SIZE + thing("car", (1, 1, 9, 9))},  # of VOC's twenty classes alone
    }
    root = make(tmp_path, splits)
    for split in splits:
        categories = read_voc(root, split)["categories"]
        assert categories == [{"id": 1, "name": "car"}, {"id": 2, "name": "zebra"}]


def test_impossible_sizes_are_read_from_the_image_instead(tmp_path: Path):
    for width in ("0", "-5", "", "x", "1.5", "9" * 5000):
        content = f"<size><width>{width}</width><height>7</height></size>"
        root = make(tmp_path, {"train": {"a": content}})
        assert "width" not in read_voc(root, "train")["images"][0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (thing("dog", (1, 1, "x", 9)), "a.xml: object 1 has xmax 'x', not a number"),
        ("<object>", "a.xml cannot be read as an annotation"),
    ],
)
def test_errors_name_file_and_object(tmp_path: Path, content: str, message: str):
    with pytest.raises(DataError, match=message):
        read_voc(make(tmp_path, {"train": {"a": content}}), "train")


def test_errors_of_the_folder(tmp_path: Path):
    root = make(tmp_path, {"train": {"a": SIZE}})
    assert content_of(root, "val") is None
    (root / "ImageSets" / "Main" / "train.txt").rename(root / "ImageSets" / "Main" / "trainval.txt")
    with pytest.raises(
        DataError, match="Main has trainval, but none lists images of train; write train.txt"
    ):
        read_voc(root, "train")
    (root / "ImageSets" / "Main" / "trainval.txt").rename(root / "ImageSets" / "Main" / "train.txt")
    (root / "Annotations" / "a.xml").unlink()
    with pytest.raises(
        DataError,
        match="a.xml does not exist; restore the file, or correct or remove a in the lists",
    ):
        read_voc(root, "train")
    (root / "ImageSets" / "Main" / "train.txt").write_text("../../a\n")
    with pytest.raises(
        DataError, match="train.txt lists '../../a', which leaves the Annotations folder"
    ):
        read_voc(root, "train")
