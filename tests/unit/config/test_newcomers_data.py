"""Folders and files of data as newcomers have them, and the remedy that the answer names."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retina_dist.base.errors import ConfigError, DataError, UserError
from retina_dist.classification.samples import read_samples
from retina_dist.config.compose import load_config
from retina_dist.data.file_checks import check_image
from retina_dist.data.images import find_images
from retina_dist.data.parsing import csv_rows, parse_xml
from retina_dist.data.tree import Tree
from retina_dist.detection import convert
from retina_dist.detection.coco_metrics import read_results
from retina_dist.detection.convert import ConvertConfig
from retina_dist.detection.readers.annotations import repeated_boxes
from retina_dist.detection.readers.formats import tree_of
from retina_dist.detection.readers.recognition import recognise
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split, read_splits
from retina_dist.detection.task import DetectionTask
from retina_dist.strategies.single_device import SingleDeviceStrategy


def test_folders_of_other_splits_are_no_empty_classes(tmp_path: Path) -> None:
    for split in ("training", "testing"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "a.jpg").touch()
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert not [text for text in samples.warnings if "no image in" in text]


def test_a_file_of_annotations_names_the_folder_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("mine/annotations/train.json", "rows/train.csv"):
        folder = file.partition("/")[0]
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
        with pytest.raises(ConfigError, match=f"write data.root={folder}."):
            load_config("train", [file])
        with pytest.raises(DataError, match=f"give data.root={folder}, or data.train_annotations"):
            tree_of(file)


def test_folders_above_classes_are_a_warning(tmp_path: Path) -> None:
    for file in ("train/cat/a.png", "train/dog/a.png", "held_out/cat/a.png", "held_out/dog/a.png"):
        (tmp_path / file).parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / file)
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    said = "folders in held_out repeat the names of other folders; if these are splits"
    assert said in samples.warnings[0]


def test_a_format_that_is_not_there_names_the_one_that_is(tmp_path: Path) -> None:
    _yolo(tmp_path)
    (tmp_path / "val" / "val.txt").touch()
    config = ConvertConfig(root=str(tmp_path), format="coco", output=f"{tmp_path}/a.json")
    with pytest.raises(DataError, match="they are in YOLO.*: give format=yolo"):
        convert.convert(config)
    with pytest.raises(DataError, match=r"they are in YOLO.*: give data\.format=yolo"):
        read_split(DetectionData(root=str(tmp_path), format="coco"), "train")
    config.format = "yolo"
    assert convert.convert(config)["images"]


def test_results_of_predict_are_of_the_images_that_it_names(
    tmp_path: Path, said: list[str]
) -> None:
    """Its numbers count the files, and may be those of other images in the annotations."""
    truth = {
        "images": [{"id": 0, "file_name": "b.jpg"}, {"id": 1, "file_name": "x/a.jpg"}],
        "categories": [{"id": 3}],
    }
    found = {"image_id": 0, "category_id": 3, "bbox": [0, 0, 2, 2], "score": 0.5}
    results = tmp_path / "results.json"

    def image_of(names: list[object], *, of: bytes | None = None) -> float:
        results.write_text(json.dumps([found]))
        digest = hashlib.sha256(of or results.read_bytes()).hexdigest()
        listed = {"info": {"results_sha256": digest}, "images": names, "categories": []}
        (tmp_path / "images.json").write_text(json.dumps(listed))
        return float(read_results(results, truth)[0, 0])

    named: list[object] = [
        {"id": 0, "file_name": "photos/a.jpg"},
        {"id": 1, "file_name": "photos/c.jpg"},
    ]
    assert image_of(named) == 1
    assert not said
    assert image_of(named, of=b"before that they were evaluated anew") == 0
    assert "results.json is not the file that the images.json" in said[0]
    for other in ({"images": named, "categories": []}, named, {}):
        (tmp_path / "images.json").write_text(json.dumps(other))
        assert read_results(results, truth)[0, 0] == 0
    found["image_id"] = 1
    with pytest.raises(DataError, match=r"truth has no image c, as images\.json names image 1;"):
        image_of(named)


def test_converting_writes_json_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out.xml has no ending .json; give FILE.json, since"):
        convert.convert(ConvertConfig(root=str(tmp_path), output="out.xml"))


def _yolo(root: Path, ending: str = ".png", label: str = "0 .5 .5 .2 .2") -> Tree:
    for split in ("train", "val"):
        (root / split).mkdir()
        Image.new("RGB", (64, 64)).save(root / split / f"{split}.png")
        (root / split / f"{split}.png").rename(root / split / f"{split}{ending}")
    (root / "train" / "train.txt").write_text(label)
    (root / "data.yaml").write_text("train: train\nval: val\nnames: [cat]\n")
    return Tree(root)


@pytest.mark.parametrize(
    ("ending", "label", "said"),
    [
        (".png", "0 .5 .5 .2 .2", "no image of val has a label file, such as val/val.txt; add"),
        (".heic", "0 .5 .5 .2 .2", "names 'train' for train, where no image is; .* convert them"),
        (".png", "0 .5 .5 .2 .2 .9 .1 2 .1 .9 1", r"has lines of a box and its keypoints \(1 of 1"),
    ],
)
def test_a_folder_of_yolo_that_lacks_something_says_what(
    ending: str, label: str, said: str, tmp_path: Path
) -> None:
    _yolo(tmp_path, ending, label)
    if said.startswith("has lines"):
        (tmp_path / "val" / "val.txt").touch()
    with pytest.raises(DataError, match=said):
        read_splits(DetectionData(root=str(tmp_path)))


def test_a_folder_within_vocs_names_the_one_above(tmp_path: Path) -> None:
    for file in ("Annotations/a.xml", "JPEGImages/a.jpg"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("<annotation></annotation>")
    with pytest.raises(DataError, match=f"give the folder above, {tmp_path}"):
        recognise(Tree(tmp_path / "JPEGImages"))


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path) -> None:
    (tmp_path / "train.xlsx").touch()
    with pytest.raises(DataError, match="a spreadsheet, .* convert it with its Save As CSV"):
        recognise(Tree(tmp_path))


def test_a_video_is_answered_with_its_frames(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    with pytest.raises(DataError, match=r"is a video; write its frames into a folder"):
        find_images(str(tmp_path / "a.mp4"))


def test_a_json_that_is_nearly_cocos_is_answered(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(
        DataError, match="COCO without categories, which is not read; convert it with its list"
    ):
        recognise(Tree(tmp_path))


# left, top, right, bottom in px of an image of 200 x 100
CORNERS = [[100, 20, 180, 90], [120, 30, 190, 80], [110, 10, 160, 60], [20, 5, 70, 35]]


def _numbers(kind: str, box: list[int]) -> list[float]:
    left, top, right, bottom = box[0] / 200, box[1] / 100, box[2] / 200, box[3] / 100
    if kind == "two corners":
        return [left, top, right, bottom]
    if kind == "upper left corner":
        return [left, top, right - left, bottom - top]
    centre = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    if kind == "swapped":
        return [centre[1] * 0.5, centre[0] * 2, centre[3] * 0.5, centre[2] * 2]
    return centre


@pytest.mark.parametrize("kind", ["two corners", "upper left corner", "swapped", ""])
def test_lines_of_yolo_in_another_form_are_a_warning(kind: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n")
    Image.new("RGB", (200, 100)).save(tmp_path / "a.png")
    lines = [" ".join(["0", *map(str, _numbers(kind, box))]) for box in CORNERS]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    train = read_split(DetectionData(root=str(tmp_path)), "train")
    assert train is not None
    assert [kind] * bool(kind) == [kind for text in train.warnings if kind in text]
    assert len(train.warnings) == bool(kind)


@pytest.mark.parametrize("box", ["0 .5 .5 .2 .2", "0 .5 .5 .3 .3"])
def test_a_val_that_is_train_is_a_warning(box: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n")
    for split, line in {"train": "0 .5 .5 .2 .2", "val": box}.items():
        (tmp_path / split).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / split / "a.png")
        (tmp_path / split / "a.txt").write_text(line)
    config = "train: train\nval: {}\nnames: [cat]\n"
    (tmp_path / "data.yaml").write_text(config.format("train" if box.endswith(".2") else "val"))
    _, val = read_splits(DetectionData(root=str(tmp_path)))
    assert val is not None
    said = "val has the images and boxes of train; name others, or leave it out"
    assert val.warnings == [said] * box.endswith(".2")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("file", ["annotations/train.json", "train.csv", "a.xml"])
def test_a_pointer_of_git_lfs_names_what_replaces_it(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(POINTER)
    with pytest.raises(DataError, match="git lfs pull"):
        recognise(Tree(tmp_path))


def test_a_table_in_another_encoding_names_utf_8(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("filename,class,xmin,ymin,xmax,ymax\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"cannot be read as .*; save it in UTF-8\."):
        list(csv_rows(tmp_path / "train.csv"))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_coco_json_without_categories_is_named(split: str, tmp_path: Path) -> None:
    content: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    for each in ("train", "val"):
        if each != split:
            content["categories"] = [{"id": 1, "name": "cat"}]
        (tmp_path / f"{each}.json").write_text(json.dumps(content))
        content.pop("categories", None)
    with pytest.raises(DataError, match=f"{split}.json has no list 'categories'"):
        read_split(DetectionData(root=str(tmp_path)), split)


def test_a_test_json_without_categories_does_not_stop_a_training(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / split / f"{split}.png")
        images = [{"id": 1, "file_name": f"{split}.png", "width": 64, "height": 64}]
        content: dict[str, list[dict[str, object]]] = {"images": images, "annotations": []}
        if split == "train":
            content["categories"] = [{"id": 1, "name": "cat"}]
            content["annotations"] = [
                {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40]}
            ]
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    data = DetectionData(root=str(tmp_path))
    train = read_split(data, "train")
    assert train is not None
    assert "1 image without annotations: test/test.png" in train.describe()
    with pytest.raises(DataError, match=r"test\.json has no list 'categories'"):
        read_split(data, "test")


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    with pytest.raises(UserError, match=r"a\.json cannot be listed \(.*\); give a folder that you"):
        Tree(tmp_path / "a.json")


def test_what_an_annotation_lacks_or_has_wrong_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    (tmp_path / "a.xml").write_text("<annotation><name>AT&T</name></annotation>")
    with pytest.raises(
        DataError, match=r"a\.xml cannot be .*; restore the file, with &amp; for &\."
    ):
        parse_xml(tmp_path / "a.xml", "annotation")
    box = {"label": "cat", "coordinates": {"xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}}
    content = [{"image": "a.png", "annotations": [box]}]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="image 1 cannot be read as .*; add 'x'."):
        read_split(DetectionData(root=str(tmp_path), format="createml"), "train")
    line = {"file_name": "a.png", "objects": {"bbox": [[1, 2, 30, 40]]}}
    (tmp_path / "metadata.jsonl").write_text(json.dumps(line))
    with pytest.raises(DataError, match="image 1 cannot be read as .*; add 'categories'."):
        read_split(DetectionData(root=str(tmp_path), format="huggingface"), "train")


@pytest.mark.parametrize(
    "name", ["labels/train/A.txt", "notes/train/a.txt", "labels/train/a-1.txt"]
)
def test_labels_under_another_name_are_to_be_renamed(name: str, tmp_path: Path) -> None:
    for file in ("images/train/a.png", name):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "images/train/a.png")
    (tmp_path / name).write_text("0 .5 .5 .2 .2")
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [cat]\n")
    with pytest.raises(DataError, match=f"label file, .*a.txt; rename {name} to it, and"):
        read_splits(DetectionData(root=str(tmp_path)))


def _csv(root: Path, text: str) -> DetectionData:
    for name in "ab":
        Image.new("RGB", (64, 64)).save(root / f"{name}.png")
    (root / "train.csv").write_text(text)
    return DetectionData(root=str(root))


HEADER = "filename,class,xmin,ymin,xmax,ymax\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER, "no images to train on; its CSV names none: copy them there, complete it, or"),
        ("filename,label\na.png,cat\nb.png,dog\n", "for a classifier; give experiment=finetune_cl"),
        ("filename,class,l,t,r,b\na.png,cat,1,2,30,40\n", "the columns of a CSV with data.columns"),
    ],
)
def test_a_table_without_boxes_is_answered(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_split(_csv(tmp_path, text), "train")


@pytest.mark.parametrize("second", ["a.png,cat,1,2,30,40", "a.png,dog,1,2,30,40"])
def test_boxes_that_are_there_twice_are_a_warning(second: str, tmp_path: Path) -> None:
    train = read_split(_csv(tmp_path, f"{HEADER}a.png,cat,1,2,30,40\n{second}\n"), "train")
    assert train is not None
    said = [text for text in train.warnings if "most of 2 boxes are there twice" in text]
    assert len(said) == ("cat" in second)
    truth = replace(train.truth, boxes=np.full((2, 4), np.nan))  # of images without a size
    assert not repeated_boxes(replace(train, truth=truth))


def test_results_and_images_alone_are_no_annotations(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="and no annotations; draw the boxes, as with CVAT"):
        recognise(Tree(tmp_path))
    row = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}
    (tmp_path / "results.json").write_text(json.dumps([row]))
    with pytest.raises(
        DataError, match="a COCO file of results, .*; else give the annotations that"
    ):
        recognise(Tree(tmp_path))


def test_data_in_another_format_than_said_name_what_reads_them(tmp_path: Path) -> None:
    data = _csv(tmp_path, f"{HEADER}a.png,cat,1,2,30,40\n")
    with pytest.raises(DataError, match="they are in CSV: give data.format=csv"):
        read_split(data.with_values(format="coco"), "train")


def test_images_that_are_packed_are_to_be_unpacked(tmp_path: Path) -> None:
    data = _csv(tmp_path, f"{HEADER}c.png,cat,1,2,30,40\n")
    with pytest.raises(DataError, match="; put each image .*, copy them there, .* the same names"):
        read_split(data, "train")
    (tmp_path / "images.zip").touch()
    with pytest.raises(
        DataError, match=r"; unpack images\.zip if they are in it, put .* the same names, or"
    ):
        read_split(DetectionData(root=str(tmp_path)), "train")


def test_classes_that_differ_by_case_alone_are_a_warning(tmp_path: Path) -> None:
    for label in ("Cat", "cat ", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "train" / label / "a.png")
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert samples.warnings == (
        "classes are spelt alike: 'Cat' and 'cat '; rename them if they are one",
    )


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    data = _csv(tmp_path, f"{HEADER}c.png,cat,1,2,30,40\n")
    (tmp_path / "c.png").symlink_to("/absent/c.png")
    with pytest.raises(
        DataError, match=r"c\.png is a link to /absent/c\.png, which is not there: "
    ):
        read_split(data, "train")


@pytest.mark.parametrize(
    ("names", "line", "said"),
    [
        ("0 cat\n1 dog\n", "0 .5 .5 .2 .2", "has numbers before the names; write the names alone"),
        ("cat\ndog\n", "0 .5 .5 -.2 .2\n" * 4, r"no box is left \(4 of zero or negative size\)"),
    ],
)
def test_names_with_numbers_and_negative_sides_are_named(
    names: str, line: str, said: str, tmp_path: Path
) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text(line)
    (tmp_path / "classes.txt").write_text(names)
    with pytest.raises(DataError, match=said):
        read_split(DetectionData(root=str(tmp_path)), "train")


def _coco(root: Path, split: str, ids: list[int], first: int = 1) -> None:
    """COCO json of an image and a box for each id of a category; those are 1, cat and 2, dog."""
    (root / split).mkdir(parents=True)
    images = []
    boxes = []
    for number, category in enumerate(ids, start=first):
        Image.new("RGB", (64, 48), (number, 0, 0)).save(root / split / f"{number}.png")
        name = f"{number}.png"
        images.append({"id": number, "file_name": name, "width": 64, "height": 48})
        box = {"id": number, "image_id": number, "category_id": category}
        boxes.append(box | {"bbox": [number, 2, 20, 10], "area": 200, "iscrowd": 0})
    names = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": images, "annotations": boxes, "categories": names}
    (root / f"{split}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("ids", "said"), [([0, 1], "and the list from 1, so add 1 to each"), ([0, 2], "correct the")]
)
def test_categories_that_count_from_0_are_named(ids: list[int], said: str, tmp_path: Path) -> None:
    _coco(tmp_path, "train", ids)
    with pytest.raises(DataError, match=f"category 0, which is not listed .*; .*{said}"):
        read_split(DetectionData(root=str(tmp_path)), "train")


def test_a_split_under_another_word_is_to_be_renamed(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1, 2])
    _coco(tmp_path, "holdout", [1], first=3)
    data = DetectionData(root=str(tmp_path))
    with pytest.raises(
        DataError, match=r"data\.root=FOLDER, .* merge them, or rename one .*, as val\.json\."
    ):
        read_split(data, "train")
    (tmp_path / "holdout.json").rename(tmp_path / "eval.json")
    train, val = read_splits(data)
    assert (len(train.records), val and len(val.records)) == (2, 1)


@pytest.mark.parametrize(("first", "shared"), [(3, "1 image"), (2, "2 images"), (3, "")])
def test_images_of_val_that_train_has_too_are_a_warning(
    first: int, shared: str, tmp_path: Path
) -> None:
    _coco(tmp_path, "train", [1, 2, 1])
    _coco(tmp_path, "val", [1, 1], first)
    if not shared:  # but of the same name and with the same box
        Image.effect_noise((64, 48), 9).save(tmp_path / "val" / "3.png")
    _, val = read_splits(DetectionData(root=str(tmp_path)))
    assert val is not None
    said = f"train holds {shared} of val, too: {first}.png"
    assert [text.startswith(said) for text in val.warnings] == [True] * bool(shared)


def test_lists_of_vocs_may_name_files(tmp_path: Path) -> None:
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a", "b c", "d.jpg"):
        Image.new("RGB", (64, 64)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        content = f"<annotation><object><name>cat</name>{box}</object></annotation>"
        (tmp_path / "Annotations" / f"{name}.xml").write_text(content)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a.jpg\nb c.jpg\nd.jpg\n")
    train = read_split(DetectionData(root=str(tmp_path)), "train")
    assert train is not None
    assert [record.file_name for record in train.records] == ["a.jpg", "b c.jpg", "d.jpg.jpg"]
    assert list(map(len, train.boxes)) == [1, 1, 1]


def test_what_is_left_out_of_the_plan_has_its_remedy(tmp_path: Path) -> None:
    data = _yolo_config(tmp_path, "images/valid")
    train, val = read_splits(data)
    assert val is None
    remedy = r"images/val/a\.png \(left out; label them, name their folder in data\.yaml, or take"
    assert re.search(remedy, train.describe())
    assert "'images/valid' for val, where no image is; correct or remove it" in train.warnings[0]


def _yolo_config(root: Path, val: str) -> DetectionData:
    for split in ("train", "val"):
        for folder in ("images", "labels"):
            (root / folder / split).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(root / "images" / split / "a.png")
        (root / "labels" / split / "a.txt").write_text("0 .5 .5 .2 .2")
    (root / "data.yaml").write_text(f"train: images/train\nval: {val}\nnames: [cat]\n")
    return DetectionData(root=str(root))


def test_a_table_with_other_columns_is_to_be_headed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "train" / "000bec.jpg")
    table = tmp_path / "train.csv"
    table.write_text("uid,kind\n000bec,boxer\n")
    said = r"or name two columns of train\.csv file and label, and save it as CSV\."
    with pytest.raises(DataError, match=said):
        read_samples(tmp_path, "train")
    table.write_text("file,label\n000bec,boxer\n")
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert samples.classes == ("boxer",)


def test_class_folders_of_two_data_sets_are_named_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("v1/train/cat", "v1/train/dog", "v2/val/cat"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / folder / "a.jpg")
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert samples.form == "a folder for each class", "of one data set"
    (tmp_path / "v2/val").rename(tmp_path / "v2/train")
    monkeypatch.chdir(tmp_path)  # long paths are cut
    samples = read_samples(Path(), "train")
    assert samples is not None
    assert "v1/train/, v2/train/ (data.root=FOLDER takes one)" in samples.form


def test_boxes_given_to_a_classifier_name_the_recipe(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1])
    with pytest.raises(DataError, match="finetune data.root=.* alone, or cut them out for a class"):
        read_samples(tmp_path, "train")


def test_a_data_set_of_the_hub_is_to_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fetch = "or fetch it from the Hugging Face Hub: hf download me/cells --repo-type dataset"
    with pytest.raises(DataError, match=fetch):
        tree_of("me/cells")
    with pytest.raises(DataError, match=fetch):
        read_samples(Path("me/cells"), "train")
    (tmp_path / "me/cell").mkdir(parents=True)
    with pytest.raises(DataError, match="is not a folder; use me/cell.$"):
        tree_of("me/cells")


def test_a_folder_of_another_split_asks_for_the_right_one(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1])
    (tmp_path / "val").mkdir()
    data = DetectionData(
        train_annotations=str(tmp_path / "train.json"),
        train_images=str(tmp_path / "val"),
    )
    with pytest.raises(DataError, match="1 of 1 images .*; name their folder with data.train_im"):
        read_split(data, "train")


@pytest.mark.parametrize(("no", "yes"), [("0", "1"), ("0.0", "1.0")])
def test_a_table_with_a_column_for_each_class_is_read(no: str, yes: str, tmp_path: Path) -> None:
    for name in "ab":
        Image.new("RGB", (32, 32)).save(tmp_path / f"{name}.jpg")
    (tmp_path / "train.csv").write_text(f"image,cat,dog\na,{yes},{no}\nb,{no},{yes}\n")
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert samples.classes == ("cat", "dog")
    assert samples.labels.tolist() == [0, 1]


def test_figures_of_images_in_class_folders_are_no_labels(tmp_path: Path) -> None:
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / folder / f"{folder}.jpg")
    (tmp_path / "sharpness.csv").write_text("filename,sharpness\ncat.jpg,1.0\ndog.jpg,0.7\n")
    samples = read_samples(tmp_path, "train")
    assert samples is not None
    assert samples.form == "a folder for each class"


COCO_OF_A = {
    "images": [{"id": 1, "file_name": "a.png"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 20]}],
    "categories": [{"id": 1, "name": "cat"}],
}


def _changed(key: str, value: object) -> str:
    """COCO's json with another value, or without it."""
    content = {**COCO_OF_A, key: value}
    if value is None:
        del content[key]
    return json.dumps(content)


