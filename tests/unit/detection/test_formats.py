"""Where a split lies, which format it has, the same boxes in every format; damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.registry import names
from retina_dist.data.tree import Tree
from retina_dist.detection.convert import ConvertConfig, convert
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.readers.recognition import recognise
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from tests.coco_files import split_of

# split -> image -> (class, x1, y1, x2, y2) in 40 x 20 pixels
BOXES: dict[str, dict[str, list[tuple[str, int, int, int, int]]]] = {
    "train": {"a": [("dog", 4, 2, 20, 12), ("cat", 0, 0, 10, 20)], "b": []},
    "val": {"c": [("cat", 8, 4, 30, 14)]},
}


ONE_IMAGE: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 40, "height": 20}],
    "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
    "categories": [{"id": 1, "name": "x"}],
}


def draw(folder: Path, name: str, ending: str = "jpg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    colour = (ord(name[0]), 0, 0)
    Image.new("RGB", (40, 20), colour).save(folder / f"{name}.{ending}")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/val.json", "images/val"),
        ("val.json", "."),
        ("val.json", "val"),
        ("valid/_annotations.coco.json", "valid"),
        ("val/_annotations.coco.json", "val"),
    ],
)
def test_layouts(tmp_path: Path, annotations: str, images: str):
    tmp_path /= "val"  # a folder of everything may have the name of a split
    draw(tmp_path / images, "a")
    write(tmp_path / annotations, json.dumps(ONE_IMAGE))
    assert recognise(Tree(tmp_path)) == ["coco"]
    part = split_of(tmp_path, "val")
    assert part.records[0].path == tmp_path / images / "a.jpg"
    assert part.records[0].file_name == "a.jpg"


def test_a_layout_that_is_not_known(tmp_path: Path):
    with pytest.raises(DataError, match="has no annotations of boxes: it is empty; mount or copy"):
        recognise(Tree(tmp_path))
    for format in names("reader"):
        with pytest.raises(DataError, match="absent is not a folder; give the one"):
            read(tmp_path / "absent", format=format)
    with pytest.raises(ConfigError, match="data.format=xml is not one of auto, shards, coco, "):
        load_annotations(tmp_path, tmp_path, format="xml")
    write(tmp_path / "notes.json", '{"author": 1, "date": 2}')
    with pytest.raises(
        DataError, match=r"it holds 1 .json file, such as notes.json \(author, date\); name a file"
    ):
        recognise(Tree(tmp_path))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("photos.zip", r"it holds packed files \(photos.zip\); unpack them"),
        ("train/cat/a.jpg", "it holds class folders, for a classifier; give experiment="),
    ],
)
def test_an_unknown_folder_is_named(tmp_path: Path, file: str, message: str):
    write(tmp_path / file, "")
    with pytest.raises(DataError, match=f"has no annotations of boxes: .*{message}"):
        recognise(Tree(tmp_path))


def test_files_of_keypoints_and_captions_are_passed_over(tmp_path: Path):
    """What lies beside the instances in COCO's own annotation folder."""
    draw(tmp_path / "val2017", "a")
    write(tmp_path / "annotations/captions_val2017.json", '{"images": [], "annotations": []}')
    write(tmp_path / "annotations/person_keypoints_val2017.json", json.dumps(ONE_IMAGE))
    assert split_of(tmp_path, "val").coco["categories"][0]["name"] == "x"
    content = ONE_IMAGE | {"categories": [{"id": 1, "name": "y"}]}
    write(tmp_path / "annotations/instances_val2017.json", json.dumps(content))
    assert split_of(tmp_path, "val").coco["categories"][0]["name"] == "y"
    write(tmp_path / "annotations/instances_val2014.json", json.dumps(content))
    with pytest.raises(DataError, match="two COCO json of val: .*2014.json and .*2017.json; name"):
        split_of(tmp_path, "val")


def test_a_split_beside_those_that_the_settings_name(tmp_path: Path) -> None:
    """Two files that name no split do not keep the test split from being read."""
    for name in ("mine", "other", "test"):
        draw(tmp_path / name, "a")
        write(tmp_path / f"{name}.json", json.dumps(ONE_IMAGE))
    draw(tmp_path / "test", "b")  # without annotations, so that the other files are looked at
    with pytest.raises(DataError, match="mine.json and other.json; name one"):
        split_of(tmp_path, "train")
    named = {"train_annotations": f"{tmp_path}/mine.json"}
    assert len(split_of(tmp_path, "test", **named).records) == 1


