"""Annotations: read, refused or cleaned."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import tv_tensors

from retina_dist.base.errors import DataError
from retina_dist.data.images import read_image
from retina_dist.detection.coco_metrics import evaluate_rows, installed_evaluators
from retina_dist.detection.doctor import examine
from retina_dist.detection.readers.annotations import Annotations, BoxForm
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.ground_truth import (
    CHUNK,
    CocoContent,
    decode_coco,
    make_ground_truth,
)
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.task.settings import DoctorConfig

COCO: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "a.png", "width": 100, "height": 80},
        {"id": 3, "file_name": "b.png", "width": 50, "height": 60},
    ],
    "annotations": [
        {
            "id": 1,
            "image_id": 3,
            "category_id": 18,
            "bbox": [1, 2, 10, 20],
            "area": 150,
            "iscrowd": 0,
        },
        {
            "id": 2,
            "image_id": 7,
            "category_id": 1,
            "bbox": [5, 5, 4.5, 5],
            "area": 20,
            "iscrowd": 0,
        },
    ],
    "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
}


def load(folder: Path, coco: Any, **options: Any) -> Annotations:
    """`coco` through a file; the images are not looked for unless the test says so."""
    (folder / "a.json").write_text(json.dumps(coco))
    return load_annotations(folder / "a.json", folder, **{"missing_images": "ignore", **options})


def with_boxes(*boxes: list[float], **entry: Any) -> dict[str, Any]:
    """COCO with these boxes, all in the image of 100 x 80 pixels."""
    annotations = [
        {"id": i, "image_id": 7, "category_id": 1, "bbox": b, **entry}
        for i, b in enumerate(boxes, 1)
    ]
    return {**COCO, "annotations": annotations}


def changed(section: str, **values: Any) -> dict[str, Any]:
    coco = copy.deepcopy(COCO)
    coco[section][0].update(values)
    return coco


@pytest.mark.parametrize(
    ("info", "licenses", "license", "source"),
    [
        (
            {"url": "http://a", "description": "b"},
            [{"name": "MIT"}, {"name": "CC0"}],
            "MIT, CC0",
            "http://a",
        ),
        ({"description": "pets"}, [], "", "pets"),
        ({"url": "http://" + "a" * 493}, [], "", "http://" + "a" * 493),
        ({"url": "http://" + "a" * 494}, [], "", "http://" + "a" * 492 + "…"),
        ("none", {"name": "MIT"}, "", ""),
        ({"url": None}, ["MIT", {"id": 1}], "", ""),
        ({"url": "", "description": None}, [{"name": None}, {"name": ""}, {"id": 3}], "", ""),
    ],
)
def test_a_json_states_its_license_and_source(
    info: Any, licenses: Any, license: str, source: str
) -> None:
    content = {**COCO, "info": info, "licenses": licenses}
    for form in (content, decode_coco(json.dumps(content).encode())):
        truth, _ = make_ground_truth(form, "x.json")
        assert truth.origin == {"license": license, "source": source}


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
    assert found.boxes[0].tolist() == [
        [10, 10, 30, 30],
        [90, 70, 100, 80],
        [0, 0, 100, 80],
        [0, 0, 100, 80],
    ]
    assert found.dropped == {"not finite": 2, "of zero or negative size": 2, "outside the image": 4}
    assert "; 2 boxes of zero or negative size (evaluated, not trained on)" in found.describe()
    assert found.clipped == 3
    assert len(found.coco["annotations"]) == len(
        boxes
    )  # the evaluator judges by what the file says
    assert found.coco["annotations"][8]["bbox"] == [90, 70, 20, 20]


@pytest.mark.parametrize("evaluator", installed_evaluators())
def test_values_that_evaluators_fail_on_or_leave_out_in_silence(tmp_path: Path, evaluator: str):
    """A perfect detector has AP 1 whatever `iscrowd` and `area` say of a sound box."""
    areas = [{"area": area} for area in (-1, math.nan, math.inf, 2e10)]
    for value in ({"iscrowd": 0.0}, {"iscrowd": False}, *areas):
        found = load(tmp_path, with_boxes([10, 10, 20, 20], [50, 10, 20.5, 10], **value))
        assert [
            (type(a["iscrowd"]), a["iscrowd"], a["area"]) for a in found.coco["annotations"]
        ] == [
            (int, 0, 400),
            (int, 0, 205),
        ]
        area = value.get("area", 0)
        text = f"2 areas that no metric can use (annotation 1: {area:g}, annotation 2: {area:g})"
        assert found.warnings == (
            [f"{tmp_path}/a.json: {text}; width x height is taken instead"]
            if "area" in value
            else []
        )
        rows = np.array(
            [[7, 10, 10, 20, 20, 0.9, 1], [7, 50, 10, 20.5, 10, 0.8, 1]], dtype=np.float64
        )
        assert evaluate_rows(found.coco, rows, evaluator=evaluator).stats["AP"] == pytest.approx(1)
    for box in (
        [10, 10, -5, 20],
        [10, 10, math.inf, 20],
        [10, 10, math.nan, 20],
    ):  # missed by any detector
        found = load(tmp_path, with_boxes([10, 10, 20, 20], box))
        assert found.coco["annotations"][1]["area"] == 0
        assert evaluate_rows(found.coco, rows[:1], evaluator=evaluator).stats[
            "AR100"
        ] == pytest.approx(0.5)


def test_an_annotation_may_have_the_id_zero(tmp_path: Path):
    """Evaluators mark a detection with the id it matched, and 0 is none of them."""
    coco = copy.deepcopy(COCO)
    coco["annotations"][1]["id"] = 0
    entries = load(tmp_path, coco).coco["annotations"]
    rows = np.array([[a["image_id"], *a["bbox"], 0.9, a["category_id"]] for a in entries])
    assert ([a["id"] for a in entries], evaluate_rows(coco, rows).stats["AR100"]) == ([1, 0], 1)


def test_missing_images(tmp_path: Path):
    Image.new("RGB", (50, 60)).save(tmp_path / "b.png")
    with pytest.raises(
        DataError, match=r"1 of 2 images are not in .*: a.png; .*data.missing_images=skip"
    ):
        load(tmp_path, COCO, missing_images="error")
    (tmp_path / "b.png").rename(tmp_path / "b.jpg")
    with pytest.raises(
        DataError,
        match=r"2 of 2 .*; name their folder with data.train_images=.* copy them there, give images and",
    ):
        load(tmp_path, COCO, missing_images="error")
    photos = {**COCO, "images": [{**each, "file_name": "c.HEIC"} for each in COCO["images"]]}
    with pytest.raises(DataError, match=r"\.HEIC is not read: convert them to \.jpg beside them\."):
        load(tmp_path, photos, missing_images="error")
    (tmp_path / "b.jpg").rename(tmp_path / "b.png")
    found = load(tmp_path, COCO, missing_images="skip")
    assert [r.image_id for r in found.records] == [3]
    assert found.boxes[0].tolist() == [[1, 2, 11, 22]]
    assert [image["id"] for image in found.coco["images"]] == [
        3
    ]  # a missing image does not count as missed objects
    assert [entry["image_id"] for entry in found.coco["annotations"]] == [3]
    assert "1 of 2 images are not in" in found.warnings[0]
    rows = np.array([[3, 1, 2, 10, 20, 0.9, 18]], dtype=np.float64)
    assert evaluate_rows(found.coco, rows).stats["AP"] == pytest.approx(1)
    assert load(tmp_path, COCO, missing_images="ignore").warnings == []


def test_sizes_come_from_the_images_where_the_file_has_none(tmp_path: Path):
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
    (tmp_path / "b.png").write_text("no image")
    ignored = load(tmp_path, coco)
    assert [(r.width, r.height) for r in ignored.records] == [(0, 0), (0, 0)]  # nobody looked
    assert [boxes.tolist() for boxes in ignored.boxes] == [[[5, 5, 9.5, 10]], [[1, 2, 11, 22]]]
    with pytest.raises(
        DataError,
        match="image 3 has no size in its annotations, and .*b.png is not a readable image",
    ):
        load(tmp_path, coco, missing_images="error")


@pytest.mark.parametrize(
    ("coco", "message"),
    [
        ({}, "has no list 'images'"),
        (
            {"images": [], "annotations": [{"caption": "A dog."}]},
            "has no list 'categories'; give COCO's",
        ),
        ({**COCO, "images": COCO["images"][:1] * 2}, "id 7 stands 2 times in 'images'"),
        (changed("images", id="x7"), r"images\[0\].id .id x7. is 'x7': expected `int`"),
        (changed("images", id=-7), "an entry of 'images' has id -7, not a whole number"),
        (changed("images", height=0), "image 7 has height 0, not a number of pixels"),
        (changed("annotations", iscrowd=2), "annotation 1 has iscrowd 2, not 0 or 1"),
        (
            changed("images", file_name="../a.png"),
            "image 7 has file_name '../a.png', which is outside",
        ),
        (changed("annotations", image_id=4), "annotation 1 is of image 4, which is not listed"),
        (
            changed("annotations", category_id=2),
            "of category 2, which is not listed .1 of 2 annotations.; correct",
        ),
        (
            changed("annotations", bbox=[1, 2, "wide", 4]),
            r"annotations\[0\].bbox\[2\] .* is 'wide'",
        ),
        (
            changed("annotations", bbox=[1, 2, 3]),
            r"annotations\[0\].bbox .*length 4, got 3; give bbox as \[x, y, width, height\]",
        ),
        (
            changed("annotations", image_id="a.png"),
            "; give the id of one of the images as image_id",
        ),
        (changed("categories", name=None), "; give the class as name"),
        (
            changed("categories", name="a\x1b[2Jb"),
            "category 18 has no name without control characters",
        ),
        (changed("images", height="\x1b[31m"), r"images\[0\].height .id 7. is '\\x1b\[31m'"),
    ],
)
def test_errors_name_file_and_entry(tmp_path: Path, coco: Any, message: str):
    with pytest.raises(DataError, match=f"a.json.*{message}"):
        load(tmp_path, coco)


@pytest.mark.parametrize(
    ("coco", "place"),
    [
        (changed("images", id="7"), r"images\[0\].id .id 7. is '7': expected `int`, got `str`"),
        (changed("images", width=100.0), r"images\[0\].width .id 7. is 100.0"),
    ],
)
def test_numbers_in_another_type_are_taken_and_said(tmp_path: Path, coco: Any, place: str):
    found = load(tmp_path, coco)
    assert found.coco == load(tmp_path, COCO).coco
    (warning,) = found.warnings
    assert re.search(f"a.json: {place}.*read as numbers", warning)


def many_objects(count: int, spread: int) -> dict[str, Any]:
    """`count` objects on seven images, whose ids are `spread` apart."""
    images = []
    for i in range(7):
        images.append({"id": 3 + i * spread, "file_name": f"{i}.png", "width": 90, "height": 80})
    annotations = []
    for i in range(count):
        entry = {"id": i + 1, "image_id": images[i % 7]["id"], "category_id": 5 + i % 2}
        annotations.append(entry | {"bbox": [i % 30, 1.5, 7, 9], "area": 60.5, "iscrowd": 0})
    categories = [{"id": 5, "name": "cat"}, {"id": 6, "name": "dog"}]
    return {"images": images, "annotations": annotations, "categories": categories}


@pytest.mark.parametrize("spread", [1, 10**9])
@pytest.mark.parametrize("count", [0, 1, CHUNK, CHUNK + 1])
def test_a_file_of_many_objects_is_read_as_its_dictionary(count: int, spread: int) -> None:
    """Objects are decoded in chunks; ids far apart are searched for, others are in a table."""
    coco = many_objects(count, spread)
    content = decode_coco(json.dumps(coco).encode())
    assert isinstance(content, CocoContent)
    truth, warnings = make_ground_truth(content, "a.json")
    assert not warnings
    assert truth.to_coco() == coco
    assert make_ground_truth(coco, "a.json")[0].to_coco() == coco
    assert truth.image_rows.tolist() == [i % 7 for i in range(count)]
    part = truth.of_images({coco["images"][2]["id"]})
    assert len(part.images) == 1
    assert not part.image_rows.any()
    assert part.ids.tolist() == list(range(3, count + 1, 7))


def test_content_without_ids_stays_as_it_is() -> None:
    coco = many_objects(3, 1)
    for entry in coco["annotations"]:
        del entry["id"]
    content = decode_coco(json.dumps(coco).encode())
    assert isinstance(content, CocoContent)
    before = content.objects.copy()
    assert make_ground_truth(content, "a.json")[0].ids.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(content.objects, before)


def test_areas_that_are_all_zero_are_replaced(tmp_path: Path):
    """Some labelling services write them; with them no object would be small, medium or large."""
    coco = copy.deepcopy(COCO)
    for entry in coco["annotations"]:
        entry["area"] = 0
    found = load(tmp_path, coco)
    boxes = [entry["bbox"] for entry in coco["annotations"]]
    assert found.truth.areas.tolist() == [width * height for _, _, width, height in boxes]
    assert found.warnings[0].endswith("every area is 0; width x height is taken instead")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' + b"1" * 5000 + b"}"]
)
def test_files_that_are_not_json(tmp_path: Path, content: bytes):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match="a.json cannot be read as JSON"):
        load_annotations(tmp_path / "a.json", tmp_path)


def test_names_decide_between_files(tmp_path: Path):
    """The same classes under the ids of an alphabetical export."""
    train = Categories((1, 18), ("person", "dog"))
    other = copy.deepcopy(COCO)
    for entry in [*other["categories"], *other["annotations"]]:
        key = "id" if "name" in entry else "category_id"
        entry[key] = {18: 1, 1: 2}[entry[key]]
    found, expected = (load(tmp_path, coco, categories=train) for coco in (other, COCO))
    assert (
        [labels.tolist() for labels in found.labels]
        == [labels.tolist() for labels in expected.labels]
        == [[0], [1]]
    )
    assert found.categories.ids == (2, 1)
    assert (
        "a.json gives other ids to the same category names; the names decide" in found.warnings[0]
    )
    assert found.coco == other  # the metric sees the file as it is


OBJECTS = [[60, 40, 30, 20], [10, 10, 30, 40], [50, 30, 40, 40], [2, 60, 20, 15], [70, 5, 20, 70]]


def corners_of(box: list[float]) -> list[float]:
    return [box[0], box[1], box[0] + box[2], box[1] + box[3]]


CORNERS = list(map(corners_of, OBJECTS))
AS_CORNERS = "boxes leave .* two corners.*; set data.box_format=xyxy"
AS_SIDES = "boxes leave .* x, y, width, height; set data.box_format=xywh"


@pytest.mark.parametrize(
    ("boxes", "form", "message"),
    [
        (OBJECTS, None, None),
        (CORNERS, "xyxy", None),
        (CORNERS, "xywh", None),  # said, so believed
        (CORNERS, None, f"4 of 5 {AS_CORNERS}"),
        (OBJECTS, "xyxy", f"4 of 5 {AS_SIDES}"),
        (
            [[x / 100 for x in box] for box in OBJECTS],
            None,
            "no box is larger than one pixel; multiply shares",
        ),
        (
            [[5, 5, 10, 10], [50, 40, 90, 75]] * 6,
            None,
            f"6 of 12 {AS_CORNERS}",
        ),  # half of them happen to stay inside
        (
            [],
            None,
            "no box is annotated; give the right annotations",
        ),
        (
            [[x + w / 2, y + h / 2, w, h] for x, y, w, h in OBJECTS * 4],
            None,
            r"\d+ of 20 .* x, y is the centre of a box",
        ),
        (
            [[*box[:2], box[2] + 60, box[3]] for box in OBJECTS],
            None,
            None,
        ),  # sloppy, but no other reading fits better
        (CORNERS[:3], None, None),  # too few to judge
        ([[x + w / 2, y + h / 2, w, h] for x, y, w, h in OBJECTS * 3], None, None),
        ([[5, 5, 10, 10]] * 4, None, None),  # which would fit with x and y swapped, too
        ([[5, 5, 10, 10]] * 9 + [[50, 40, 90, 75]], None, None),  # one of ten may leave its image
    ],
)
def test_boxes_in_another_form_are_an_error(
    tmp_path: Path, boxes: Any, form: str | None, message: str | None
):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (100, 80)).save(tmp_path / name)
    (tmp_path / "train.json").write_text(json.dumps(with_boxes(*boxes)))
    files = {"train_annotations": str(tmp_path / "train.json"), "train_images": str(tmp_path)}
    config = DetectionData(name="mine", **files, box_format=form)
    if message:
        with pytest.raises(DataError, match=f"train.json: train: {message}"):
            read_split(config, "train")
        report = examine(DoctorConfig(data=config, images="none")).text()
        assert re.search("ERRORS.*" + message.split(";")[0], report, re.S)
    else:
        read = read_split(config, "train")
        assert [entry["bbox"] for entry in read.coco["annotations"]] == (
            OBJECTS if form == "xyxy" else boxes
        )
        assert "but fit if" not in "".join(read.warnings)


def test_boxes_of_a_dataset_in_another_form() -> None:
    def own(boxes: torch.Tensor, form: str | None) -> TorchDatasetConfig:
        items = [(torch.zeros(3, 80, 100, dtype=torch.uint8), boxes, [0] * 5)]
        return TorchDatasetConfig(train=items, categories=["cat"], box_format=form, name="own")

    said = own(torch.tensor(OBJECTS), "xywh")
    by_torchvision = own(
        tv_tensors.BoundingBoxes(OBJECTS, format="XYWH", canvas_size=(80, 100)), None
    )
    for data in (said, by_torchvision, own(torch.tensor(CORNERS), None)):
        assert read_split(data, "train").boxes[0].tolist() == CORNERS
    said.box_format = None
    with pytest.raises(DataError, match=f"train dataset: train: 4 of 5 {AS_SIDES}"):
        read_split(said, "train")


NUMBERS = st.floats(-50, 150) | st.floats() | st.integers(-10, 120)
SIDES = st.integers(1, 100)


@st.composite
def annotation_files(draw: st.DrawFn) -> dict[str, Any]:
    """COCO dicts that are right in form: ids with gaps, in any order; boxes of any numbers."""
    ids = st.lists(st.integers(0, 2**53), unique=True, max_size=4)
    images = [
        {"id": i, "file_name": f"{i}.png", "width": draw(SIDES), "height": draw(SIDES)}
        for i in draw(ids)
    ]
    categories = [{"id": i, "name": str(i)} for i in draw(ids) or [5]]
    annotations = [
        {
            "id": i,
            "image_id": draw(st.sampled_from(images))["id"],
            "category_id": draw(st.sampled_from(categories))["id"],
            "bbox": [draw(NUMBERS) for _ in range(4)],
            "area": draw(st.floats(0, 1e10) | st.integers(0, 9)),
            "iscrowd": int(draw(st.integers(0, 9)) == 0),
        }
        for i in draw(st.lists(st.integers(1, 2**53), unique=True, max_size=8 if images else 0))
    ]
    return {"images": images, "annotations": annotations, "categories": categories}


def cleaned(box: list[float], width: int, height: int) -> list[np.float32] | None:
    """One box the plain way: corners within the image as float32, None if nothing is left."""
    x, y, w, h = box
    if not all(map(math.isfinite, box)) or w <= 0 or h <= 0:
        return None
    corners = (max(x, 0), max(y, 0), min(x + w, width), min(y + h, height))
    left, top, right, bottom = (np.float32(min(max(c, 0), 2**31)) for c in corners)
    return [left, top, right, bottom] if left < right and top < bottom else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property")


@pytest.mark.filterwarnings("error")
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(coco=annotation_files())
def test_cleaning_is_what_a_loop_over_boxes_does(folder: Path, coco: dict[str, Any]):
    found = load(folder, coco)
    ids = sorted(category["id"] for category in coco["categories"])
    assert [r.image_id for r in found.records] == [image["id"] for image in coco["images"]]
    for record, boxes, labels in zip(found.records, found.boxes, found.labels, strict=True):
        expected = []
        for entry in coco["annotations"]:
            box = cleaned(entry["bbox"], record.width, record.height)
            if entry["image_id"] == record.image_id and not entry["iscrowd"] and box:
                expected.append((box, ids.index(entry["category_id"])))
        assert list(zip(boxes.tolist(), labels.tolist(), strict=True)) == expected
    assert found.num_crowd == sum(a["iscrowd"] for a in coco["annotations"])
    kept = sum(map(len, found.boxes))
    assert kept + found.num_crowd + sum(found.dropped.values()) == len(coco["annotations"])
    assert 0 <= found.clipped <= kept
    assert found.coco["images"] == coco["images"]
    assert found.coco["categories"] == coco["categories"]
    for key, column in (("bbox", "boxes"), ("area", "areas"), ("iscrowd", "crowd")):
        given = np.array([entry[key] for entry in coco["annotations"]])
        written = getattr(found.truth, column)
        if key == "area" and not given.any():
            continue
        np.testing.assert_array_equal(written, given.reshape(written.shape))


@pytest.mark.parametrize(
    ("folder", "split", "images", "boxes", "crowd", "dropped"),
    [
        ("coco-mini", "val", 50, 377, 5, {}),
        ("bccd", "train", 205, 2804, 0, {"of zero or negative size": 1}),
        ("bccd", "val", 87, 1137, 0, {"of zero or negative size": 1}),
        ("keras-retinanet-testdata/coco", "val", 1, 19, 0, {}),
    ],
)
def test_real_sets(
    real_data: Path,
    folder: str,
    split: str,
    images: int,
    boxes: int,
    crowd: int,
    dropped: dict[str, int],
):
    data = DetectionData(name="x", root=str(real_data / folder))
    found = read_split(data, split)
    assert (len(found.records), sum(map(len, found.boxes)), found.num_crowd) == (
        images,
        boxes,
        crowd,
    )
    assert BoxForm(found).fault(split) is None
    assert (found.dropped, found.clipped, found.warnings) == (dropped, 0, [])
    for record, inside in list(zip(found.records, found.boxes, strict=True))[:20]:
        assert read_image(record.path, (record.width, record.height)).shape == (
            3,
            record.height,
            record.width,
        )
        assert (inside >= 0).all()
        assert (inside <= np.tile((record.width, record.height), 2)).all()
        assert (inside[:, :2] < inside[:, 2:]).all()


def test_an_image_with_damaged_boxes_only_is_left_out_where_empty_images_are(
    tmp_path: Path,
) -> None:
    content = with_boxes(*OBJECTS)
    content["images"].append({**content["images"][0], "id": 99})
    content["annotations"].append(
        {**content["annotations"][0], "id": 999, "image_id": 99, "bbox": [10, 10, 0, 20]}
    )
    (tmp_path / "train.json").write_text(json.dumps(content))
    for name in ("a.png", "b.png"):
        Image.new("RGB", (100, 80)).save(tmp_path / name)
    files = {"train_annotations": str(tmp_path / "train.json"), "train_images": str(tmp_path)}
    part = read_split(DetectionData(name="mine", **files, keep_empty_images=False), "train")
    assert part is not None
    assert 99 not in [record.image_id for record in part.records]


def test_names_that_differ_only_in_their_spelling_are_pairs() -> None:
    names = ("dog", "", "-", "Dog ", "hot dog", "hot-dog", "cat", "cat")
    categories = Categories(tuple(range(len(names))), names)
    assert categories.spelt_alike == ["'dog' and 'Dog '", "'hot dog' and 'hot-dog'"]
