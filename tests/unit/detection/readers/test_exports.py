"""The folder that a tool or a service writes is read by data.root alone: its boxes, classes and
splits; one that is not read is answered with what converts it.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retina_dist.base.errors import DataError
from retina_dist.detection.doctor import examine
from retina_dist.detection.readers import coco as coco_reader
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split, read_splits, unread_test
from retina_dist.task.settings import DoctorConfig
from tests.exports import BOXES, EXPORTS, SIZES, coco, photo, text, yolo


@pytest.mark.parametrize("tool", EXPORTS)
def test_an_export_gives_the_true_boxes(tool: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    splits = EXPORTS[tool](root)
    data = DetectionData(name="mine", root=str(root))
    data.check()
    reader = data.reader()
    labels = None
    for split in ("train", "val", "test"):
        part = read_split(data, split, labels, reader=reader)
        if split not in splits:
            assert part is None, split
            continue
        assert part is not None, split
        labels = labels or part.categories
        assert [record.path.is_file() for record in part.records] == [True] * len(splits[split])
        assert not part.left_out
        assert (part.dropped, part.clipped, part.num_crowd) == ({}, 0, 0)
        assert not [text for text in part.warnings if "also holds" in text]
        found = {}
        for record, boxes, numbers in zip(part.records, part.boxes, part.labels, strict=True):
            with record.path.open("rb"):
                name = record.path.stem.removesuffix("_jpg.rf.0")[-1]
            assert record.size == SIZES[name]
            names = [part.categories.names[number] for number in numbers]
            found[name] = sorted(zip(names, boxes.tolist(), strict=True))
        assert sorted(found) == sorted(splits[split])
        for name, boxes in found.items():
            truth = sorted((label, list(corners)) for label, *corners in BOXES[name])
            assert [label for label, _ in boxes] == [label for label, _ in truth]
            given = [corners for _, corners in boxes]
            assert np.allclose(given, [corners for _, corners in truth], atol=1e-3)


@pytest.mark.parametrize("tool", EXPORTS)
def test_an_export_is_validated_on_its_test_split(tool: str, tmp_path: Path) -> None:
    """With the labels of train; `val_fraction` holds out nothing where the split is there."""
    root = tmp_path / "data"
    root.mkdir()
    splits = EXPORTS[tool](root)
    data = DetectionData(name="mine", root=str(root), val_split="test")
    if "test" not in splits:
        with pytest.raises(DataError, match="no such split, data.val_split=test; leave it out"):
            read_splits(data)
        return
    for fraction in (None, 0.5):
        train, val = read_splits(data.with_values(val_fraction=fraction))
        assert val is not None
        assert len(train.records) == len(splits["train"])
        assert len(val.records) == len(splits["test"])
        assert val.held_out is None
        assert val.categories.names == train.categories.names


@pytest.mark.parametrize("split", ["train", "val"])
def test_shares_in_coco_json_are_read_as_the_settings_say(split: str, tmp_path: Path) -> None:
    """Whatever the URLs of a datastore tell, also of images that are held out."""
    EXPORTS["Azure ML data labelling, COCO"](tmp_path)
    data = DetectionData(name="mine", root=str(tmp_path), val_fraction=0.5)
    with pytest.raises(DataError, match="no box is larger than one pixel; multiply shares"):
        read_split(data.with_values(box_format="xywh"), split)
    content = json.loads((tmp_path / "coco.json").read_text())
    for image in content["images"]:
        del image["coco_url"]
    text(tmp_path / "coco.json", json.dumps(content))
    with pytest.raises(DataError, match="no box is larger than one pixel; multiply shares"):
        read_split(data, split)
    part = read_split(data.with_values(box_format="xywh_shares"), split)
    assert part is not None
    for record, boxes in zip(part.records, part.boxes, strict=True):
        truth = [corners for _, *corners in BOXES[record.path.stem]]
        assert np.allclose(boxes, truth, atol=1e-3)


def test_real_photos_have_the_same_boxes_in_xml_and_in_csv(real_data: Path) -> None:
    root = real_data / "cards"
    boxes = {}
    for format in ("voc", "csv"):
        data = DetectionData(name="cards", root=str(root), format=format)
        for split, count in (("train", 296), ("test", 67)):
            part = read_split(data, split)
            assert part is not None
            assert len(part.records) == count
            assert not part.left_out
            names = part.categories.names
            for record, corners, labels in zip(part.records, part.boxes, part.labels, strict=True):
                pairs = zip(labels, corners.tolist(), strict=True)
                key = (split, Path(record.file_name).stem.lower())
                boxes.setdefault(key, []).append(sorted((names[i], *box) for i, box in pairs))
    assert all(len(both) == 2 and both[0] == both[1] for both in boxes.values())
    auto = DetectionData(name="cards", root=str(root))
    part = read_split(auto, "train")
    assert part is not None
    other = "data.format=csv reads that instead, and data.root=FOLDER one folder alone"
    assert f"{root} also holds CSV; {other}" in part.warnings
    text = unread_test(auto, auto.reader(), validates=False)
    assert text.startswith("67 images, not trained on; data.val_split=test validates on it")
    val = read_split(auto.with_values(val_split="test"), "val")
    assert val is not None
    assert len(val.records) == 67


def test_a_class_without_a_box_and_images_without_annotations_are_said(tmp_path: Path) -> None:
    """In the plan's line and in the doctor's, and of a linked folder once."""
    EXPORTS["CVAT COCO 1.0"](tmp_path)
    for name in "xyz":
        photo(tmp_path / f"images/default/{name}.jpg", "a")
    (tmp_path / "again").symlink_to(tmp_path / "images")
    content = json.loads((tmp_path / "annotations/instances_default.json").read_text())
    content["categories"].append({"id": 3, "name": "cow"})
    text(tmp_path / "annotations/instances_default.json", json.dumps(content))
    data = DetectionData(name="mine", root=str(tmp_path))
    part = read_split(data, "train")
    assert part is not None
    said = part.describe()
    assert "; 3 images without annotations: images/default/x.jpg" in said
    assert "; 1 class without a box: cow" in said
    config = DoctorConfig()
    config.data = data
    found = {(one.where, one.what): one.count for one in examine(config).findings}
    assert found["train", "images without annotations"] == 3
    assert found["train", "categories without a box"] == 1


def test_names_of_the_other_splits_are_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none for a split that was read before."""
    EXPORTS["CVAT COCO 1.0, subsets"](tmp_path)
    decoded: list[str] = []
    read = coco_reader.read_coco
    monkeypatch.setattr(
        coco_reader, "read_coco", lambda path: decoded.append(path.stem) or read(path)
    )
    data = DetectionData(name="mine", root=str(tmp_path))
    reader = data.reader()
    for split in ("train", "val", "test"):
        part = read_split(data, split, reader=reader)
        assert part is not None
        assert not part.left_out
    assert Counter(decoded) == {
        "instances_Train": 1,
        "instances_Validation": 2,
        "instances_Test": 2,
    }


