"""Detections in the files that other tools import.

* FiftyOneImageDetectionDataset: https://docs.voxel51.com/user_guide/import_datasets.html
* Label Studio's predictions: https://labelstud.io/guide/predictions
* CVAT for images 1.1: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from retina_dist.base.text import escape
from retina_dist.detection.detector import Detection


class Predicted(NamedTuple):
    """The objects in an image of `width` x `height` px as it is displayed.

    `name` is its path below the common folder.
    """

    name: str
    width: int
    height: int
    objects: list[Detection]


def fiftyone(images: Sequence[Predicted], classes: Sequence[str]) -> str:
    """labels.json of a FiftyOneImageDetectionDataset; boxes are shares of the image's width and
    height.
    """
    labels = {}
    for image in images:
        found = []
        for o in image.objects:
            found.append(
                {
                    "label": o["category_name"],
                    "bounding_box": _shares(o, image),
                    "confidence": o["score"],
                }
            )
        labels[str(Path(image.name).with_suffix(""))] = found
    return json.dumps({"classes": list(classes), "labels": labels}, indent=1) + "\n"


def label_studio(images: Sequence[Predicted], classes: Sequence[str]) -> str:
    """Tasks with predictions, for an interface with the names `image` and `label`.

    Names of files are relative to LOCAL_FILES_DOCUMENT_ROOT.
    """
    tasks = []
    for image in images:
        result = []
        for number, o in enumerate(image.objects):
            percents = [100 * share for share in _shares(o, image)]
            result.append(
                {
                    "id": str(number),
                    "type": "rectanglelabels",
                    "from_name": "label",
                    "to_name": "image",
                    "original_width": image.width,
                    "original_height": image.height,
                    "image_rotation": 0,
                    "value": {
                        **dict(zip(("x", "y", "width", "height"), percents, strict=True)),
                        "rotation": 0,
                        "rectanglelabels": [o["category_name"]],
                    },
                    "score": o["score"],
                }
            )
        prediction = {
            "model_version": "retina_dist",
            "score": max((o["score"] for o in image.objects), default=0.0),
            "result": result,
        }
        file = quote(image.name, errors="surrogateescape")
        tasks.append(
            {"data": {"image": f"/data/local-files/?d={file}"}, "predictions": [prediction]}
        )
    return json.dumps(tasks, indent=1) + "\n"


def cvat(images: Sequence[Predicted], classes: Sequence[str]) -> str:
    """CVAT's XML 1.1; it has no scores, so choose `score_threshold` before."""
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    for number, image in enumerate(images):
        node = ElementTree.SubElement(
            root,
            "image",
            {
                "id": str(number),
                "name": escape(image.name),
                "width": str(image.width),
                "height": str(image.height),
            },
        )
        for o in image.objects:
            x, y, width, height = o["bbox"]
            attributes = {
                "label": o["category_name"],
                "source": "auto",
                "occluded": "0",
                "z_order": "0",
                "xtl": f"{x:.2f}",
                "ytl": f"{y:.2f}",
                "xbr": f"{x + width:.2f}",
                "ybr": f"{y + height:.2f}",
            }
            ElementTree.SubElement(node, "box", attributes)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


Writer = Callable[[Sequence[Predicted], Sequence[str]], str]
TOOLS: dict[str, tuple[str, Writer]] = {
    "fiftyone": ("labels.json", fiftyone),
    "label_studio": ("label_studio.json", label_studio),
    "cvat": ("annotations.xml", cvat),
}


def _shares(o: Detection, image: Predicted) -> list[float]:
    x, y, width, height = o["bbox"]
    return [x / image.width, y / image.height, width / image.width, height / image.height]
