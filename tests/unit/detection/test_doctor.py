"""A data set with known defects: each is found, once; and coverage against every anchor."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import box_iou

from retina_dist import doctor
from retina_dist.base.errors import ConfigError, DataError
from retina_dist.config.compose import load_config
from retina_dist.data.buckets import make_buckets, resized_size
from retina_dist.data.images import ORIENTATION_TAG
from retina_dist.detection.anchor_coverage import anchor_coverage
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.doctor import examine
from retina_dist.detection.model.retinanet import anchor_generator, build_retinanet
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.task import DetectionTask
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task.settings import DoctorConfig
from tests.coco_files import write_coco

ANCHOR_SIZES = [[8, 10], [16, 20], [32, 40], [64, 80], [128, 160]]
RATIOS = [0.5, 1.0, 2.0]
CELLS = [level.numpy() for level in anchor_generator(ANCHOR_SIZES, RATIOS).cell_anchors]


def arguments(root: Path) -> list[str]:
    return ["data=coco", f"data.root={root}", "data.min_sizes=[128]", "data.max_size=192"]


def settings(root: Path, *more: str) -> DoctorConfig:
    return load_config("doctor", [*arguments(root), *more])


NAMES = {1: "thing", 2: "rare", 4: "never"}


def defective(root: Path) -> None:
    """Images of 60 x 40, each sound or with one defect."""
    rng = np.random.default_rng(0)
    (root / "train").mkdir(parents=True)
    (root / "val").mkdir()

    def make_image(name: str, size: tuple[int, int] = (60, 40), orientation: int = 1) -> Path:
        path = root / name
        exif = Image.Exif()
        exif[ORIENTATION_TAG] = orientation
        pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, **({"exif": exif} if orientation != 1 else {}))
        return path

    a, b = make_image("train/a.png"), make_image("train/b.png")
    (root / "train/twin.png").write_bytes(a.read_bytes())
    (root / "val/leak.png").write_bytes(b.read_bytes())
    cut = make_image("train/cut.png")
    cut.write_bytes(cut.read_bytes()[:-2000])
    make_image("train/wrong.png", size=(50, 40))
    make_image("train/empty.png")
    make_image("train/upright.jpg", size=(40, 60), orientation=6)  # shown as 60 x 40
    make_image("train/stored.jpg", orientation=6)  # shown as 40 x 60, annotated as stored
    make_image("val/v.png")

    names = [
        "a.png",
        "b.png",
        "twin.png",
        "cut.png",
        "wrong.png",
        "gone.png",
        "empty.png",
        "upright.jpg",
        "stored.jpg",
    ]
    train = [
        {"id": i, "file_name": n, "width": 60, "height": 40} for i, n in enumerate(names, start=1)
    ]
    boxes = [(i, 1, [5, 5, 20, 20], 0) for i in range(1, 10) if i != 7]
    wrong = (
        [5, 5, 0, 10],
        [5, 5, 10, -1],
        [100, 100, 5, 5],
        [1, math.nan, 5, 5],
        [50.5, 30, 30, 30],
    )
    boxes += [
        (1, 2, [30, 5, 20, 20], 0),
        *((2, 1, box, 0) for box in wrong),
        (2, 1, [0, 0, 99, 30], 1),
    ]
    write_coco(root / "annotations/instances_train.json", train, boxes, NAMES)
    val = [
        {"id": i, "file_name": f"{n}.png", "width": 60, "height": 40}
        for i, n in enumerate(["v", "leak"], start=1)
    ]
    write_coco(root / "annotations/instances_val.json", val, [(1, 1, [5, 5, 20, 20], 0)], NAMES)


def test_each_defect_is_found_once(tmp_path: Path) -> None:
    defective(tmp_path)
    report = examine(settings(tmp_path))
    found = {(f.level, f.where, f.what): (f.count, f.examples) for f in report.findings}
    assert len(found) == len(report.findings)
    remedies = {each.what: each.remedy for each in report.findings}
    assert "but evaluated, and always missed" in remedies["boxes of zero or negative size"]
    count, (reason,) = found.pop(("error", "train", "images unreadable"))
    assert count == 1
    assert reason.startswith("cut.png: ")
    in_b = "in b.png of 60 x 40"
    sizes = (f"annotation 10: [5, 5, 0, 10] {in_b}", f"annotation 11: [5, 5, 10, -1] {in_b}")
    assert found == {
        ("error", "train", "images missing"): (1, (str(tmp_path / "train/gone.png"),)),
        ("error", "train", "images of another size"): (
            1,
            ("wrong.png is 50 x 40, annotated 60 x 40",),
        ),
        ("error", "val", "images that are in train too"): (1, ("leak.png = b.png of train",)),
        ("warning", "train", "images that occur more than once"): (1, ("a.png = twin.png",)),
        ("warning", "train", "boxes not finite"): (1, (f"annotation 13: [1, nan, 5, 5] {in_b}",)),
        ("warning", "train", "boxes of zero or negative size"): (2, sizes),
        ("warning", "train", "boxes outside the image"): (
            1,
            (f"annotation 12: [100, 100, 5, 5] {in_b}",),
        ),
        ("warning", "train", "categories without a box"): (1, ("never",)),
        ("warning", "val", "categories of train without a box"): (1, ("rare",)),
        ("info", "train", "boxes reaching out of the image"): (
            1,
            (f"annotation 14: [50.5, 30, 30, 30] {in_b}",),
        ),
        ("info", "train", "crowd regions"): (1, ()),
        ("info", "train", "images without boxes"): (1, ("empty.png",)),
        ("info", "val", "images without boxes"): (1, ("leak.png",)),
    }
    assert report.details["objects"]["train"]["thing"] == {
        "small": 9,
        "medium": 0,
        "large": 0,
        "all": 9,
    }
    assert report.details["objects"]["val"]["rare"]["all"] == 0


def test_exit_codes_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    defective(tmp_path / "bad")
    make_shapes(tmp_path / "good", num_train=30, num_val=20, image_size=64)

    def run(*overrides: str) -> None:
        monkeypatch.setattr(sys, "argv", ["doctor", *overrides])
        doctor.main()

    file = tmp_path / "report.json"
    with pytest.raises(SystemExit) as exit_:
        run(*arguments(tmp_path / "bad"), f"output={file}")
    assert exit_.value.code == 1
    content = json.loads(file.read_text())
    assert (content["errors"], content["warnings"], content["info"]) == (4, 6, 4)
    assert len(content["findings"]) == 14
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good", "report.json"]
    printed = capsys.readouterr().out
    assert "ERRORS\n  train  images missing: 1\n" in printed
    assert printed.endswith("4 errors, 6 warnings: fix the errors before you train.\n")

    run(
        *arguments(tmp_path / "good"), "experiment=shapes", "data.shapes=null"
    )  # as a training would be told
    assert "ERRORS" not in capsys.readouterr().out

    (tmp_path / "bad/annotations/instances_val.json").write_text("{")
    for wrong in ([], ["images=all"], [f"output={tmp_path}/no/report.json"]):
        with pytest.raises(SystemExit) as exit_:
            run(*arguments(tmp_path / "bad"), *wrong)
        assert exit_.value.code == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_it_takes_what_a_training_takes() -> None:
    """The same arguments give the same data and model, or it would examine another thing."""
    for name in ("bccd", "detectron2_1x"):
        overrides = [
            f"experiment={name}",
            "data.root=/data",
            "trainer.max_duration=3epochs",
            "seed=4",
        ]
        ours, theirs = load_config("doctor", overrides), load_config("train", overrides)
        assert (ours.data, ours.model) == (theirs.data, theirs.model)
    assert load_config("doctor", []).model == load_config("train", []).model


@pytest.mark.parametrize("left_out", ["cluster=true", "images=none", "sheets=sheets"])
def test_a_checkpoint_leaves_nothing_else_to_examine(left_out: str) -> None:
    with pytest.raises(
        ConfigError,
        match="checkpoint=run ranks labels alone; leave cluster, images and sheets out.",
    ):
        load_config("doctor", ["checkpoint=run", left_out])
    with pytest.raises(
        ConfigError, match="data.root=/data is not read with checkpoint=run.*; write root=/data."
    ):
        load_config("doctor", ["checkpoint=run", "data.root=/data"])
    with pytest.raises(
        ConfigError, match="root=/data is read with checkpoint only; write data.root=/data."
    ):
        load_config("doctor", ["root=/data"])


def test_images_that_the_settings_leave_out_cause_no_error(tmp_path: Path) -> None:
    defective(tmp_path)
    report = examine(settings(tmp_path, "data.missing_images=skip", "data.bad_images=skip"))
    assert [f.what for f in report.findings if f.level == "error"] == [
        "images that are in train too"
    ]
    left_out = {f.what for f in report.findings if f.remedy == "left out of training"}
    assert left_out == {"images missing", "images unreadable", "images of another size"}


def test_class_names_that_differ_in_their_spelling_are_named(tmp_path: Path) -> None:
    Image.new("RGB", (128, 128)).save(tmp_path / "a.png")
    images = [{"id": 1, "file_name": "a.png", "width": 128, "height": 128}]
    boxes = [(1, label, [20, 20, 40, 40], 0) for label in (1, 2, 3)]
    write_coco(tmp_path / "train.json", images, boxes, {1: "dog", 2: "cat", 3: "Dog "})
    found = {f.what: f for f in examine(settings(tmp_path)).findings}
    assert found["categories spelt alike"].examples == ("'dog' and 'Dog '",)


def test_missing_test_images_have_a_remedy_that_is_a_setting(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.png", "width": 128, "height": 128}]
    for split in ("train", "test"):
        write_coco(tmp_path / f"{split}.json", images, [(1, 1, [20, 20, 40, 40], 0)], NAMES)
    found = {f.where: f.remedy for f in examine(settings(tmp_path)).findings if "miss" in f.what}
    assert "data.train_images" in found["test"]
    assert "data.test_images" not in found["test"]


def test_crowded_images_are_named_where_a_metric_is_computed(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.png", "width": 128, "height": 128}]
    boxes = [(1, 1, [i, 20, 20, 20], 0) for i in range(101)]
    for split in ("train", "val"):
        write_coco(tmp_path / f"{split}.json", images, [*boxes, (1, 2, [1, 1, 9, 9], 0)], NAMES)
    files = [f"data.{split}_annotations={tmp_path}/{split}.json" for split in ("train", "val")]
    report = examine(load_config("doctor", ["data=auto", *files]))
    assert report.facts[0] == f"COCO json in {tmp_path}/train.json"
    (found,) = [each for each in report.findings if "more than 100 boxes" in each.what]
    assert (found.where, found.examples) == ("val", ("a.png (101)",))
    assert found.remedy.endswith("evaluate max_detections=101 counts them too")


def test_less_thorough_looks_at_the_images(tmp_path: Path) -> None:
    defective(tmp_path)
    header = {f.what for f in examine(settings(tmp_path, "images=header")).findings}
    assert "images unreadable" not in header  # cut.png is damaged at its end
    assert {"images missing", "images of another size", "images that are in train too"} < header
    assert examine(settings(tmp_path, "images=none")).count("error") == 0
    with pytest.raises(ConfigError, match="images=all is not one of decode, header, none"):
        examine(settings(tmp_path, "images=all"))


def test_sizes_that_only_the_files_tell(tmp_path: Path) -> None:
    """CSV annotations have none: boxes must be held against the files."""
    Image.new("RGB", (60, 40), (90, 0, 0)).save(tmp_path / "a.png")
    (tmp_path / "classes.csv").write_text("thing,0\n")
    rows = ["a.png,5,5,25,25,thing", "a.png,50,10,90,30,thing", "a.png,70,10,90,30,thing"]
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    overrides = ["data=csv", f"data.train_annotations={tmp_path}/train.csv", "data.min_sizes=[40]"]
    report = examine(
        load_config("doctor", [*overrides, "model.anchor_sizes=[[16],[32],[64],[128],[256]]"])
    )
    assert {f.what: f.count for f in report.findings} == {
        "boxes outside the image": 1,
        "boxes reaching out of the image": 1,
        "no validation split": None,
    }
    trained = load_annotations(tmp_path / "train.csv", tmp_path, format="csv")
    assert sum(map(len, trained.boxes)) == report.details["anchor_coverage"]["boxes"] == 2
    assert report.facts[-1] == "anchors fit 100.0% of 2 training boxes (IoU from 0.5 on)"


def test_a_split_without_a_usable_image_is_an_error(tmp_path: Path) -> None:
    defective(tmp_path)
    shutil.rmtree(tmp_path / "val")
    (tmp_path / "val").mkdir()
    report = examine(settings(tmp_path, "data.missing_images=skip"))
    found = {(f.level, f.where, f.what, f.count) for f in report.findings}
    assert ("error", "val", "images, and none can be used", 2) in found
    with pytest.raises(DataError, match="instances_val.json leaves no image for val"):
        DetectionTask(
            load_config("train", [*arguments(tmp_path), "data.missing_images=skip"]),
            SingleDeviceStrategy("cpu"),
        )


def test_rare_classes_and_small_objects_are_named_and_sheets_drawn(tmp_path: Path) -> None:
    """Twenty images of one class with boxes of 10 px; one of them has the other class."""
    boxes = [(i, 1, [20, 20, 10, 10], 0) for i in range(1, 21)] + [(7, 2, [0, 0, 10, 10], 0)]
    for i in range(1, 21):
        Image.new("RGB", (128, 128)).save(tmp_path / f"{i}.png")
    images = [{"id": i, "file_name": f"{i}.png", "width": 128, "height": 128} for i in range(1, 21)]
    write_coco(tmp_path / "train.json", images, boxes, NAMES)
    data = [
        "data=coco",
        f"data.train_annotations={tmp_path}/train.json",
        "data.min_sizes=[128]",
        "data.max_size=192",
    ]
    report = examine(load_config("doctor", [*data, f"sheets={tmp_path}/sheets"]))
    found = {f.what: (f.count, f.remedy, f.examples) for f in report.findings}
    assert found["rare classes"][0] == 1
    assert found["rare classes"][2] == ("rare (in 1 image)",)
    assert "data.repeat_threshold=0.1" in found["rare classes"][1]
    count, remedy, _ = found["boxes below 16 px after the resize"]
    assert (count, remedy) == (
        21,
        "try data.min_sizes=[192] data.max_size=307, 2.6 times the memory",
    )
    with Image.open(tmp_path / "sheets" / "train.jpg") as sheet:
        assert len(sheet.convert("RGB").getcolors(2**24)) > 2  # boxes on black
    assert not (tmp_path / "sheets" / "val.jpg").exists()


def random_boxes(folder: Path, sizes: list[tuple[int, int]]) -> Annotations:
    """A hundred boxes of every size and shape in each image of (height, width)."""
    rng = np.random.default_rng(5)
    boxes = []
    for image, (height, width) in enumerate(sizes, start=1):
        for _ in range(100):
            w, h = np.exp(rng.uniform(math.log(3), np.log([width, height])))
            boxes.append(
                (image, 1, [rng.uniform(0, width - w), rng.uniform(0, height - h), w, h], 0)
            )
    images = [
        {"id": i, "file_name": str(i), "width": w, "height": h}
        for i, (h, w) in enumerate(sizes, start=1)
    ]
    write_coco(folder / "a.json", images, boxes, NAMES)
    return load_annotations(folder / "a.json", folder, missing_images="ignore")


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_coverage_equals_trying_every_anchor_of_the_network(variant: str, tmp_path: Path) -> None:
    """On the canvases that training would use, odd grids of the upper levels included."""
    sizes = [(90, 120), (120, 90), (100, 300), (333, 111), (64, 64), (480, 640), (96, 100)]
    data = random_boxes(tmp_path, sizes)
    options: dict[str, Any] = {"min_sizes": [96, 160], "max_size": 350, "num_buckets": 3}
    coverage = anchor_coverage(data, CELLS, DetectionData(name="x", **options))

    model = build_retinanet(
        num_classes=2,
        backbone="resnet18",
        fpn_channels=64,
        variant=variant,
        anchor_sizes=ANCHOR_SIZES,
    )
    buckets = make_buckets(sizes, **options)
    expected = []
    canvases = set()
    for i, (height, width) in enumerate(sizes):
        canvas = buckets.padded_shape([i], 160)
        canvases.add(canvas)
        with torch.no_grad():
            features = list(model.backbone(torch.zeros(1, 3, *canvas)).values())
        anchors = torch.cat(model.anchors(canvas, features)).double()
        new_height, new_width = resized_size(height, width, 160, 350)
        scale = torch.tensor([new_width / width, new_height / height] * 2, dtype=torch.float64)
        boxes = torch.from_numpy(data.boxes[i]).double() * scale
        expected.append(box_iou(boxes, anchors).amax(dim=1))
    assert len(canvases) == 3
    np.testing.assert_allclose(coverage.best_iou, torch.cat(expected).numpy(), atol=1e-12)


def test_coverage_by_hand(tmp_path: Path) -> None:
    """An image as large as its canvas; anchors of P3 lie around multiples of 8."""
    boxes = [
        [24.0, 24.0, 16.0, 16.0],
        [26.0, 24.0, 16.0, 16.0],
        [24.0, 24.0, 16.0, 4.0],
        [0.0, 30.0, 64.0, 5.0],
    ]
    image = {"id": 1, "file_name": "a", "width": 64, "height": 64}
    write_coco(tmp_path / "a.json", [image], [(1, 1, box, 0) for box in boxes], NAMES)
    data = load_annotations(tmp_path / "a.json", tmp_path, missing_images="ignore")
    cells = [np.array([[-8.0, -8.0, 8.0, 8.0]])] + [np.array([[-64.0, -64.0, 64.0, 64.0]])] * 4
    one = DetectionData(name="x", min_sizes=[64], max_size=64, num_buckets=1)
    coverage = anchor_coverage(data, cells, one, threshold=0.3)
    best = [1.0, 14 / 18, 1 / 4, 80 / (256 + 320 - 80)]
    np.testing.assert_allclose(coverage.best_iou, best)
    assert (coverage.num_unreached, coverage.unreached) == (2, 0.5)
    np.testing.assert_allclose(coverage.size, [16, 16, 8, 320**0.5])


@pytest.mark.parametrize(
    ("side", "remedy"),
    [
        (
            (12.0, 12.0),
            "0.0% are left, tried on these boxes, "
            "with model.anchor_sizes=[[12],[16],[32],[64],[128]]",
        ),
        (
            (30.0, 180.0),
            "0.0% are left, tried on these boxes, with model.aspect_ratios=[0.25,0.5,1.0,2.0,4.0]",
        ),
        (
            (2.0, 2.0),
            "neither other sizes nor more aspect ratios help: "
            "look at the boxes, and at data.min_sizes",
        ),
    ],
)
def test_remedies_are_tried(side: tuple[float, float], remedy: str, tmp_path: Path) -> None:
    """Boxes around centres of anchors, which one setting helps, or none."""
    w, h = side
    boxes = [(1, 1, [x - w / 2, 512 - h / 2, w, h], 0) for x in (384, 512, 640)]
    write_coco(
        tmp_path / "train.json",
        [{"id": 1, "file_name": "a", "width": 1024, "height": 1024}],
        boxes,
        NAMES,
    )
    overrides = [
        "data=coco",
        f"data.train_annotations={tmp_path}/train.json",
        "data.min_sizes=[1024]",
        "model.anchor_sizes=[[24],[32],[64],[128],[256]]",
        "images=none",
    ]
    report = examine(load_config("doctor", overrides))
    assert report.details["anchor_coverage"]["unreached"] == 1
    found = {f.what: (f.count, f.remedy) for f in report.findings}
    assert found["boxes that no anchor fits, 100.0% of 3"] == (3, remedy)
    assert "anchors" not in report.facts[-1]