def _labels(*lines: str) -> dict[str, str]:
    return {"data.yaml": "names: [cat]\ntrain: .\n", "a.png": "", "a.txt": "\n".join(lines)}


BOXES = [
    (30, 5, 40, 20),
    (32, 10, 60, 21),
    (50, 8, 59, 30),
    (26, 20, 60, 31),
    (2, 5, 4, 9),
]  # x1, y1, x2, y2
ROWS = [f"a.png,cat,{x1},{y1},{x2},{y2}" for x1, y1, x2, y2 in BOXES]
SWAPPED = [f"a.png,cat,{x1},{x2},{y1},{y2}" for x1, y1, x2, y2 in BOXES]
CENTRED = [f"a.png,cat,{30 + i},40,9,{9 + i}" for i in range(20)]
SMALL = [[1 + i, 2, 9, 9] for i in range(20)]  # x, y, width, height
LARGE = [[40 + i, 50, 40, 45] for i in range(20)]
BACKGROUND = {"id": 0, "name": "__background__"}


def _of_boxes(boxes: list[list[int]]) -> str:
    """COCO's json of one image of 64 x 64 with these boxes."""
    sized = [{**COCO_OF_A["images"][0], "width": 64, "height": 64}]
    rows = [{"image_id": 1, "category_id": 1, "bbox": box} for box in boxes]
    return json.dumps({**COCO_OF_A, "images": sized, "annotations": rows})


