"""Tables of CSV and TSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.exports.base import (
    ALL,
    BOXES,
    NAMES,
    ONE,
    SIZES,
    THREE,
    TWO,
    VALID,
    VALIDATION,
    Splits,
    export,
    photo,
    photos,
    table,
)


def rows_of(names: Iterable[str], file: str = "{}.jpg", sides: bool = True) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name in names:
        for label, *corners in BOXES[name]:
            rows.append([file.format(name), *(SIZES[name] if sides else ()), label, *corners])
    return rows


TF_HEADER = ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]


@export("TensorFlow CSV")
def tensorflow_csv(root: Path) -> Splits:
    splits = {"train": ("a", "b"), "test": ("c",)}
    for folder, names in splits.items():
        photos(root / f"images/{folder}", "{}.jpg", names)
        table(root / f"images/{folder}_labels.csv", [TF_HEADER, *rows_of(names)])
    return splits


@export("Roboflow CSV")
def roboflow_csv(root: Path) -> Splits:
    for folder, name in zip(VALID, ALL, strict=True):
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
    photos(root, "img/{}.jpg")
    for split, names in TWO.items():
        rows = rows_of(names, "img/{}.jpg", sides=False)
        table(root / f"{split}.csv", [[file, *box, label] for file, label, *box in rows])
    table(root / "classes.csv", [["cat", 0], ["dog", 1]])
    return TWO


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
    for folder, name in zip(VALIDATION, ALL, strict=True):
        photo(root / f"{folder}/{name}.jpg", name)
        table(root / f"{folder}-annotations-bbox.csv", open_rows([name]))
    table(root / "class-descriptions-boxable.csv", [["/m/0", "cat"], ["/m/1", "dog"]])
    return THREE


@export("OpenImages v7")
def openimages_v7(root: Path) -> Splits:
    photos(root, "train/{}.jpg")
    table(root / "oidv6-train-annotations-bbox.csv", open_rows(ALL))
    names = [["LabelName", "DisplayName"], ["/m/0", "cat"], ["/m/1", "dog"]]
    table(root / "oidv7-class-descriptions-boxable.csv", names)
    return ONE


@export("FiftyOne OpenImages")
def fiftyone_openimages(root: Path) -> Splits:
    photos(root, "train/data/{}.jpg")
    table(root / "train/labels/detections.csv", open_rows(ALL))
    table(root / "train/metadata/classes.csv", [["/m/0", "cat"], ["/m/1", "dog"]])
    return ONE
