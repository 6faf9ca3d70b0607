"""Json, or json lines, of the tools that have a form of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
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
    VAL,
    VALID,
    VALIDATION,
    Splits,
    dump,
    export,
    lines,
    pairs,
    photo,
    photos,
    table,
    text,
)


def labelme_json(path: Path, name: str, image: str = "{}.jpg") -> None:
    width, height = SIZES[name]
    shapes = [
        {"label": label, "points": [[x2, y2], [x1, y1]], "shape_type": "rectangle", "flags": {}}
        for label, x1, y1, x2, y2 in BOXES[name]
    ]
    sides = {"imageHeight": height, "imageWidth": width}
    facts = {"imageData": None, "imagePath": image.format(name), **sides}
    dump(path, {**facts, "version": "5.4.1", "shapes": shapes})


@export("LabelMe")
def labelme(root: Path) -> Splits:
    pairs(root, "{folder}/{name}.jpg", "{folder}/{name}.json", labelme_json, VAL)
    return THREE


@export("LabelMe, json apart")
def labelme_apart(root: Path) -> Splits:
    write = partial(labelme_json, image="..\\images\\{}.jpg")
    pairs(root, "images/{name}.jpg", "annotations/{name}.json", write)
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
    photos(root, "images/{}.jpg")
    for folder, names in zip(("training", "validation"), TWO.values(), strict=True):
        file = f"{folder}-mltable-folder/{folder[:5]}_annotations.jsonl"
        lines(root / file, automl(names, AZUREML))
        paths = f"paths:\n  - file: ./{folder[:5]}_annotations.jsonl\n"
        read = "transformations:\n  - read_json_lines:\n        encoding: utf8\n"
        text(root / f"{folder}-mltable-folder/MLTable", paths + read)
    return TWO


@export("Azure ML data labelling, JSONL")
def azure_ml_jsonl(root: Path) -> Splits:
    photos(root, "pets/{}.jpg")
    lines(root / "labels.jsonl", automl(ALL, "AmlDatastore://workspaceblobstore/pets/{}.jpg"))
    return ONE


@export("Azure MLTable that points elsewhere")
def mltable(root: Path) -> Splits:
    photos(root, "images/{}.jpg")
    lines(root.parent / f"{root.name}-lines/all.jsonl", automl(ALL, AZUREML))
    text(root / "MLTable", f"paths:\n  - file: ../{root.name}-lines/all.jsonl\n")
    return ONE


@export("Hugging Face imagefolder")
def imagefolder(root: Path) -> Splits:
    for split, name in zip(VALIDATION, ALL, strict=True):
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
    for folder, name in zip(VALID, ALL, strict=True):
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
    photos(root, "{}.jpg")
    dump(root / "via_region_data.json", via_images())
    return ONE


@export("VIA project")
def via_project(root: Path) -> Splits:
    photos(root, "images/{}.jpg")
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


def original_size(name: str) -> dict[str, int]:
    width, height = SIZES[name]
    return {"original_width": width, "original_height": height}


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
        labels = [value | original_size(name) for value in percents(name)]
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
        facts = {"type": "rectanglelabels", **original_size(name)}
        result = [{"value": value, **facts} for value in percents(name)]
        data = {"image": f"/data/local-files/?d=photos/{name}.jpg"}
        entries.append({"id": number, "annotations": [{"result": result}], "data": data})
    dump(root / "project-1.json", entries)
    return ONE
