"""Files that no annotation tool writes are answered by one sentence: the file and a remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.base.errors import UserError
from retina_dist.detection.settings import DetectionData, ShapesConfig
from retina_dist.detection.splits import read_split, unread_test


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def error_of(root: Path, **settings: str) -> str:
    """The sentence that reading the training images ends with."""
    with pytest.raises(UserError) as caught:
        read_split(DetectionData(name="mine", root=str(root), **settings), "train")
    text = str(caught.value)
    assert "\n" not in text
    assert "\0" not in text
    assert text.endswith(".")
    assert ";" in text, "a remedy follows"
    assert len(text) < 900
    return text


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("size", "point", "message"),
    [
        ("Infinity", "[1, 2]", "a.json has the image size inf; write a number of pixels"),
        ("NaN", "[1, 2]", "a.json has the image size nan; write a number of pixels"),
        ("40", f"[{HUGE}, 2]", "shape 1 has the coordinate 1000000000000000000…, not a finite"),
        ("40", "[1e999, 2]", "shape 1 has the coordinate inf, not a finite number; correct"),
        ("40", "[null, 2]", "a.json cannot be read as LabelMe's json .*; restore the file"),
        (HUGE, "[1, 2]", "image 1 has width 1000.*, not a number of pixels"),
        ('"wide"', "[1, 2]", "a.json cannot be read as LabelMe's json .*; restore the file"),
    ],
)
def test_numbers_of_labelme_that_are_none(
    tmp_path: Path, size: str, point: str, message: str
) -> None:
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg")
    shape = f'{{"label": "x", "points": [{point}, [9, 9]]}}'
    text = f'{{"shapes": [{shape}], "imagePath": "a.jpg", "imageWidth": {size}, "imageHeight": 20}}'
    write(tmp_path / "a.json", text)
    with pytest.raises(UserError, match=message):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "manifest"])
def test_a_table_without_content_is_named(tmp_path: Path, ending: str, content: str) -> None:
    """In the folder, by its format, and as the file that the settings name for either split."""
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg")
    file = tmp_path / f"labels.{ending}"
    write(file, content)
    said = f"{file} is empty; restore or remove it."
    assert error_of(tmp_path) == said
    form = {"jsonl": "automl", "manifest": "sagemaker"}.get(ending, "csv")
    assert error_of(tmp_path, format=form) == said
    for split in ("train", "val"):
        named = {f"{split}_annotations": str(file)}
        with pytest.raises(UserError, match="is empty; restore or remove it"):
            read_split(DetectionData(name="mine", format=form, **named), split)


def test_json_lines_may_begin_with_an_empty_one(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg")
    box = {"label": "cat", "topX": 0.1, "topY": 0.1, "bottomX": 0.5, "bottomY": 0.5}
    write(tmp_path / "a.jsonl", "\n" + json.dumps({"image_url": "a.jpg", "label": [box]}))
    part = read_split(DetectionData(name="mine", root=str(tmp_path)), "train")
    assert part is not None
    assert len(part.boxes[0]) == 1


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def looped(path: Path) -> None:
    path.symlink_to(path.name)


ODD: list[Callable[[Path], None]] = [dangling, looped, os.mkfifo, Path.mkdir]
FIRST = {
    "voc": "a.xml",
    "labelme": "a.json",
    "coco": "annotations/instances_train.json",
    "csv": "train.csv",
    "openimages": "train-annotations-bbox.csv",
    "yolo": "data.yaml",
    "yolo without a yaml": "classes.txt",
}


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_a_first_annotation_that_is_no_file(
    tmp_path: Path, kind: str, make: Callable[[Path], None]
) -> None:
    place = tmp_path / FIRST[kind]
    place.parent.mkdir(exist_ok=True)
    make(place)
    error_of(tmp_path)


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_a_label_file_that_is_none_is_no_background(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for name in "ab":
        (tmp_path / "images/train").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20)).save(tmp_path / f"images/train/{name}.jpg")
    write(tmp_path / "labels/train/a.txt", "0 .5 .5 .1 .1\n")
    write(tmp_path / "classes.txt", "cat\n")
    make(tmp_path / "labels/train/b.txt")
    assert "b.txt" in error_of(tmp_path)


NAMES = ["n" * 300, "a\0b", "a\nb", "../" * 50 + "x", "/", ".", "\\"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:12])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    write(tmp_path / "yolo/data.yaml", "train: train.txt\nnames: [cat]\n")
    write(tmp_path / "yolo/train.txt", f"{name}\nb.jpg\n")
    error_of(tmp_path / "yolo")
    labelme = {"shapes": [], "imagePath": name}
    write(tmp_path / "labelme/a.json", json.dumps(labelme))
    error_of(tmp_path / "labelme")
    write(
        tmp_path / "openimages/train-annotations-bbox.csv",
        f'ImageID,LabelName,XMin,YMin,XMax,YMax\n"{name}",x,0,0,1,1\n',
    )
    error_of(tmp_path / "openimages")
    entry = {"id": 1, "file_name": name}
    coco = {"images": [entry], "annotations": [], "categories": [{"id": 1, "name": "x"}]}
    write(tmp_path / "coco/annotations/instances_train.json", json.dumps(coco))
    error_of(tmp_path / "coco")
    write(tmp_path / "csv/train.csv", f'"{name}",1,2,3,4,x\n')
    write(tmp_path / "csv/classes.csv", "x,0\n")
    error_of(tmp_path / "csv")


@pytest.mark.parametrize("value", ["names", "train", "path", "nc"])
def test_a_bomb_in_data_yaml_is_refused(tmp_path: Path, value: str) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        levels.append(f"a{level}: &a{level} [{aliases}]")
    settings = {"names": "[cat]", "train": "images", "path": ".", "nc": "1"} | {value: "*a8"}
    lines = [*levels, *(f"{key}: {text}" for key, text in settings.items())]
    write(tmp_path / "data.yaml", "\n".join(lines))
    assert "alias" in error_of(tmp_path)


def test_deep_brackets_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "yolo/data.yaml", f"names: {'[' * 5000}")
    error_of(tmp_path / "yolo")
    write(tmp_path / "coco/annotations/instances_train.json", "[" * 100_000)
    error_of(tmp_path / "coco")


def test_too_many_names_are_said_before_anything_else_is_read(tmp_path: Path) -> None:
    names = ", ".join(f"c{number}" for number in range(20_001))
    (tmp_path / "images").mkdir()
    write(tmp_path / "data.yaml", f"train: images\nnames: [{names}]\n")
    assert "20001 categories are more than a detector's 20000" in error_of(tmp_path)


def test_drawn_shapes_beside_files_are_refused(tmp_path: Path) -> None:
    data = DetectionData(name="x", root="drawn", shapes=ShapesConfig(), train_annotations="a.json")
    with pytest.raises(
        UserError, match=r"train_annotations=a.json is not of the drawn.*add data=auto"
    ):
        data.check()


def test_ids_without_files_do_not_ask_for_every_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train").mkdir()
    rows = "".join(f"im{number},x,0,0,1,1\n" for number in range(500))
    header = "ImageID,LabelName,XMin,YMin,XMax,YMax\n"
    write(tmp_path / "train-annotations-bbox.csv", header + rows)
    asked: list[object] = []
    is_file = os.path.isfile

    def counted(path: str) -> bool:
        asked.append(path)
        return is_file(path)

    monkeypatch.setattr(os.path, "isfile", counted)
    assert "500 of 500 images are not in" in error_of(tmp_path)
    assert len(asked) <= 2 * 500


def coco(path: Path, name: str, **box: object) -> None:
    """A COCO json of one image."""
    image = {"id": 1, "file_name": name, "width": 40, "height": 30}
    first = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], **box}
    categories = [{"id": 1, "name": "cat"}]
    content = {"images": [image], "annotations": [first], "categories": categories}
    write(path, json.dumps(content))


def test_two_test_files_let_the_other_splits_be_read(tmp_path: Path) -> None:
    """As of test-dev and test-challenge, of which no training reads one."""
    for name in ("train", "val", "test_dev", "test_challenge"):
        write(tmp_path / f"images/{name}.jpg")
        coco(tmp_path / f"{name}.json", f"{name}.jpg")
    data = DetectionData(name="given", root=str(tmp_path))
    for split in ("train", "val"):
        part = read_split(data, split)
        assert part is not None
        assert len(part.records) == 1
        assert not part.left_out
    said = unread_test(data, data.reader(), validates=True)
    assert "has two COCO json of test: test_challenge.json and test_dev.json; keep one" in said


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_boxes_below_one_pixel_in_json_that_only_python_reads(tmp_path: Path, mark: str) -> None:
    """With a byte-order mark, or with NaN, which msgspec takes for no JSON."""
    write(tmp_path / "1.jpg")
    coco(tmp_path / "train.json", "1.jpg", bbox=[0.1, 0.1, 0.5, 0.5], area=float("nan"))
    (tmp_path / "train.json").write_text(mark + (tmp_path / "train.json").read_text())
    assert "no box is larger than one pixel" in error_of(tmp_path)


def test_a_link_to_itself_among_images_is_no_image(tmp_path: Path) -> None:
    """It is missing where annotations name it, and harmless where they do not."""
    coco(tmp_path / "train.json", "a.jpg")
    looped(tmp_path / "a.jpg")
    assert "1 of 1 images are not in" in error_of(tmp_path)
    (tmp_path / "a.jpg").unlink()
    write(tmp_path / "real.jpg")
    (tmp_path / "a.jpg").symlink_to("real.jpg")
    looped(tmp_path / "b.jpg")
    part = read_split(DetectionData(name="given", root=str(tmp_path)), "train")
    assert part is not None
    assert len(part.records) == 1


def test_a_damaged_json_of_no_split_is_not_of_the_training(tmp_path: Path) -> None:
    """Such as results that a disk had no room for; a damaged train.json is not passed over."""
    write(tmp_path / "a.jpg")
    coco(tmp_path / "annotations.json", "a.jpg")
    write(tmp_path / "results.json", '[{"image_id": 1, ')
    write(tmp_path / "notes.json")
    part = read_split(DetectionData(name="given", root=str(tmp_path)), "train")
    assert part is not None
    assert len(part.records) == 1
    write(tmp_path / "train.json", "{")
    assert "has two COCO json of train: annotations.json and train.json" in error_of(tmp_path)