def test_missing_images_are_named_by_the_end_of_their_long_names(tmp_path: Path) -> None:
    box = {"label": "cat", "topX": 0.1, "topY": 0.1, "bottomX": 0.9, "bottomY": 0.9}
    name = f"azureml://subscriptions/{'x' * 80}/paths/photos/a.jpg"
    line = {"image_url": name, "image_details": {"width": "9px", "height": "9px"}, "label": [box]}
    write(tmp_path / "train.jsonl", json.dumps(line))
    with pytest.raises(
        DataError, match=r"1 of 1 images .*x/paths/photos/a.jpg; put each .*, copy them th"
    ):
        split_of(tmp_path, "train")


def test_a_data_yaml_of_another_machine(tmp_path: Path) -> None:
    """Roboflow writes the places of the notebook that downloaded the images."""
    roboflow(tmp_path)
    config = tmp_path / "data.yaml"
    expected = read(tmp_path, "train"), read(tmp_path, "val")
    config.write_text(config.read_text().replace("../", "/content/mine-1/"))
    assert (read(tmp_path, "train"), read(tmp_path, "val")) == expected


def test_roboflow_states_a_license(tmp_path: Path) -> None:
    roboflow(tmp_path)
    assert split_of(tmp_path, "train").truth.origin == {"license": "", "source": ""}
    with (tmp_path / "data.yaml").open("a") as config:
        config.write("roboflow:\n  license: CC BY 4.0\n  url: https://universe.roboflow.com/a/b\n")
    origin = split_of(tmp_path, "train").truth.origin
    assert origin == {"license": "CC BY 4.0", "source": "https://universe.roboflow.com/a/b"}


# formats


def yolo(root: Path, layout: Callable[[str, str], str], val: str = "val") -> None:
    for split, images in BOXES.items():
        for name, boxes in images.items():
            folder = val if split == "val" else split
            draw(root / layout("images", folder), name)
            rows = [
                ((x1 + x2) / 80, (y1 + y2) / 40, (x2 - x1) / 40, (y2 - y1) / 20)
                for _, x1, y1, x2, y2 in boxes
            ]
            lines = [
                f"{['cat', 'dog'].index(box[0])} " + " ".join(map(str, row))
                for box, row in zip(boxes, rows)
            ]
            if lines:  # an image without boxes has no file
                write(root / layout("labels", folder) / f"{name}.txt", "\n".join(lines) + "\n")


def ultralytics(root: Path) -> None:
    yolo(root, "{}/{}".format)
    write(
        root / "data.yaml",
        "path: /elsewhere/x\ntrain: images/train\nval: [images/val]\nnames: {0: cat, 1: dog}\n",
    )


def lists(root: Path) -> None:
    yolo(root, "{}/{}".format)
    write(
        root / "mine.yaml",
        f"train: lists/train.txt\nval: ../{root.name}/val.txt\nnames: [cat, dog]\n",
    )
    train = [
        "\ufeff..\\images\\train\\a.jpg",
        "../images/train/b.jpg",
        "../lists/../images/train/a.jpg",
    ]
    write(root / "lists/train.txt", "\n".join(train))
    write(root / "val.txt", "./images/val/c.jpg\n")


def roboflow(root: Path) -> None:
    yolo(root, lambda kind, split: f"{split}/{kind}", "valid")
    write(
        root / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames: ['cat', 'dog']\n"
    )


def without_yaml(root: Path) -> None:
    yolo(root, "{}/{}".format)
    write(root / "classes.txt", "cat\ndog\n")


def labelimg_yolo(root: Path) -> None:
    yolo(root, lambda kind, split: split)
    write(root / "classes.txt", "cat\ndog\n")


def segments(root: Path) -> None:
    ultralytics(root)
    write(root / "labels/train/a.txt", "1 0.1 0.1 0.5 0.3 0.2 0.6\n0 0 0 0.25 0 0.25 1 0 1\n")


