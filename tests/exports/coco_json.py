"""COCO json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.exports.base import (
    ALL,
    BOXES,
    NAMES,
    ONE,
    SIZES,
    SUBSETS,
    THREE,
    VALID,
    Splits,
    dump,
    export,
    photo,
    photos,
)


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
    photos(root, "images/default/{}.jpg")
    dump(root / "annotations/instances_default.json", coco(ALL))
    return ONE


@export("CVAT COCO 1.0, subsets")
def cvat_coco_subsets(root: Path) -> Splits:
    for split, names in zip(SUBSETS, THREE.values(), strict=True):
        photo(root / f"images/{split}" / f"{names[0]}.jpg", names[0])
        dump(root / f"annotations/instances_{split}.json", coco(names))
    return THREE


@export("Label Studio COCO")
def label_studio_coco(root: Path) -> Splits:
    photos(root, "images/1a2b3c4d-{}.jpg")
    dump(root / "result.json", coco(ALL, "images\\1a2b3c4d-{}.jpg", first=0))
    return ONE


@export("FiftyOne COCO")
def fiftyone_coco(root: Path) -> Splits:
    photos(root, "data/{}.jpg")
    dump(root / "labels.json", coco(ALL))
    return ONE


@export("Roboflow COCO")
def roboflow_coco(root: Path) -> Splits:
    for folder, names in zip(VALID, THREE.values(), strict=True):
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
    photos(root, "{}.jpg")
    dump(root / "via_export_coco.json", content)
    return ONE


@export("makesense.ai COCO")
def makesense_coco(root: Path) -> Splits:
    content = coco(ALL)
    for image in content["images"]:
        image |= {"width": float(image["width"]), "height": float(image["height"])}
    photos(root, "img/{}.jpg")
    dump(root / "labels_my-project-name_2024-01-31-09-12-00.json", content)
    return ONE


@export("COCO of another machine")
def coco_elsewhere(root: Path) -> Splits:
    photos(root, "photos/raw/{}.jpg")
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
    photos(root, "pets/{}.jpg")
    dump(root / "coco.json", content)
    return ONE
