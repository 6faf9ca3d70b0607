"""Annotations, categories and where a split lies."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retina_dist.data.categories import Categories
from retina_dist.data.coco import Annotations, load_annotations
from retina_dist.data.images import read_image
from retina_dist.data.layout import find_split
from retina_dist.errors import CheckpointError, DataError, UserError

COCO: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "a.png", "width": 100, "height": 80},
        {"id": 3, "file_name": "b.png", "width": 50, "height": 60},
    ],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 18, "bbox": [1, 2, 10, 20], "area": 150, "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 1, "bbox": [5, 5, 4.5, 5], "area": 20, "iscrowd": 0},
    ],
    "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
}


def load(folder: Path, coco: Any, **options: Any) -> Annotations:
    """`coco` through a file; the pictures are not looked for unless the test says so."""
    (folder / "a.json").write_text(json.dumps(coco))
    return load_annotations(folder / "a.json", folder, **{"missing_images": "ignore", **options})


def with_boxes(*boxes: list[float], **entry: Any) -> dict[str, Any]:
    """COCO with these boxes, all in the image of 100 x 80 pixels."""
    annotations = [{"id": i, "image_id": 7, "category_id": 1, "bbox": b, **entry} for i, b in enumerate(boxes, 1)]
    return {**COCO, "annotations": annotations}


def changed(section: str, **values: Any) -> dict[str, Any]:
    coco = copy.deepcopy(COCO)
    coco[section][0].update(values)
    return coco


def test_boxes_follow_their_images(tmp_path: Path):
    found = load(tmp_path, COCO)
    assert [(r.image_id, r.path, r.width, r.height) for r in found.records] == [
        (7, tmp_path / "a.png", 100, 80),
        (3, tmp_path / "b.png", 50, 60),
    ]
    assert [boxes.tolist() for boxes in found.boxes] == [[[5, 5, 9.5, 10]], [[1, 2, 11, 22]]]
    assert [labels.tolist() for labels in found.labels] == [[0], [1]]  # person has the smaller id
    assert {boxes.dtype for boxes in found.boxes} == {np.dtype(np.float32)}
    assert {labels.dtype for labels in found.labels} == {np.dtype(np.int64)}
    assert found.coco == COCO
    assert (found.dropped, found.clipped, found.num_crowd, found.warnings) == ({}, 0, 0, [])


@pytest.mark.filterwarnings("error")
def test_boxes_that_cannot_be_learnt_from_are_dropped_and_counted(tmp_path: Path):
    boxes = [
        [10, 10, 20, 20],
        [10, 10, 0, 20],
        [10, 10, 20, -1],
        [100, 10, 20, 20],  # begins where the image ends
        [-30, 10, 20, 20],
        [float("nan"), 10, 20, 20],
        [10, 10, float("inf"), 20],
        [99.99999999, 10, 20, 20],  # what is left of it is nothing in float32
        [90, 70, 20, 20],
        [-5, -5, 200, 200],
        [0, 0, 1e308, 1e308],
        [1e308, 0, 1e308, 5],
    ]
    found = load(tmp_path, with_boxes(*boxes))
    assert found.boxes[0].tolist() == [[10, 10, 30, 30], [90, 70, 100, 80], [0, 0, 100, 80], [0, 0, 100, 80]]
    assert found.dropped == {"not finite": 2, "zero or negative size": 2, "outside the image": 4}
    assert found.clipped == 3
    assert len(found.coco["annotations"]) == len(boxes)  # the evaluator judges by what the file says
    assert found.coco["annotations"][8]["bbox"] == [90, 70, 20, 20]


def test_crowd_regions_are_judged_by_and_not_trained_on(tmp_path: Path):
    found = load(tmp_path, with_boxes([10, 10, 20, 20], [10, 10, 0, 0], iscrowd=1))
    assert found.num_crowd == 2
    assert found.dropped == {}  # a crowd region is no dropped box
    assert sum(map(len, found.boxes)) == 0
    assert len(found.coco["annotations"]) == 2


def test_what_coco_may_leave_out_is_filled_in(tmp_path: Path):
    coco = {**COCO, "annotations": [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 3, x]} for x in (2, 5)]}
    assert [(a["id"], a["area"], a["iscrowd"]) for a in load(tmp_path, coco).coco["annotations"]] == [
        (1, 6, 0),
        (2, 15, 0),
    ]


def test_annotation_ids_leave_out_zero(tmp_path: Path):
    """Evaluators mark a detection with the id it matched, 0 for none: with id 0 a perfect detector misses a box."""
    coco = copy.deepcopy(COCO)
    coco["annotations"][1]["id"] = 0
    assert [a["id"] for a in load(tmp_path, coco).coco["annotations"]] == [1, 2]
    coco["annotations"][1]["id"] = 9
    assert [a["id"] for a in load(tmp_path, coco).coco["annotations"]] == [1, 9]


def test_images_without_boxes(tmp_path: Path):
    coco = {**COCO, "annotations": COCO["annotations"][:1]}
    assert [len(boxes) for boxes in load(tmp_path, coco).boxes] == [0, 1]
    found = load(tmp_path, coco, keep_empty=False)
    assert [r.image_id for r in found.records] == [3]
    assert [len(boxes) for boxes in found.boxes] == [1]
    assert found.labels[0].tolist() == [1]
    assert "1 images without boxes" in found.warnings[0]


def test_no_image_and_no_annotation(tmp_path: Path):
    assert [b.shape for b in load(tmp_path, {**COCO, "annotations": []}).boxes] == [(0, 4), (0, 4)]
    assert load(tmp_path, {**COCO, "images": [], "annotations": []}).records == ()


def test_missing_pictures(tmp_path: Path):
    Image.new("RGB", (50, 60)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"1 of 2 images are not in .*: a.png; .*data.missing_images=skip"):
        load(tmp_path, COCO, missing_images="error")
    found = load(tmp_path, COCO, missing_images="skip")
    assert [r.image_id for r in found.records] == [3]
    assert found.boxes[0].tolist() == [[1, 2, 11, 22]]
    assert len(found.coco["images"]) == 2  # a picture that was not looked at counts as missed
    assert "1 of 2 images" in found.warnings[0]


def test_sizes_come_from_the_pictures_where_the_file_has_none(tmp_path: Path):
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png")
    turned = Image.new("RGB", (60, 50))
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "b.png", exif=turned.getexif())
    coco = copy.deepcopy(COCO)
    for image in coco["images"]:
        del image["width"], image["height"]
    found = load(tmp_path, coco, missing_images="error")
    assert [(r.width, r.height) for r in found.records] == [(100, 80), (50, 60)]
    assert len(found.warnings) == 1
    (tmp_path / "b.png").write_text("no picture")
    with pytest.raises(DataError, match="image 3 has no size in its annotations, and .*b.png is no readable picture"):
        load(tmp_path, coco, missing_images="error")


@pytest.mark.parametrize(
    ("coco", "message"),
    [
        ([], "holds a JSON list"),
        ({}, "has no list 'images'"),
        ({**COCO, "annotations": {}}, "has no list 'annotations'"),
        ({**COCO, "images": [3]}, "an entry of 'images' is no object"),
        ({**COCO, "categories": []}, "has no category"),
        ({**COCO, "images": COCO["images"][:1] * 2}, "id 7 stands 2 times in 'images'"),
        ({**COCO, "annotations": COCO["annotations"][:1] * 2}, "id 1 stands 2 times in 'annotations'"),
        ({**COCO, "categories": COCO["categories"] * 3}, "stands 3 times in 'categories'"),
        (changed("images", id="7"), "an entry of 'images' has id '7'"),
        (changed("images", id=2**60), "an entry of 'images' has id"),
        (changed("images", file_name=None), "image 7 has no file_name"),
        (changed("images", file_name="../a.png"), "image 7 has file_name '../a.png', which is outside"),
        (changed("images", file_name="x\\..\\..\\a.png"), "which is outside the images folder"),
        (changed("images", file_name="/etc/passwd"), "which is outside the images folder"),
        (changed("images", width=0), "image 7 has width 0"),
        (changed("images", height="80"), "image 7 has height 80"),
        (changed("images", height=10**400), "image 7 has height 1000"),
        (changed("annotations", image_id=4), "annotation 1 is of image 4, which is not listed"),
        (changed("annotations", image_id=[3]), r"annotation 1 is of image \[3\], which is not listed"),
        (changed("annotations", category_id=2), "annotation 1 is of category 2, which is not listed"),
        (changed("annotations", category_id=None), "annotation 1 is of category None, which is not listed"),
        (changed("annotations", bbox=[1, 2, 3]), r"annotation 1 has bbox \[1, 2, 3\], not"),
        (changed("annotations", bbox=[1, 2, "3", 4]), "annotation 1 has bbox"),
        (changed("annotations", bbox=[1, 2, 10**400, 4]), "annotation 1 has bbox"),
        (changed("annotations", area="big"), "annotation 1 has area big"),
        (changed("annotations", iscrowd=2), "annotation 1 has iscrowd 2"),
        (changed("categories", name=5), "category 18 has no name"),
    ],
)
def test_errors_name_file_and_entry(tmp_path: Path, coco: Any, message: str):
    with pytest.raises(DataError, match=f"a.json.*{message}"):
        load(tmp_path, coco)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' + b"1" * 5000 + b"}"])
def test_files_that_are_no_json(tmp_path: Path, content: bytes):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match="a.json is no readable JSON"):
        load_annotations(tmp_path / "a.json", tmp_path)


def test_files_that_are_not_there(tmp_path: Path):
    with pytest.raises(DataError, match="a.json does not exist"):
        load_annotations(tmp_path / "a.json", tmp_path)
    with pytest.raises(DataError, match="data.format=yolo is unknown"):
        load_annotations(tmp_path, tmp_path, format="yolo")  # type: ignore[arg-type]


def test_no_value_of_any_type_ends_in_a_traceback(tmp_path: Path):
    values = [None, True, -1, 0, 1.5, "1", [], [1], {}, 10**20, 10**400, float("nan"), float("inf"), "\0", "../x"]
    for section, entries in COCO.items():
        for key in entries[0]:
            for value in values:
                for mapping in ("contiguous", "category_id"):
                    try:
                        load(tmp_path, changed(section, **{key: value}), label_mapping=mapping)
                    except UserError as error:
                        assert "a.json" in str(error)  # noqa: PT017


def test_contiguous_labels():
    categories = Categories.from_coco(COCO["categories"])
    assert (categories.ids, categories.names, categories.num_classes) == ((1, 18), ("person", "dog"), 2)
    assert [categories.label_of(i) for i in (1, 18)] == [0, 1]
    assert [categories.category_id_of(label) for label in (0, 1)] == [1, 18]
    assert categories.name_of(1) == "dog"
    assert (18 in categories, 2 in categories) == (True, False)
    assert categories.labels_of(np.array([18, 1, 18])).tolist() == [1, 0, 1]


def test_labels_that_are_category_ids():
    categories = Categories.from_coco(COCO["categories"], "category_id")
    assert categories.num_classes == 19
    assert categories.label_of(18) == 18
    assert (categories.names[18], categories.names[2], categories.ids[2]) == ("dog", "", -1)
    assert (2 in categories, -1 in categories) == (False, False)
    with pytest.raises(DataError, match="not 123456789; use contiguous"):
        Categories.from_coco([{"id": 123456789, "name": "a"}], "category_id")


def test_categories_survive_a_checkpoint():
    categories = Categories.from_coco(COCO["categories"], "category_id")
    restored = Categories.from_state(json.loads(json.dumps(categories.state())))
    assert restored == categories
    assert restored.label_of(18) == 18
    assert restored != Categories.from_coco(COCO["categories"])
    for state in ({}, {"ids": [1]}, {"ids": [1, 2], "names": ["a"]}, {"ids": ["x"], "names": ["a"]}):
        with pytest.raises(CheckpointError, match="categories cannot be read"):
            Categories.from_state(state)


def test_validation_takes_the_labels_of_training(tmp_path: Path):
    train = Categories((1, 2, 18), ("person", "bicycle", "dog"))
    found = load(tmp_path, COCO, categories=train)
    assert found.categories is train
    assert [labels.tolist() for labels in found.labels] == [[0], [2]]
    with pytest.raises(DataError, match=r"a.json: category 18 \(dog\) is not among the 1"):
        load(tmp_path, COCO, categories=Categories((1,), ("person",)))
    renamed = load(tmp_path, COCO, categories=Categories((1, 18), ("human", "dog")))
    assert "1 is person, not human" in renamed.warnings[0]


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


def test_of_several_annotation_files_the_plainest_wins(tmp_path: Path):
    (tmp_path / "annotations").mkdir()
    for name in ("instances_train2014_part.json", "instances_train2017.json", "instances_val2017.json"):
        (tmp_path / "annotations" / name).touch()
    assert find_split(tmp_path, "train")[0].name == "instances_train2017.json"


def test_a_layout_that_is_not_known(tmp_path: Path):
    with pytest.raises(DataError, match="has no val annotations: looked for annotations/instances_val.*FILE"):
        find_split(tmp_path, "val")
    with pytest.raises(DataError, match="absent is no folder"):
        find_split(tmp_path / "absent", "val")


@pytest.mark.parametrize(
    ("folder", "split", "images", "boxes", "crowd", "dropped"),
    [
        ("coco-mini", "train", 128, 929, 10, {}),
        ("coco-mini", "val", 50, 377, 5, {}),
        ("bccd", "train", 205, 2804, 0, {"zero or negative size": 1}),
        ("bccd", "val", 87, 1137, 0, {"zero or negative size": 1}),
        ("keras-retinanet-testdata/coco", "train", 1, 4, 0, {}),
        ("keras-retinanet-testdata/coco", "val", 1, 19, 0, {}),
    ],
)
def test_real_sets(
    real_data: Path, folder: str, split: str, images: int, boxes: int, crowd: int, dropped: dict[str, int]
):
    found = load_annotations(*find_split(real_data / folder, split))
    assert (len(found.records), sum(map(len, found.boxes)), found.num_crowd) == (images, boxes, crowd)
    assert (found.dropped, found.clipped, found.warnings) == (dropped, 0, [])
    for record, inside in list(zip(found.records, found.boxes, strict=True))[:20]:
        assert read_image(record.path, (record.width, record.height)).shape == (3, record.height, record.width)
        assert (inside >= 0).all()
        assert (inside <= np.tile((record.width, record.height), 2)).all()
        assert (inside[:, :2] < inside[:, 2:]).all()


def test_zero_height_boxes_of_coco_itself(tmp_path: Path, real_data: Path):
    content = json.loads((real_data / "degenerate-boxes" / "known_degenerate.json").read_text())
    record, second = content["records"][0], content["second_box_only"]
    coco = {
        "images": [
            {"id": record["image_id"], "file_name": "a.jpg", "width": 640, "height": 480},
            {"id": 550395, "file_name": "b.jpg", "width": 640, "height": 429},
        ],
        "annotations": [record, {**record, "id": 919, "image_id": 550395, "bbox": second["bbox"]}],
        "categories": [{"id": record["category_id"], "name": "hot dog"}],
    }
    found = load(tmp_path, coco)
    assert found.dropped == {"zero or negative size": 2}
    assert [len(boxes) for boxes in found.boxes] == [0, 0]
    assert found.coco["annotations"] == coco["annotations"]