def labelimg(root: Path, sub: Callable[[str], str] = "{}".format) -> None:
    for split, images in BOXES.items():
        for name, boxes in images.items():
            draw(root / sub(split), name, "PNG")
            things = "".join(
                f"<object><name>{n}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
                f"<xmax>{x2}</xmax><ymax>{y2}</ymax>"
                "</bndbox></object>"
                for n, x1, y1, x2, y2 in boxes
            )
            text = f"<annotation><filename>{name}.wrong</filename>{things}</annotation>"
            write(root / sub(split) / f"{name}.xml", text)


def voc_by_split(root: Path) -> None:
    labelimg(root)
    (root / "Annotations").mkdir()
    (root / "images").mkdir()
    for split in BOXES:
        (root / split).rename(root / "images" / split)
        for file in sorted((root / "images" / split).glob("*.xml")):
            write(root / "Annotations" / split / file.name, file.read_text())
            file.unlink()


def labelme(root: Path) -> None:
    for split, images in BOXES.items():
        for name, boxes in images.items():
            draw(root / split, name)
            shapes = [
                {"label": n, "shape_type": "rectangle", "points": [[x2, y2], [x1, y1]]}
                for n, x1, y1, x2, y2 in boxes
            ]
            shapes += (
                [{"label": "spot", "shape_type": "point", "points": [[3, 3]]}]
                if name == "a"
                else []
            )
            content = {
                "version": "5",
                "shapes": shapes,
                "imagePath": f"..\\..\\{split}\\{name}.jpg",
            }
            write(
                root / ("labels" if name == "c" else "") / split / f"{name}.json",
                json.dumps(
                    content | ({} if name == "b" else {"imageWidth": 40, "imageHeight": 20})
                ),
            )


def cvat(root: Path) -> None:
    images = []
    for split, entries in BOXES.items():
        for name, boxes in entries.items():
            draw(root / "images", name)
            things = [
                f'<box label="{n}" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"/>'
                if n == "cat"
                else f'<polygon label="{n}" points="{x1},{y1};{x2},{y1};{x1},{y2}"/>'
                for n, x1, y1, x2, y2 in boxes
            ]
            subset = {"train": "Train", "val": "Validation"}[split]
            images.append(
                f'<image name="{name}.jpg" subset="{subset}" width="40" height="20">'
                f"{''.join(things)}</image>"
            )
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("dog", "cat"))
    write(
        root / "annotations.xml",
        f"<annotations><meta>{labels}</meta>{''.join(images)}</annotations>",
    )


def openimages(root: Path) -> None:
    write(root / "class-descriptions-boxable.csv", "/m/1,dog\n/m/2,cat\n")
    for split, images in BOXES.items():
        rows = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsGroupOf"]
        for name, boxes in images.items():
            draw(root / ("validation" if split == "val" else "train/data"), name)
            for n, x1, y1, x2, y2 in boxes:
                rows.append(
                    f"{name},x,/m/{1 + (n == 'cat')},1,{x1 / 40},{x2 / 40},{y1 / 20},{y2 / 20},0,0"
                )
        rows += ["a,x,/m/2,1,0,1,0,1,0,1"] if split == "train" else []
        title = "validation" if split == "val" else split
        write(root / f"{title}-annotations-bbox.csv", "\n".join(rows) + "\n")


FORMATS = {
    "YOLO": (ultralytics, lists, roboflow, without_yaml, labelimg_yolo, segments),
    "Pascal VOC": (labelimg, voc_by_split),
    "LabelMe": (labelme,),
    "CVAT XML": (cvat,),
    "OpenImages CSV": (openimages,),
}
CASES = [(title, make) for title, makers in FORMATS.items() for make in makers]


def corners(part: Annotations) -> dict[str, list[tuple[Any, ...]]]:
    """The boxes of each image with the names of their classes."""
    names = part.categories.names
    found: dict[str, list[tuple[Any, ...]]] = {}
    for record, boxes, labels in zip(part.records, part.boxes, part.labels, strict=True):
        pairs = zip(labels, boxes.tolist(), strict=True)
        found[Path(record.file_name).stem] = sorted((names[label], *box) for label, box in pairs)
    return found


every_format = pytest.mark.parametrize(
    ("title", "make"), CASES, ids=[make.__name__ for _, make in CASES]
)