def test_names_of_a_data_yaml_are_texts(tmp_path: Path) -> None:
    EXPORTS["ultralytics YOLO"](tmp_path)
    names = "names:\n  0: no\n  1: 010\n  2: 12:30\n  3: 1.10\n  4: null\n"
    text(tmp_path / "pets.yaml", f"train: images/train\n{names}")
    part = read_split(DetectionData(name="mine", root=str(tmp_path)), "train")
    assert part is not None
    assert part.categories.names == ("no", "010", "12:30", "1.10", "null")


@pytest.mark.parametrize(
    ("first", "second"), [("cats/data.yaml", "dogs/data.yaml"), ("a.yaml", "b.yml")]
)
def test_two_data_sets_of_yolo_are_refused(first: str, second: str, tmp_path: Path) -> None:
    """Else one would be read, and the images of the other be called images without annotations."""
    for file in (first, second):
        folder = Path(file).stem
        photo((tmp_path / file).parent / f"{folder}/images/a.jpg", "a")
        yolo((tmp_path / file).parent / f"{folder}/labels/a.txt", "a")
        text(tmp_path / file, f"train: {folder}/images\nnames: [cat, dog]\n")
    data = DetectionData(name="mine", root=str(tmp_path))
    with pytest.raises(DataError, match=f"has two data sets of YOLO: {first} and {second}; keep"):
        read_split(data, "train")
    if "/" in first:  # each is a data set of its own
        data.root = str((tmp_path / first).parent)
    else:
        (tmp_path / second).unlink()
    part = read_split(data, "train")
    assert part is not None
    assert len(part.records) == 1