ALONE = {"region_attributes": {}, "shape_attributes": {"name": "rect", **dict.fromkeys("xy", 1)}}
ALONE["shape_attributes"] |= {"width": 9, "height": 9}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        # a list of COCO's that is not there, is not a list, or that other files have
        ({"a.json": _changed("images", None)}, "COCO without images, .*; give its list images"),
        ({"a.json": _changed("annotations", None)}, "give its list annotations, or the file with"),
        ({"a.json": _changed("categories", {"1": "cat"})}, r'with "categories": \[{...}\]'),
        ({"a.json": _changed("images", COCO_OF_A["images"] * 2)}, "its own, also where it is ref"),
        (
            {"a.json": _changed("annotations", [{"image_id": 1, "segments_info": []}])},
            r"or instances_\*\.json for panoptic_\*",
        ),
        (
            {"a.json": json.dumps(COCO_OF_A).replace("}]", "},]"), "val.json": _changed("a", 1)},
            r"remove a comma before \] or }",
        ),
        # formats of others
        ({"a.json": '{"shapes": []}'}, "LabelMe without imagePath, .*; give each file its imageP"),
        (
            {"a.json": '[{"file_name": "", "annotations": []}]'},
            r"Detectron2's dicts, .*\.convert_to_",
        ),
        ({"a.json": '[{"name": "a.png", "labels": []}]'}, "convert it with python -m scalabel"),
        (
            {"metadata.jsonl": '{"file_name": "a.png", "text": ""}'},
            'its boxes, as "objects": {"bbox',
        ),
        ({"_classes.csv": "filename,cat\na.png,1\n"}, "give an export with boxes, as COCO"),
        ({"gt/gt.txt": "1,1,5,5,9,9,1,1,1\n"}, "convert it with datum convert -if mot_seq_gt"),
        ({"train/images/a.png": "", "train/labelTxt/a.txt": "imagesource:GoogleEarth\n"}, "DOTA"),
        (
            {
                "PNGImages/a.png": "",
                "Annotation/a.txt": "# Compatible with PASCAL Annotation Version",
            },
            "PennFudanPed or INRIA, .*; write its boxes as COCO json, or give your own Dataset",
        ),
        ({"train.parquet": "PAR1"}, "a table or a pickle, .*; write its boxes as COCO json"),
        ({"a.json": '{"assets": {}, "tags": []}'}, "datum convert -if vott_json"),
        ({"a.json": '{"item": {}, "annotations": []}'}, "V7 Darwin, .*; give its export as COCO"),
        ({"a.csv": "TRAIN,gs://b/a.png,cat,.1,.2,,,.3,.4,,"}, "write rows of filename,class,xmin"),
        ({"a.odgt": "{}"}, "CrowdHuman, .*; write its boxes as COCO json"),
        (
            {"images/a.png": "", "masks/a.png": ""},
            "draw the boxes, as with CVAT .* of masks, torchvision",
        ),
        (
            {"train/images/a.png": "", "train/masks/a.png": ""},
            "; of masks, torchvision.ops.masks_to_boxes makes boxes",
        ),
        # tables
        ({"a.csv": "a.png,cat,1,2,9,8\n"}, "the columns of a CSV .* as a .csv with a header"),
        ({"a.csv": f'{HEADER}a.png,cat,"1,5",2,9,8\n'}, "'1,5', not a number; write a point for"),
        ({"a.csv": "\n".join([HEADER[:-1], *SWAPPED])}, "fit if they are x1, x2, y1, y2; correct"),
        (
            {"a.csv": "\n".join(["file,class,x,y,w,h", *ROWS])},
            "fit if the sides are x2 and y2; name",
        ),
        (
            {"a.csv": "file,class,x1,y1,x2,y2,split\na.png,cat,1,2,9,8,fold1"},
            "a.csv:2 has 'fold1' as split; write train, val or test",
        ),
        ({"a.csv": "\n".join([HEADER[:-1], *CENTRED])}, "fit if x, y is the centre of a box"),
        # boxes in percent, or of larger images
        ({"a.json": _of_boxes([*SMALL, [1, 2, 9, 32]])}, ""),
        (
            {"a.json": _of_boxes(SMALL)},
            "in the upper left quarter .*; if they are of a smaller size, scale them",
        ),
        (
            {"a.json": _of_boxes(LARGE)},
            "most boxes leave their image; scale them to the size of the image",
        ),
        (
            {"a.json": _of_boxes([[x1, x2, y1, y2] for x1, y1, x2, y2 in BOXES])},
            "are x1, x2, y1, y2",
        ),
        (
            {"a.json": _changed("categories", [*COCO_OF_A["categories"], BACKGROUND])},
            "the class __background__ is learnt like any other; leave it out",
        ),
        # lines of YOLO
        (_labels("cat .5 .5 .2 .2"), "has the class 'cat', not its number; write 0 for cat"),
        (_labels("0, .5, .5, .2, .2"), "has the class '0,', not its number; .* spaces between all"),
        (
            {"a.png": "", "a.txt": "0 .5 .5 .2 .2", "data.yaml": "names: cat, dog\ntrain: .\n"},
            "lacks names, a list, or train; add names",
        ),
        (
            {
                "obj.names": "cat\n",
                "obj.data": "names = obj.names\ntrain = train.txt\n",
                "train.txt": "data/obj/a.png\n",
                "obj/a.txt": "0 .5 .5 .2 .2",
                "obj/b.png": "",
            },
            "no image of train is there, such as data/obj/a.png; copy the images beside their",
        ),
        # names of images
        ({"a.json": _changed("images", [{"id": 1, "file_name": "b.png"}])}, " the same names, "),
        ({"new_a.png": "", "a.json": json.dumps(COCO_OF_A)}, "new_a.png: give the files the names"),
        (
            {"train/a.heic": "", "a.json": json.dumps(COCO_OF_A)},
            r"\.heic is not read: convert them",
        ),
        (
            {"a.json": _changed("images", [{"id": 1, "file_name": "/d/b.png"}])},
            "or copy the images t",
        ),
        (
            {"via.json": json.dumps({"a": {"filename": "a.png", "regions": [ALONE]}})},
            "a.png has a region without an attribute; add one, such as class",
        ),
    ],
)
def test_data_of_other_tools_and_scripts_name_what_to_write(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        file = tmp_path / "mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if name.endswith(".png"):
            Image.new("RGB", (64, 64)).save(file)
    if not [name for name in files if name.endswith(("png", ".heic"))]:
        Image.new("RGB", (64, 64)).save(tmp_path / "mine" / "a.png")
    try:
        train = read_split(DetectionData(root=str(tmp_path / "mine")), "train")
    except DataError as error:
        answer = str(error)
    else:
        assert train is not None
        answer = "\n".join(train.warnings)
    assert re.search(said, answer) if said else answer == ""


def test_a_folder_beside_that_of_the_images_is_told_theirs(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1])
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train.json").rename(tmp_path / "annotations" / "train.json")
    with pytest.raises(DataError, match=r"there is .*train.1\.png: name their folder with data\."):
        read_split(DetectionData(root=str(tmp_path / "annotations")), "train")


