"""Three photos with known boxes, as annotation tools and labelling services write them.

Each function writes one tool's layout after its documentation or its writer, and returns which
photos are of each split.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Box = tuple[str, int, int, int, int]  # class, x1, y1, x2, y2
Splits = Mapping[str, Sequence[str]]  # photos by split
Export = Callable[[Path], Splits]

NAMES = ("cat", "dog")
SIZES = {"a": (64, 48), "b": (80, 60), "c": (50, 40)}  # (width, height)
BOXES: dict[str, list[Box]] = {
    "a": [("dog", 4, 6, 40, 30), ("cat", 10, 12, 20, 44)],
    "b": [("cat", 8, 15, 72, 45)],
    "c": [("dog", 5, 10, 45, 30)],
}
ALL = ("a", "b", "c")
THREE = {"train": ("a",), "val": ("b",), "test": ("c",)}
ONE = {"train": ALL}

EXPORTS: dict[str, Export] = {}


def export(tool: str) -> Callable[[Export], Export]:
    """Add a function to the table."""

    def add(write: Export) -> Export:
        EXPORTS[tool] = write
        return write

    return add


def photo(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = SIZES[name]
    rng = np.random.default_rng(ord(name))
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def dump(path: Path, content: Any) -> None:
    text(path, json.dumps(content))


def lines(path: Path, entries: Iterable[Any]) -> None:
    text(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def table(path: Path, rows: Iterable[Sequence[Any]], delimiter: str = ",") -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    text(path, file.getvalue())


# COCO


def coco(
    names: Sequence[str], file_of: str = "{}.jpg", first: int = 1, **of_image: Any
) -> dict[str, Any]:
    images, annotations = [], []
    for number, name in enumerate(names, start=1):
        width, height = SIZES[name]
        image = {"id": number, "file_name": file_of.format(name), "width": width, "height": height}
        images.append(image | {k: v.format(name) for k, v in of_image.items()})
        for label, x1, y1, x2, y2 in BOXES[name]:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": NAMES.index(label) + first,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": 0,
                    "segmentation": [],
                }
            )
    categories = [
        {"id": i, "name": name, "supercategory": ""} for i, name in enumerate(NAMES, start=first)
    ]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


@export("COCO 2017")
def coco_2017(root: Path) -> Splits:
    for split, names in {"train": ("a",), "val": ("b", "c")}.items():
        for name in names:
            photo(root / f"{split}2017" / f"{name}.jpg", name)
        dump(root / f"annotations/instances_{split}2017.json", coco(names))
    dump(root / "annotations/captions_train2017.json", {"images": [], "annotations": []})
    return {"train": ("a",), "val": ("b", "c")}


@export("CVAT COCO 1.0")
def cvat_coco(root: Path) -> Splits:
    for name in ALL:
        photo(root / "images/default" / f"{name}.jpg", name)
    dump(root / "annotations/instances_default.json", coco(ALL))
    return ONE


@export("CVAT COCO 1.0, subsets")
def cvat_coco_subsets(root: Path) -> Splits:
    for split, names in zip(("Train", "Validation", "Test"), THREE.values()):
        photo(root / f"images/{split}" / f"{names[0]}.jpg", names[0])
        dump(root / f"annotations/instances_{split}.json", coco(names))
    return THREE


@export("Label Studio COCO")
def label_studio_coco(root: Path) -> Splits:
    for name in ALL:
        photo(root / "images" / f"1a2b3c4d-{name}.jpg", name)
    dump(root / "result.json", coco(ALL, "images\\1a2b3c4d-{}.jpg", first=0))
    return ONE


@export("FiftyOne COCO")
def fiftyone_coco(root: Path) -> Splits:
    for name in ALL:
        photo(root / "data" / f"{name}.jpg", name)
    dump(root / "labels.json", coco(ALL))
    return ONE


@export("Roboflow COCO")
def roboflow_coco(root: Path) -> Splits:
    for folder, names in zip(("train", "valid", "test"), THREE.values()):
        photo(root / folder / f"{names[0]}_jpg.rf.0.jpg", names[0])
        content = coco(names, "{}_jpg.rf.0.jpg")
        content["categories"].insert(0, {"id": 0, "name": "animals", "supercategory": "none"})
        dump(root / folder / "_annotations.coco.json", content)
    return THREE


@export("VIA COCO")
def via_coco(root: Path) -> Splits:
    content = coco(ALL)
    for entry in content["annotations"]:
        entry["image_id"] = str(entry["image_id"])
    for name in ALL:
        photo(root / f"{name}.jpg", name)
    dump(root / "via_export_coco.json", content)
    return ONE


@export("makesense.ai COCO")
def makesense_coco(root: Path) -> Splits:
    content = coco(ALL)
    for image in content["images"]:
        image |= {"width": float(image["width"]), "height": float(image["height"])}
    for name in ALL:
        photo(root / "img" / f"{name}.jpg", name)
    dump(root / "labels_my-project-name_2024-01-31-09-12-00.json", content)
    return ONE


@export("COCO of another machine")
def coco_elsewhere(root: Path) -> Splits:
    for name in ALL:
        photo(root / "photos/raw" / f"{name}.jpg", name)
    dump(root / "labels.json", coco(ALL, "C:\\Users\\me\\photos\\raw\\{}.jpg"))
    return ONE


@export("Azure ML data labelling, COCO")
def azure_ml_coco(root: Path) -> Splits:
    url = "AmlDatastore://workspaceblobstore/pets/{}.jpg"
    content = coco(ALL, "pets/{}.jpg", coco_url=url, absolute_url="https://x/{}.jpg")
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for image in content["images"]:
        image |= {"width": float(image["width"]), "height": float(image["height"])}
    for entry in content["annotations"]:
        width, height = sizes[entry["image_id"]]
        x, y, w, h = entry["bbox"]
        entry |= {"bbox": [x / width, y / height, w / width, h / height], "area": 0.0}
    for name in ALL:
        photo(root / "pets" / f"{name}.jpg", name)
    dump(root / "coco.json", content)
    return ONE


# YOLO


def yolo(path: Path, name: str) -> None:
    width, height = SIZES[name]
    rows = []
    for label, x1, y1, x2, y2 in BOXES[name]:
        values = (
            (x1 + x2) / 2 / width,
            (y1 + y2) / 2 / height,
            (x2 - x1) / width,
            (y2 - y1) / height,
        )
        rows.append(f"{NAMES.index(label)} " + " ".join(f"{value:.6f}" for value in values))
    text(path, "\n".join(rows) + "\n")


@export("ultralytics YOLO")
def ultralytics(root: Path) -> Splits:
    for split, (name,) in THREE.items():
        photo(root / f"images/{split}/{name}.jpg", name)
        yolo(root / f"labels/{split}/{name}.txt", name)
    splits = "".join(f"{split}: images/{split}\n" for split in THREE)
    text(root / "pets.yaml", f"path: ../datasets/pets\n{splits}names:\n  0: cat\n  1: dog\n")
    return THREE


@export("Roboflow YOLO")
def roboflow_yolo(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "valid", "test"), THREE.values()):
        photo(root / f"{folder}/images/{name}.jpg", name)
        yolo(root / f"{folder}/labels/{name}.txt", name)
    folders = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    text(
        root / "data.yaml", f"{folders}\nnc: 2\nnames: ['cat', 'dog']\n\nroboflow:\n  version: 1\n"
    )
    text(root / "README.roboflow.txt", "pets - v1\n")
    return THREE


@export("CVAT YOLO 1.1")
def cvat_yolo(root: Path) -> Splits:
    for subset, names in {"train": ("a", "b"), "valid": ("c",)}.items():
        for name in names:
            photo(root / f"obj_{subset}_data/{name}.jpg", name)
            yolo(root / f"obj_{subset}_data/{name}.txt", name)
        listed = "".join(f"data/obj_{subset}_data/{name}.jpg\n" for name in names)
        text(root / f"{subset}.txt", listed)
    text(root / "obj.names", "cat\ndog\n")
    files = "train = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n"
    text(root / "obj.data", f"classes = 2\n{files}backup = backup/\n")
    return {"train": ("a", "b"), "val": ("c",)}


@export("CVAT Ultralytics YOLO")
def cvat_ultralytics(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/train/{name}.jpg", name)
        yolo(root / f"labels/train/{name}.txt", name)
    text(root / "train.txt", "".join(f"data/images/train/{name}.jpg\n" for name in ALL))
    text(root / "data.yaml", "names:\n  0: cat\n  1: dog\npath: .\ntrain: train.txt\n")
    return ONE


@export("Darknet")
def darknet(root: Path) -> Splits:
    for split, names in {"train": ("a", "b"), "valid": ("c",)}.items():
        for name in names:
            photo(root / f"data/obj/{name}.jpg", name)
            yolo(root / f"data/obj/{name}.txt", name)
        text(root / f"data/{split}.txt", "".join(f"data/obj/{name}.jpg\n" for name in names))
    text(root / "data/obj.names", "cat\ndog\n")
    files = "train=data/train.txt\nvalid=data/valid.txt\nnames=data/obj.names\n"
    text(root / "data/obj.data", f"classes=2\n{files}")
    return {"train": ("a", "b"), "val": ("c",)}


@export("LabelImg YOLO")
def labelimg_yolo(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "val", "test"), THREE.values()):
        photo(root / f"{folder}/{name}.jpg", name)
        yolo(root / f"{folder}/{name}.txt", name)
        text(root / f"{folder}/classes.txt", "cat\ndog\n")
    return THREE


@export("makesense.ai YOLO")
def makesense_yolo(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"photos/{name}.jpg", name)
        yolo(root / f"labels_my-project-name_2024-01-31/{name}.txt", name)
    text(root / "labels.txt", "cat\ndog\n")
    return ONE


@export("Label Studio YOLO")
def label_studio_yolo(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
        yolo(root / f"labels/{name}.txt", name)
    text(root / "classes.txt", "cat\ndog\n")
    dump(root / "notes.json", {"categories": [{"id": 0, "name": "cat"}], "info": {"year": 2024}})
    return ONE


# Pascal VOC


def voc(path: Path, name: str, file: str = "", database: str = "Unknown", offset: int = 0) -> None:
    width, height = SIZES[name]
    things = ""
    for label, x1, y1, x2, y2 in BOXES[name]:
        corners = {"xmin": x1 + offset, "ymin": y1 + offset, "xmax": x2, "ymax": y2}
        tags = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners.items())
        things += (
            f"<object><name>{label}</name><pose>Unspecified</pose><truncated>0</truncated>"
            f"<difficult>0</difficult><bndbox>{tags}</bndbox></object>"
        )
    text(
        path,
        f"<annotation><folder>f</folder><filename>{file or f'{name}.jpg'}</filename>"
        f"<source><database>{database}</database></source><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{things}</annotation>",
    )


@export("LabelImg Pascal VOC")
def labelimg(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "val", "test"), THREE.values()):
        photo(root / f"{folder}/{name}.jpg", name)
        voc(root / f"{folder}/{name}.xml", name)
    return THREE


@export("Pascal VOC challenge")
def voc_challenge(root: Path) -> Splits:
    for split, (name,) in THREE.items():
        photo(root / f"JPEGImages/{name}.jpg", name)
        voc(root / f"Annotations/{name}.xml", name, database="The VOC2007 Database", offset=1)
        text(root / f"ImageSets/Main/{split}.txt", f"{name}\n")
    text(root / "ImageSets/Main/cat_train.txt", "a  1\n")
    return THREE


@export("CVAT Pascal VOC 1.1")
def cvat_voc(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"JPEGImages/{name}.jpg", name)
        voc(root / f"Annotations/{name}.xml", name)
    text(root / "ImageSets/Main/default.txt", "".join(f"{name}\n" for name in ALL))
    text(root / "labelmap.txt", "# label:color_rgb:parts:actions\ncat:1,2,3::\ndog:4,5,6::\n")
    return ONE


@export("Roboflow Pascal VOC")
def roboflow_voc(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "valid", "test"), THREE.values()):
        photo(root / f"{folder}/{name}_jpg.rf.0.jpg", name)
        voc(root / f"{folder}/{name}_jpg.rf.0.xml", name, f"{name}_jpg.rf.0.jpg", "roboflow.com")
    return THREE


@export("Label Studio Pascal VOC")
def label_studio_voc(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
        voc(root / f"Annotations/{name}.xml", name, f"{name}.jpg", "MyDatabase")
    return ONE


@export("FiftyOne Pascal VOC")
def fiftyone_voc(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"data/{name}.jpg", name)
        voc(root / f"labels/{name}.xml", name, database="")
    return ONE


# tables


def rows_of(names: Iterable[str], file: str = "{}.jpg", sides: bool = True) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name in names:
        for label, *corners in BOXES[name]:
            rows.append([file.format(name), *(SIZES[name] if sides else ()), label, *corners])
    return rows


TF_HEADER = ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]


@export("TensorFlow CSV")
def tensorflow_csv(root: Path) -> Splits:
    for folder, names in {"train": ("a", "b"), "test": ("c",)}.items():
        for name in names:
            photo(root / f"images/{folder}/{name}.jpg", name)
        table(root / f"images/{folder}_labels.csv", [TF_HEADER, *rows_of(names)])
    return {"train": ("a", "b"), "test": ("c",)}


@export("Roboflow CSV")
def roboflow_csv(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "valid", "test"), THREE.values()):
        photo(root / f"{folder}/{name}.jpg", name)
        table(root / f"{folder}/_annotations.csv", [TF_HEADER, *rows_of([name])])
    return THREE


@export("Kaggle CSV, bbox in text")
def kaggle_wheat(root: Path) -> Splits:
    rows: list[list[Any]] = [["image_id", "width", "height", "bbox", "source", "label"]]
    for name in ALL:
        photo(root / f"train/{name}.jpg", name)
        for label, x1, y1, x2, y2 in BOXES[name]:
            box = str([float(x1), float(y1), float(x2 - x1), float(y2 - y1)])
            rows.append([name, *SIZES[name], box, "usask_1", label])
    table(root / "train.csv", rows)
    return ONE


@export("Kaggle CSV, x y w h as TSV")
def kaggle_sides(root: Path) -> Splits:
    rows: list[list[Any]] = [["Image Name", "Label", "X", "Y", "Width", "Height"]]
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
        for label, x1, y1, x2, y2 in BOXES[name]:
            rows.append([name, label, x1, y1, x2 - x1, y2 - y1])
    table(root / "labels.tsv", rows, "\t")
    return ONE


@export("keras-retinanet CSV")
def keras_csv(root: Path) -> Splits:
    for split, names in {"train": ("a", "b"), "val": ("c",)}.items():
        for name in names:
            photo(root / f"img/{name}.jpg", name)
        rows = rows_of(names, "img/{}.jpg", sides=False)
        table(root / f"{split}.csv", [[file, *box, label] for file, label, *box in rows])
    table(root / "classes.csv", [["cat", 0], ["dog", 1]])
    return {"train": ("a", "b"), "val": ("c",)}


# files of their own


def labelme_entry(name: str, image: str) -> dict[str, Any]:
    width, height = SIZES[name]
    shapes = [
        {"label": label, "points": [[x2, y2], [x1, y1]], "shape_type": "rectangle", "flags": {}}
        for label, x1, y1, x2, y2 in BOXES[name]
    ]
    sides = {"imageHeight": height, "imageWidth": width}
    return {"imageData": None, "imagePath": image, **sides, "version": "5.4.1", "shapes": shapes}


@export("LabelMe")
def labelme(root: Path) -> Splits:
    for split, (name,) in THREE.items():
        photo(root / f"{split}/{name}.jpg", name)
        dump(root / f"{split}/{name}.json", labelme_entry(name, f"{name}.jpg"))
    return THREE


@export("LabelMe, json apart")
def labelme_apart(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
        dump(root / f"annotations/{name}.json", labelme_entry(name, f"..\\images\\{name}.jpg"))
    return ONE


@export("CVAT for images 1.1")
def cvat_xml(root: Path) -> Splits:
    images = ""
    for number, (subset, (name,)) in enumerate(
        zip(("Train", "Validation", "Test"), THREE.values())
    ):
        photo(root / f"images/{subset}/{name}.jpg", name)
        width, height = SIZES[name]
        boxes = "".join(
            f'<box label="{label}" occluded="0" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"/>'
            for label, x1, y1, x2, y2 in BOXES[name]
        )
        facts = f'id="{number}" name="{name}.jpg" subset="{subset}"'
        images += f'<image {facts} width="{width}" height="{height}">{boxes}</image>'
    text(root / "annotations.xml", f"<annotations><version>1.1</version>{images}</annotations>")
    return THREE


def open_rows(names: Iterable[str]) -> list[list[Any]]:
    header = [
        "ImageID",
        "Source",
        "LabelName",
        "Confidence",
        "XMin",
        "XMax",
        "YMin",
        "YMax",
        "IsOccluded",
        "IsGroupOf",
    ]
    rows: list[list[Any]] = [header]
    for name in names:
        width, height = SIZES[name]
        for label, x1, y1, x2, y2 in BOXES[name]:
            box = [x1 / width, x2 / width, y1 / height, y2 / height]
            rows.append([name, "xclick", f"/m/{NAMES.index(label)}", 1, *box, 0, 0])
    return rows


@export("OpenImages v4")
def openimages_v4(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "validation", "test"), THREE.values()):
        photo(root / f"{folder}/{name}.jpg", name)
        table(root / f"{folder}-annotations-bbox.csv", open_rows([name]))
    table(root / "class-descriptions-boxable.csv", [["/m/0", "cat"], ["/m/1", "dog"]])
    return THREE


@export("OpenImages v7")
def openimages_v7(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"train/{name}.jpg", name)
    table(root / "oidv6-train-annotations-bbox.csv", open_rows(ALL))
    names = [["LabelName", "DisplayName"], ["/m/0", "cat"], ["/m/1", "dog"]]
    table(root / "oidv7-class-descriptions-boxable.csv", names)
    return ONE


@export("FiftyOne OpenImages")
def fiftyone_openimages(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"train/data/{name}.jpg", name)
    table(root / "train/labels/detections.csv", open_rows(ALL))
    table(root / "train/metadata/classes.csv", [["/m/0", "cat"], ["/m/1", "dog"]])
    return ONE


def automl(names: Iterable[str], url: str) -> list[dict[str, Any]]:
    entries = []
    for name in names:
        width, height = SIZES[name]
        labels = []
        for label, x1, y1, x2, y2 in BOXES[name]:
            corners = {"topX": x1 / width, "topY": y1 / height}
            corners |= {"bottomX": x2 / width, "bottomY": y2 / height}
            labels.append({"label": label, **corners, "isCrowd": 0})
        details = {"format": "jpg", "width": f"{width}px", "height": f"{height}px"}
        entries.append({"image_url": url.format(name), "image_details": details, "label": labels})
    return entries


AZUREML = (
    "azureml://subscriptions/s/resourcegroups/r/workspaces/w/datastores/d/paths/pets/images/{}.jpg"
)


@export("Azure AutoML JSONL")
def automl_jsonl(root: Path) -> Splits:
    for folder, names in {"training": ("a", "b"), "validation": ("c",)}.items():
        for name in names:
            photo(root / f"images/{name}.jpg", name)
        file = f"{folder}-mltable-folder/{folder[:5]}_annotations.jsonl"
        lines(root / file, automl(names, AZUREML))
        paths = f"paths:\n  - file: ./{folder[:5]}_annotations.jsonl\n"
        read = "transformations:\n  - read_json_lines:\n        encoding: utf8\n"
        text(root / f"{folder}-mltable-folder/MLTable", paths + read)
    return {"train": ("a", "b"), "val": ("c",)}


@export("Azure ML data labelling, JSONL")
def azure_ml_jsonl(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"pets/{name}.jpg", name)
    lines(root / "labels.jsonl", automl(ALL, "AmlDatastore://workspaceblobstore/pets/{}.jpg"))
    return ONE


@export("Azure MLTable that points elsewhere")
def mltable(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
    lines(root.parent / f"{root.name}-lines/all.jsonl", automl(ALL, AZUREML))
    text(root / "MLTable", f"paths:\n  - file: ../{root.name}-lines/all.jsonl\n")
    return ONE


@export("Hugging Face imagefolder")
def imagefolder(root: Path) -> Splits:
    for split, (name,) in zip(("train", "validation", "test"), THREE.values()):
        photo(root / f"{split}/{name}.png", name)
        boxes = [[x1, y1, x2 - x1, y2 - y1] for _, x1, y1, x2, y2 in BOXES[name]]
        objects = {"bbox": boxes, "categories": [box[0] for box in BOXES[name]]}
        lines(root / f"{split}/metadata.jsonl", [{"file_name": f"{name}.png", "objects": objects}])
    return THREE


@export("Hugging Face imagefolder, csv")
def imagefolder_csv(root: Path) -> Splits:
    rows: list[list[Any]] = [["file_name", "objects"]]
    for name in ALL:
        photo(root / f"train/{name}.png", name)
        boxes = [[x1, y1, x2 - x1, y2 - y1] for _, x1, y1, x2, y2 in BOXES[name]]
        objects = {"bbox": boxes, "categories": [box[0] for box in BOXES[name]]}
        rows.append([f"{name}.png", json.dumps(objects)])
    table(root / "train/metadata.csv", rows)
    return ONE


@export("Create ML json")
def createml(root: Path) -> Splits:
    for folder, (name,) in zip(("train", "valid", "test"), THREE.values()):
        photo(root / f"{folder}/{name}.jpg", name)
        boxes = []
        for label, x1, y1, x2, y2 in BOXES[name]:
            at = {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}
            boxes.append({"label": label, "coordinates": at})
        entry = {"image": f"{name}.jpg", "annotations": boxes}
        dump(root / f"{folder}/_annotations.createml.json", [entry])
    return THREE


def via_regions(name: str) -> list[dict[str, Any]]:
    regions = []
    for label, x1, y1, x2, y2 in BOXES[name]:
        shape = {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
        regions.append({"shape_attributes": shape, "region_attributes": {"type": label}})
    return regions


def via_images() -> dict[str, Any]:
    images = {}
    for name in ALL:
        entry = {"filename": f"{name}.jpg", "size": 1234, "regions": via_regions(name)}
        images[f"{name}.jpg1234"] = {**entry, "file_attributes": {}}
    return images


@export("VIA json")
def via_json(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"{name}.jpg", name)
    dump(root / "via_region_data.json", via_images())
    return ONE


@export("VIA project")
def via_project(root: Path) -> Splits:
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
    dump(root / "via_project.json", {"_via_settings": {}, "_via_img_metadata": via_images()})
    return ONE


@export("VIA CSV")
def via_csv(root: Path) -> Splits:
    header = "filename file_size file_attributes region_count region_id "
    header += "region_shape_attributes region_attributes"
    rows: list[list[Any]] = [header.split()]
    for name in ALL:
        photo(root / f"{name}.jpg", name)
        regions = via_regions(name)
        for number, region in enumerate(regions):
            attributes = [json.dumps(value) for value in region.values()]
            rows.append([f"{name}.jpg", 1234, "{}", len(regions), number, *attributes])
    table(root / "via_region_data.csv", rows)
    return ONE


@export("SageMaker manifest")
def sagemaker(root: Path) -> Splits:
    entries = []
    for name in ALL:
        photo(root / f"images/{name}.jpg", name)
        width, height = SIZES[name]
        boxes = []
        for label, x1, y1, x2, y2 in BOXES[name]:
            box = {"left": x1, "top": y1, "width": x2 - x1, "height": y2 - y1}
            boxes.append({"class_id": NAMES.index(label), **box})
        sides = [{"width": width, "height": height, "depth": 3}]
        named = {"class-map": {"0": "cat", "1": "dog"}, "type": "groundtruth/object-detection"}
        entries.append(
            {
                "source-ref": f"s3://bucket/pets/images/{name}.jpg",
                "pets": {"image_size": sides, "annotations": boxes},
                "pets-metadata": named,
            }
        )
    lines(root / "output.manifest", entries)
    return ONE


def percents(name: str) -> list[dict[str, Any]]:
    width, height = SIZES[name]
    values = []
    for label, x1, y1, x2, y2 in BOXES[name]:
        corner = {"x": 100 * x1 / width, "y": 100 * y1 / height}
        sides = {"width": 100 * (x2 - x1) / width, "height": 100 * (y2 - y1) / height}
        values.append({**corner, **sides, "rotation": 0, "rectanglelabels": [label]})
    return values


@export("Label Studio JSON_MIN")
def label_studio_min(root: Path) -> Splits:
    entries = []
    for number, name in enumerate(ALL, start=1):
        photo(root / f"images/1a2b-{name}.jpg", name)
        width, height = SIZES[name]
        size = {"original_width": width, "original_height": height}
        labels = [value | size for value in percents(name)]
        image = f"/data/upload/1/1a2b-{name}.jpg"
        facts = {"id": number, "annotator": 1, "annotation_id": number, "lead_time": 3.2}
        entries.append({"image": image, "label": labels, **facts})
    dump(root / "project-1-at-2024-01-31.json", entries)
    return ONE


@export("Label Studio JSON")
def label_studio_json(root: Path) -> Splits:
    entries = []
    for number, name in enumerate(ALL, start=1):
        photo(root / f"photos/{name}.jpg", name)
        width, height = SIZES[name]
        size = {"original_width": width, "original_height": height, "type": "rectanglelabels"}
        result = [{"value": value, **size} for value in percents(name)]
        data = {"image": f"/data/local-files/?d=photos/{name}.jpg"}
        entries.append({"id": number, "annotations": [{"result": result}], "data": data})
    dump(root / "project-1.json", entries)
    return ONE
