"""The folder that a tool or a service writes is read by data.root alone: its boxes, classes and
splits; one that is not read is answered with what converts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retina_dist.base.errors import DataError
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split, unread_test
from tests.exports import BOXES, EXPORTS, SIZES, photo, text


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
    assert f"{root} also holds CSV; data.format=csv reads that instead" in part.warnings
    text = unread_test(auto, auto.reader(), validates=False)
    assert text.startswith("67 images, not trained on; data.val_split=test validates on it")
    val = read_split(auto.with_values(val_split="test"), "val")
    assert val is not None
    assert len(val.records) == 67


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