def test_crowd_regions_alone_are_named(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1])
    text = (tmp_path / "train.json").read_text()
    (tmp_path / "train.json").write_text(text.replace('"iscrowd": 0', '"iscrowd": 1'))
    with pytest.raises(DataError, match=r"no box is annotated; crowd regions .*: set iscrowd"):
        read_split(DetectionData(root=str(tmp_path)), "train")


def test_lvis_names_images_by_their_url(tmp_path: Path) -> None:
    _coco(tmp_path, "train", [1, 2])
    text = (tmp_path / "train.json").read_text()
    url = '"coco_url": "http://images.cocodataset.org/train/'
    (tmp_path / "train.json").write_text(text.replace('"file_name": "', url))
    train = read_split(DetectionData(root=str(tmp_path)), "train")
    assert train is not None
    assert [Path(str(path)).name for path in train.sources] == ["1.png", "2.png"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["data=csv", "data.columns=[photo:file]"],
            "data.columns has 'photo:file'; write file:photo",
        ),
        (["data.columns=[file=photo]"], r'write "data.columns=\[file:photo\]"'),
        (["data.test_annotations=a.json"], "evaluate checkpoint=RUN annotations=FILE images=FOLD"),
        (["data.split=train"], "train is trained on and val judged; leave it out"),
        (["data.train_annotations=mine/data.yaml"], "or the folder of all with data.root=FOLDER"),
        (
            ["data.root=mine", "data.train_annotations=null", "data.columns=[file:a]"],
            "has no box by data.columns, but photo, kind; name file, class, x1",
        ),
        (["data.root=", "mine"], "since a space follows it; write data.root=mine"),
        (["data.root=", "seed=1"], "as of an unset variable"),
        (["data.root=[a,b]"], "is not a text; write one folder, and merge several into it"),
        (["data.classes=[0,1]"], "to train on some classes, remove the boxes of others"),
        (["data=mine/data.yaml"], "give data=auto data.root=mine, which recognises the format"),
        (["data.train=mine"], "give data.root=FOLDER, whose splits are found, or"),
        (["data.nc=3"], "the data names its classes; leave it out"),
        (["data=coco", "data.train_images=[a,b]"], "write one folder, and merge several into it"),
        (["data=coco", "data.train_annotations=mine/a.csv"], "give data=auto data.format=auto, wh"),
        (["data=coco", "data.train_images=mine/*.jpg"], "give mine, whose images are all found"),
    ],
)
def test_a_setting_of_data_that_says_too_much_is_told_what_to_write(
    overrides: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.yaml").touch()
    (tmp_path / "mine" / "a.csv").write_text("photo,kind\na.png,cat\n")
    (tmp_path / "a.json").write_text(json.dumps(COCO_OF_A))
    with pytest.raises(UserError, match=said):
        _read_train(["data.train_annotations=a.json", *overrides])


def _read_train(overrides: list[str]) -> None:
    read_split(load_config("train", overrides).data, "train")


@pytest.mark.parametrize(("bits", "is_dark"), [(12, True), (16, False)])
def test_photos_of_few_bits_are_found_dark_by_the_doctor_and_at_the_first_step(
    bits: int, is_dark: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = np.full((48, 64), 900, np.uint16)
    pixels[0, 0] = 2**bits - 1  # white
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "a.json").write_text(json.dumps(COCO_OF_A))
    checked = check_image(("a.png", tmp_path / "a.png", None), decode=True, max_pixels=10**6)
    assert checked.is_dark == is_dark
    line = [f"data.root={tmp_path}", "data.hflip=0", "data.min_sizes=[48]", "data.max_size=64"]
    config = load_config("train", ["experiment=small", *line, "data.scale_jitter=[1,1]"])
    task = DetectionTask(config, SingleDeviceStrategy("cpu"))
    task.draw_inputs(task.build_data(), tmp_path)
    assert ("first step are nearly black; store them" in caplog.text) == is_dark


def test_a_label_of_the_background_and_a_misspelt_class_are_in_the_plan(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    names = [{"id": 1, "name": "cat"}, {"id": 2, "name": "cta"}]
    (tmp_path / "a.json").write_text(_changed("categories", names))
    config = load_config(
        "train", ["experiment=small", f"data.root={tmp_path}", "model.num_classes=3"]
    )
    facts = dict(DetectionTask(config, SingleDeviceStrategy("cpu")).facts())
    assert "1 class without a box: cta" in facts["train"]
    assert "leave out model.num_classes=3 if it counts the background" in facts["classes"]


def test_a_json_of_val_without_annotations_leaves_the_plan_asking_for_them(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / split / f"{split}.png")
    named = _changed("images", [{"id": 1, "file_name": "train.png"}])
    (tmp_path / "instances_train.json").write_text(named)
    (tmp_path / "image_info_val.json").write_text(_changed("annotations", None))
    config = load_config("train", ["experiment=small", f"data.root={tmp_path}"])
    facts = dict(DetectionTask(config, SingleDeviceStrategy("cpu")).facts())
    assert "val/val.png (left out; give a file of this format with their boxes" in facts["train"]
    assert "; give val images with labels, or data.val_fraction=0.1" in facts["val"]


@pytest.mark.parametrize("num_readable", [0, 1])
def test_a_first_step_is_drawn_without_the_images_that_cannot_be_read(
    num_readable: int, tmp_path: Path
) -> None:
    for number, name in enumerate("ab"):
        size = (64, 48) if number < num_readable else (32, 24)
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    images = [
        {"id": i, "file_name": f"{n}.png", "width": 64, "height": 48} for i, n in enumerate("ab")
    ]
    boxes = [
        {"id": i + 1, "image_id": i, "category_id": 1, "bbox": [8, 8, 20, 20]} for i in range(2)
    ]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "a.json").write_text(json.dumps(coco))
    line = [f"data.root={tmp_path}", "data.bad_images=skip", "data.batch_size=2"]
    task = DetectionTask(
        load_config("train", ["experiment=small", *line]), SingleDeviceStrategy("cpu")
    )
    task.draw_inputs(task.build_data(), tmp_path)
    assert (tmp_path / "first_batch.jpg").exists() == (num_readable > 0)