@every_format
def test_every_format_gives_the_same_boxes(
    title: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    data = DetectionData(name="mine", root=str(tmp_path))
    train = read_split(data, "train")
    val = read_split(data, "val", train.categories)
    for part, split in ((train, "train"), (val, "val")):
        found = corners(part)
        expected = {name: sorted(boxes) for name, boxes in BOXES[split].items()}
        if make is openimages:  # lists boxes, and so no image without one
            expected.pop("b", None)
        assert found.keys() == expected.keys()
        for name, boxes in expected.items():
            assert [box[0] for box in found[name]] == [box[0] for box in boxes]
            near = [box[1:] for box in boxes]
            assert np.allclose([box[1:] for box in found[name]], near, atol=1e-4)
        assert {record.size for record in part.records} == {(40, 20)}
        assert all(record.path.is_file() for record in part.records)


@every_format
def test_a_split_says_its_format_and_what_was_left_out(
    title: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    train = split_of(tmp_path)
    assert train.describe().endswith(f"; {title}, as recognised")
    assert train.num_crowd == (make is openimages)
    points = [str(left) for left in train.left_out if left.noun == "shape"]
    if make is labelme:
        why = "LabelMe points and the like are not trained on"
        assert points == [f"1 shape without a box: train/a.jpg ({why})"]
    else:
        assert not points


@every_format
def test_every_format_converts_to_the_same_json(
    title: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    train = split_of(tmp_path)
    convert(ConvertConfig(root=str(tmp_path), output=str(tmp_path / "written" / "train.json")))
    again = load_annotations(tmp_path / "written" / "train.json", tmp_path)
    assert [record.size for record in again.records] == [(40, 20)] * len(train.records)
    assert again.coco["annotations"] == train.coco["annotations"]


def test_one_folder_has_no_validation_split(tmp_path: Path) -> None:
    labelimg(tmp_path, lambda _: "")
    data = DetectionData(name="mine", root=str(tmp_path))
    assert len(read_split(data, "train").records) == 3
    assert read_split(data, "val") is None
    with pytest.raises(ConfigError, match="has no val split"):
        convert(ConvertConfig(root=str(tmp_path), split="val", output=str(tmp_path / "val.json")))
    with pytest.raises(ConfigError, match="^root=absent is not a folder"):
        convert(ConvertConfig(root="absent", output=str(tmp_path / "val.json")))


def test_a_confidence_in_labels_of_yolo_is_named(tmp_path: Path) -> None:
    ultralytics(tmp_path)
    data = DetectionData(name="mine", root=str(tmp_path))
    before = split_of(tmp_path, "train")
    label = tmp_path / "labels/train/a.txt"
    label.write_text("".join(f"{line} 0.87\n" for line in label.read_text().splitlines()))
    found = read_split(data, "train")
    assert found is not None
    said = [each for each in found.warnings if "a.txt has a sixth number, as predictions" in each]
    assert len(said) == 1
    assert found.coco["annotations"] == before.coco["annotations"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.1", "a.txt:1 has 3 numbers after the class; write class x y"),
        ("0 20 10 8 8", "a.txt:1 has 20, so it is in pixels; write shares of the image"),
        ("cat 0.5 0.5 0.1 0.1", "a.txt:1 has the class 'cat', not its number"),
        ("7 0.5 0.5 0.1 0.1", "has class 7, but names end at 1; count from 0, or add"),
    ],
)
def test_damaged_labels_of_yolo_are_named(line: str, message: str, tmp_path: Path) -> None:
    ultralytics(tmp_path)
    write(tmp_path / "labels/train/a.txt", f"{line}\n")
    with pytest.raises(DataError, match=message):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: [\n", "data.yaml cannot be read as YAML"),
        ("train: images/train\nnc: 3\nnames: [cat, dog]\n", "nc is 3, but names has 2; make"),
        (
            "train: images/t\nnames: [cat, dog]\n",
            "data.yaml names 'images/t' for train, where no image is; correct",
        ),
        (
            "train: ../train/images\nval: ../valid/images\nnames: [cat, dog]\n",
            "names other folders for val than for train, but only the images of train are there",
        ),
        (
            "train: alone\nnames: [cat, dog]\n",
            "no image of train has a label file, such as .*a.txt",
        ),
    ],
)
def test_a_damaged_data_yaml_is_named(text: str, message: str, tmp_path: Path) -> None:
    ultralytics(tmp_path)
    draw(tmp_path / "alone", "a")
    write(tmp_path / "data.yaml", text)
    with pytest.raises(DataError, match=message):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


CUT = "ImageID,LabelName,XMin,YMin,XMax,YMax\nc"
AWAY = (
    "<annotations><meta><label><name>x</name></label></meta>"
    '<image name="/zz" width="9" height="9"/></annotations>'
)
SKELETON = (
    '<annotations><image name="a" width="9" height="9"><skeleton label="x"/></image></annotations>'
)


@pytest.mark.parametrize(
    ("make", "file", "text", "message"),
    [
        (
            labelme,
            "train/a.json",
            '{"shapes": [{}], "imagePath": "a.jpg"}',
            "cannot be read as LabelMe's json .Key",
        ),
        (
            cvat,
            "annotations.xml",
            "<annotations><track/></annotations>",
            "has tracks of a video; export it",
        ),
        (cvat, "annotations.xml", AWAY, "image 1 has file_name '/zz', which is outside"),
        (
            cvat,
            "annotations.xml",
            SKELETON,
            "'a' has a skeleton without a box or points x,y;x,y; remove it",
        ),
        (
            openimages,
            "train-annotations-bbox.csv",
            "ImageID\n",
            "line 1 lacks the column LabelName",
        ),
        (
            openimages,
            "test-annotations-bbox.csv",
            CUT,
            "test-annotations-bbox.csv:2 has no LabelName; restore",
        ),
        (
            openimages,
            "class-descriptions.csv",
            "a" * 2**18,
            "descriptions.csv cannot be read as CSV .field larger",
        ),
    ],
)
def test_damaged_files_are_named(
    make: Any, file: str, text: str, message: str, tmp_path: Path
) -> None:
    make(tmp_path)
    write(tmp_path / file, text)
    with pytest.raises(DataError, match=message):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


def test_a_folder_inside_the_data_set_names_the_data_set(tmp_path: Path) -> None:
    ultralytics(tmp_path)
    for inside in ("images", "images/train"):
        with pytest.raises(
            DataError, match=f"has no annotations of boxes: give the folder above, {tmp_path}"
        ):
            recognise(Tree(tmp_path / inside))


def test_missing_images_of_a_folder_format_name_no_setting(tmp_path: Path) -> None:
    labelimg(tmp_path, lambda _: "")
    for file in tmp_path.glob("*.PNG"):
        file.unlink()
    with pytest.raises(
        DataError,
        match=r"3 of 3 images are not in .*; put each image where docs/data\.md shows it",
    ):
        read_split(DetectionData(name="mine", root=str(tmp_path)), "train")


def read(root: Path, split: str = "train", **settings: Any) -> dict[str, list[list[float]]]:
    """The boxes of each image's file."""
    part = split_of(root, split, **settings)
    return {
        record.file_name: boxes.tolist()
        for record, boxes in zip(part.records, part.boxes, strict=True)
    }


def test_cvat_shapes_are_read_as_their_bounding_boxes(tmp_path: Path) -> None:
    draw(tmp_path, "a")
    things = (
        '<tag label="sunny" source="manual"></tag><points label="x" points="10,8"/>'
        '<box label="x" xtl="10" ytl="8" xbr="20" ybr="12" rotation="90"/>'
        '<box label="x" xtl="10" ytl="6" xbr="18" ybr="14" rotation="45"/>'
        '<mask label="x" rle="3, 3" left="5" top="6" width="7" height="8"/>'
    )
    image = f'<image name="a.jpg" width="40" height="20">{things}</image>'
    write(tmp_path / "annotations.xml", f"<annotations>{image}</annotations>")
    half = 4 * 2**0.5
    expected = [[13, 5, 17, 15], [14 - half, 10 - half, 14 + half, 10 + half], [5, 6, 12, 14]]
    assert np.allclose(read(tmp_path)["a.jpg"], expected, atol=1e-5)


def test_the_subset_of_cvat_comes_before_the_folder(tmp_path: Path) -> None:
    images = ""
    for folder, subset in (("test", "train"), ("train", "Validation"), ("val", "default")):
        draw(tmp_path / folder, "a")
        box = '<box label="x" xtl="1" ytl="1" xbr="9" ybr="9"/>'
        images += (
            f'<image name="{folder}/a.jpg" subset="{subset}" width="40" height="20">{box}</image>'
        )
    write(tmp_path / "annotations.xml", f"<annotations>{images}</annotations>")
    assert read(tmp_path).keys() == {"test/a.jpg"}
    assert read(tmp_path, "val").keys() == {"train/a.jpg", "val/a.jpg"}


def test_the_format_does_not_depend_on_the_order_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelme(tmp_path)
    write(tmp_path / "train/z.json", "{}")
    glob = Path.glob
    for backwards in (False, True):

        def sorted_glob(self: Path, pattern: str, reverse: bool = backwards) -> Iterator[Path]:
            return iter(sorted(glob(self, pattern), reverse=reverse))

        monkeypatch.setattr(Path, "glob", sorted_glob)
        assert recognise(Tree(tmp_path)) == ["labelme"]


def test_a_voc_list_of_training_images_alone_can_be_held_out_of(tmp_path: Path) -> None:
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / folder).mkdir(parents=True)
    labelimg(tmp_path, lambda _: "Annotations")
    for file in [*(tmp_path / "Annotations").glob("*.PNG")]:
        file.rename(tmp_path / "JPEGImages" / f"{file.stem}.wrong")
    write(tmp_path / "ImageSets/Main/train.txt", "a\nb\nc\n")
    assert read_split(DetectionData(name="mine", root=str(tmp_path)), "val") is None
    parts = [read(tmp_path, split, val_fraction=0.5).keys() for split in ("train", "val")]
    assert sorted(name for part in parts for name in part) == ["a.wrong", "b.wrong", "c.wrong"]
    (tmp_path / "ImageSets/Main/valid.txt").write_text("c\n")
    assert read(tmp_path, "val", val_fraction=0.5).keys() == {"c.wrong"}