def test_lines_of_keypoints_without_their_shape_are_refused(tmp_path: Path) -> None:
    EXPORTS["ultralytics YOLO"](tmp_path)
    for split in ("train", "val", "test"):
        for file in (tmp_path / f"labels/{split}").iterdir():
            file.write_text("0 0.5 0.5 0.4 0.4 0.45 0.45 2 0.55 0.55 1\n")
    data = DetectionData(name="mine", root=str(tmp_path))
    with pytest.raises(DataError, match="lines of a box and its keypoints .*; add kpt_shape:"):
        read_split(data, "train")
    with (tmp_path / "pets.yaml").open("a") as file:
        file.write("kpt_shape: [2, 3]\n")
    assert read_split(data, "train") is not None


def test_two_images_that_are_as_likely_are_an_error(tmp_path: Path) -> None:
    EXPORTS["COCO of another machine"](tmp_path)
    photo(tmp_path / "old/raw/a.jpg", "a")
    photo(tmp_path / "older/raw/a.jpg", "a")
    (tmp_path / "photos/raw/a.jpg").unlink()
    with pytest.raises(DataError, match=r"may be old(er)?/raw/a.jpg or old(er)?/raw/a.jpg; remove"):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


def test_composed_and_decomposed_names_are_the_same(tmp_path: Path) -> None:
    content = coco(["a"])
    content["images"][0]["file_name"] = unicodedata.normalize("NFC", "é.jpg")
    photo(tmp_path / unicodedata.normalize("NFD", "é.jpg"), "a")
    text(tmp_path / "labels.json", json.dumps(content))
    part = read_split(DetectionData(name="mine", root=str(tmp_path)), "train")
    assert part is not None
    assert part.records[0].path.is_file()


def kitti(root: Path) -> None:
    photo(root / "image_2/000000.png", "a")
    line = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59"
    text(root / "label_2/000000.txt", f"{line}\n")


def wider(root: Path) -> None:
    photo(root / "WIDER_train/images/0--Parade/a.jpg", "a")
    entry = "0--Parade/a.jpg\n1\n4 6 36 24 0 0 0 0 0 0\n"
    text(root / "wider_face_split/wider_face_train_bbx_gt.txt", entry)


def tfrecord(root: Path) -> None:
    (root / "train.tfrecord").write_bytes(b"\x00\x01")


def mapillary(root: Path) -> None:
    photo(root / "training/images/a.jpg", "a")
    content = {"width": 64, "height": 48, "ispano": False, "objects": []}
    text(root / "training/annotations/a.json", json.dumps(content))


def supervisely(root: Path) -> None:
    photo(root / "ds/img/a.jpg", "a")
    content = {"description": "", "tags": [], "size": {"height": 48, "width": 64}, "objects": []}
    text(root / "ds/ann/a.jpg.json", json.dumps(content))
    text(root / "meta.json", json.dumps({"classes": [], "tags": []}))


def datumaro(root: Path) -> None:
    photo(root / "images/default/a.jpg", "a")
    content = {"dm_format_version": "1.0", "info": {}, "categories": {}, "items": []}
    text(root / "annotations/default.json", json.dumps(content))


def fiftyone_own(root: Path) -> None:
    photo(root / "train/data/a.jpg", "a")
    text(root / "train/labels.json", json.dumps({"classes": ["cat"], "labels": {"a": []}}))


def labelbox(root: Path) -> None:
    text(root / "export.ndjson", json.dumps({"data_row": {"id": "x"}, "projects": {}}) + "\n")


def labelbox_old(root: Path) -> None:
    text(root / "export.json", json.dumps([{"ID": "x", "Labeled Data": "u", "Label": {}}]))


REFUSED: dict[Callable[[Path], None], str] = {
    kitti: "looks like KITTI, which is not read; convert it with datum convert -if kitti ",
    wider: "looks like WIDER FACE, .*datum convert -if wider_face ",
    tfrecord: "looks like TFRecord, .*datum convert -if tf_detection_api ",
    mapillary: "looks like Mapillary, .*datum convert -if mapillary_vistas ",
    supervisely: "looks like Supervisely, .*convert it with its own Export to COCO",
    datumaro: "looks like datumaro's json, .*datum convert -if datumaro ",
    fiftyone_own: "looks like FiftyOne's own json, .*export as COCODetectionDataset",
    labelbox: "looks like Labelbox, .*labelformat convert --input-format labelbox",
    labelbox_old: "looks like Labelbox, .*labelformat convert --input-format labelbox",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_format_that_is_not_read_is_answered_with_its_converter(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=REFUSED[make]):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")
