"""YOLO: a text file for each photo."""

from __future__ import annotations

from pathlib import Path

from tests.exports.base import (
    ALL,
    BOXES,
    NAMES,
    ONE,
    SIZES,
    THREE,
    TWO,
    VAL,
    VALID,
    Splits,
    dump,
    export,
    pairs,
    text,
)


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
    pairs(root, "images/{folder}/{name}.jpg", "labels/{folder}/{name}.txt", yolo, VAL)
    splits = "".join(f"{split}: images/{split}\n" for split in THREE)
    text(root / "pets.yaml", f"path: ../datasets/pets\n{splits}names:\n  0: cat\n  1: dog\n")
    return THREE


@export("Roboflow YOLO")
def roboflow_yolo(root: Path) -> Splits:
    pairs(root, "{folder}/images/{name}.jpg", "{folder}/labels/{name}.txt", yolo, VALID)
    folders = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    text(
        root / "data.yaml", f"{folders}\nnc: 2\nnames: ['cat', 'dog']\n\nroboflow:\n  version: 1\n"
    )
    text(root / "README.roboflow.txt", "pets - v1\n")
    return THREE


@export("CVAT YOLO 1.1")
def cvat_yolo(root: Path) -> Splits:
    folders = ("train", "train", "valid")
    pairs(root, "obj_{folder}_data/{name}.jpg", "obj_{folder}_data/{name}.txt", yolo, folders)
    for subset, names in zip(("train", "valid"), TWO.values(), strict=True):
        listed = "".join(f"data/obj_{subset}_data/{name}.jpg\n" for name in names)
        text(root / f"{subset}.txt", listed)
    text(root / "obj.names", "cat\ndog\n")
    files = "train = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n"
    text(root / "obj.data", f"classes = 2\n{files}backup = backup/\n")
    return TWO


@export("CVAT Ultralytics YOLO")
def cvat_ultralytics(root: Path) -> Splits:
    pairs(root, "images/train/{name}.jpg", "labels/train/{name}.txt", yolo)
    text(root / "train.txt", "".join(f"data/images/train/{name}.jpg\n" for name in ALL))
    text(root / "data.yaml", "names:\n  0: cat\n  1: dog\npath: .\ntrain: train.txt\n")
    return ONE


@export("Darknet")
def darknet(root: Path) -> Splits:
    pairs(root, "data/obj/{name}.jpg", "data/obj/{name}.txt", yolo)
    for split, names in zip(("train", "valid"), TWO.values(), strict=True):
        text(root / f"data/{split}.txt", "".join(f"data/obj/{name}.jpg\n" for name in names))
    text(root / "data/obj.names", "cat\ndog\n")
    files = "train=data/train.txt\nvalid=data/valid.txt\nnames=data/obj.names\n"
    text(root / "data/obj.data", f"classes=2\n{files}")
    return TWO


@export("LabelImg YOLO")
def labelimg_yolo(root: Path) -> Splits:
    pairs(root, "{folder}/{name}.jpg", "{folder}/{name}.txt", yolo, VAL)
    for folder in VAL:
        text(root / f"{folder}/classes.txt", "cat\ndog\n")
    return THREE


@export("makesense.ai YOLO")
def makesense_yolo(root: Path) -> Splits:
    pairs(root, "photos/{name}.jpg", "labels_my-project-name_2024-01-31/{name}.txt", yolo)
    text(root / "labels.txt", "cat\ndog\n")
    return ONE


@export("Label Studio YOLO")
def label_studio_yolo(root: Path) -> Splits:
    pairs(root, "images/{name}.jpg", "labels/{name}.txt", yolo)
    text(root / "classes.txt", "cat\ndog\n")
    dump(root / "notes.json", {"categories": [{"id": 0, "name": "cat"}], "info": {"year": 2024}})
    return ONE
