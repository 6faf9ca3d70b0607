from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.detection.readers.content import Content
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split


def read_csv(annotations: Path, classes: Path, images: Path) -> dict[str, Any]:
    """The COCO dictionary of keras-retinanet's files."""
    files = {"train_annotations": str(annotations), "train_images": str(images)}
    data = DetectionData(name="x", format="csv", classes=str(classes), **files)
    content = data.reader().content("train")
    assert isinstance(content, Content)
    return content.coco


CLASSES = "cow,1\ncat,0\n"


def write(folder: Path, rows: str, classes: str = CLASSES) -> tuple[Path, Path, Path]:
    (folder / "annotations.csv").write_text(rows)
    (folder / "classes.csv").write_text(classes)
    return folder / "annotations.csv", folder / "classes.csv", folder


def test_rows_become_coco(tmp_path: Path):
    rows = "b.jpg,1,2,11,22,cow\na.jpg,,,,,\nb.jpg,0.5,0,2.5,4,cat\n"
    assert read_csv(*write(tmp_path, rows)) == {
        "images": [{"id": 1, "file_name": "b.jpg"}, {"id": 2, "file_name": "a.jpg"}],
        "annotations": [
            {"image_id": 1, "category_id": 1, "bbox": [1, 2, 10, 20], "iscrowd": 0},
            {"image_id": 1, "category_id": 0, "bbox": [0.5, 0, 2, 4], "iscrowd": 0},
        ],
        "categories": [{"id": 1, "name": "cow"}, {"id": 0, "name": "cat"}],
    }


def test_spreadsheet_quirks(tmp_path: Path):
    """A byte order mark, Windows line ends, quotes around a comma, and an empty last line."""
    content = '\ufeff"a,b.jpg",1,2,3,4,cow\r\n\r\n'
    files = write(tmp_path, content)
    files[0].write_bytes(content.encode())
    assert [image["file_name"] for image in read_csv(*files)["images"]] == ["a,b.jpg"]


SOUND = "a.jpg,1,2,3,4,cow\n"
FAULTS = {
    "a row that is too short": (
        SOUND + "a.jpg,1,2,3,4\n",
        CLASSES,
        "annotations.csv:2 has 5 columns, not 6; write path,x1,y1,x2,y2,class",
    ),
    "a coordinate that is missing": (
        SOUND + "a.jpg,1,,3,4,cow\n",
        CLASSES,
        "annotations.csv:2 has the coordinate in pixels '', not a number",
    ),
    "a class that is not listed": (
        SOUND + "a.jpg,1,2,3,4,dog\n",
        CLASSES,
        "annotations.csv:2 has class 'dog', which .*classes.csv does not list",
    ),
    "an infinite coordinate": (
        SOUND + "a.jpg,1,2,1e999,4,cow\n",
        CLASSES,
        "2 has the coordinate in pixels '1e999'",
    ),
    "a class without an index": (SOUND, "cow,0\ncat\n", "classes.csv:2 has 1 columns, not 2"),
    "a header of classes": (
        SOUND,
        "class,index\n",
        "classes.csv:1 has index 'index', not a whole number; write class,0 and no header",
    ),
    "a class that is listed twice": (
        SOUND,
        "cow,0\ncow,1\n",
        "classes.csv:2 gives class 'cow' or index 1 a second time",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_name_file_and_line(tmp_path: Path, fault: str) -> None:
    rows, classes, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        read_csv(*write(tmp_path, rows, classes))


def test_errors_of_the_file(tmp_path: Path):
    annotations, classes, _ = write(tmp_path, "a.jpg,1,2,3,4,cow\n")
    with pytest.raises(
        DataError,
        match=r"absent does not exist; write .* or name it with data\.\*_annotations=FILE",
    ):
        read_csv(tmp_path / "absent", classes, tmp_path)
    annotations.write_bytes(b"a.jpg,\xff\xfe\n")
    with pytest.raises(DataError, match="annotations.csv cannot be read as CSV"):
        read_csv(annotations, classes, tmp_path)


@pytest.mark.parametrize("format", ["auto", "csv"])
def test_columns_with_other_names_are_named_by_the_settings(tmp_path: Path, format: str):
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg")
    (tmp_path / "rows.csv").write_text("photo,kind,lo_x,lo_y,hi_x,hi_y\na.jpg,cow,1,2,11,12\n")
    data = DetectionData(name="x", root=str(tmp_path), format=format)
    with pytest.raises(DataError, match=r"data\.columns|has no images to train on"):
        read_split(data, "train")
    columns = ["file:photo", "class:kind", "x1:lo_x", "y1:lo_y", "x2:hi_x", "y2:hi_y"]
    part = read_split(data.with_values(columns=columns), "train")
    assert part is not None
    assert part.boxes[0].tolist() == [[1, 2, 11, 12]]
    with pytest.raises(ConfigError, match="data.columns has 'fil:photo'; write COLUMN:NAME with"):
        read_split(data.with_values(columns=["fil:photo"]), "train")


def test_real_file_is_the_same_photo_as_the_voc_one(real_data: Path):
    """VOC's pixels count from 1 and include the last, so its dog ends one pixel further."""
    root = real_data / "keras-retinanet-testdata"
    csv = load_annotations(root / "csv" / "annotations.csv", root / "csv", format="csv")
    voc = load_annotations(root / "pascal", root / "pascal", format="voc")
    assert csv.records[0].path.read_bytes() == voc.records[0].path.read_bytes()
    assert (voc.boxes[0][0] - csv.boxes[0][0]).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("header", ["colour", "class"])
def test_a_table_without_classes_is_a_warning(tmp_path: Path, header: str) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    rows = f"file,x1,y1,x2,y2,{header},width,height\na.png,1,2,30,40,object,64,64\n"
    (tmp_path / "train.csv").write_text(rows)
    (tmp_path / "boxes.csv").write_text(rows.replace("a.png", "b.png"))
    Image.new("RGB", (64, 64)).save(tmp_path / "b.png")
    part = read_split(DetectionData(root=str(tmp_path)), "train")
    assert part is not None
    assert part.categories.names == ("object",)
    assert len(part.records) == 2
    assert len(part.warnings) == (header != "class")
    for text in part.warnings:
        assert "every box is of the class object" in text
        assert text.endswith("give data.columns=[class:COLUMN]")