def test_files_beside_a_folder_of_everything_are_refused(tmp_path: Path) -> None:
    data = DetectionData(name="mine", root=str(tmp_path), format="yolo", val_images=str(tmp_path))
    with pytest.raises(
        ConfigError, match="val_images=.* has no effect on data.format=yolo; leave it out"
    ):
        data.check()


def test_nothing_that_yolo_lacks_is_left_out_in_silence(tmp_path: Path) -> None:
    ultralytics(tmp_path)
    write(tmp_path / "labels/train/lost.txt", "1 0.5 0.5 0.2 0.2\n")
    (tmp_path / "images/train/a.jpg").write_bytes(b"no image")
    part = read_split(
        DetectionData(name="mine", root=str(tmp_path), missing_images="ignore"),
        "train",
        check=False,
    )
    assert part is not None
    assert part.warnings == [
        f"{tmp_path}/data.yaml: path '/elsewhere/x' is not a folder here; "
        f"the images are looked for below {tmp_path}",
        f"2 boxes left out, of images whose size cannot be read in {tmp_path}; restore them",
    ]
    assert [str(left) for left in part.left_out] == [
        "1 label file without an image: labels/train/lost.txt "
        "(restore their images, or take them out)"
    ]


def test_rounded_shares_clip_nothing_and_keypoints_follow_their_box(tmp_path: Path) -> None:
    ultralytics(tmp_path)
    write(tmp_path / "labels/train/a.txt", "1 0.0833335 0.5 0.166668 1.000001\n")
    assert split_of(tmp_path).clipped == 0
    write(tmp_path / "labels/train/a.txt", "1 0.5 0.5 0.2 0.4 0.1 0.9 2 0.2\n")
    write(tmp_path / "data.yaml", (tmp_path / "data.yaml").read_text() + "kpt_shape: [2, 2]\n")
    assert np.allclose(split_of(tmp_path).boxes[0], [[16, 6, 24, 14]])


def test_images_that_yolo_lists_elsewhere_keep_their_names_when_all_is_moved(
    tmp_path: Path,
) -> None:
    """`val_fraction` hashes names: with the folders above, a copy would be split another way."""
    names = []
    for place in (tmp_path / "here", tmp_path / "other" / "there"):
        yolo(place / "pictures", "{}/{}".format)
        write(place / "set/data.yaml", "train: train.txt\nnames: [cat, dog]\n")
        write(
            place / "set/train.txt",
            "".join(f"{place}/pictures/images/train/{name}.jpg\n" for name in "ab"),
        )
        names.append(read(place / "set").keys())
    assert names[0] == names[1] == {"a.jpg", "b.jpg"}
