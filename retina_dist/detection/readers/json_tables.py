"""Formats of one json, or of one object a line, for many images: a class says which keys they have
and what each image is.
"""

import json
import os
import posixpath
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from operator import mul
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.yaml_files import load_yaml
from retina_dist.data.images import is_image
from retina_dist.data.parsing import (
    bounds_of,
    csv_cells,
    json_lines,
    parse_json,
    reading,
    turned_bounds,
)
from retina_dist.data.tree import Head, Tree
from retina_dist.detection.readers.formats import FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item, with_sides

CLASS_KEYS = ("class", "label", "name", "type", "category", "object")  # of VIA's attributes

AUTOML_CORNERS = ("topX", "topY", "bottomX", "bottomY")
SIDES = ("x", "y", "width", "height")
EDGES = ("left", "top", "width", "height")

Entry = Mapping[str, Any]


class JsonReader(FolderReader):
    """A format of which `item` reads one image."""

    is_local = False

    @abstractmethod
    def item(self, entry: Any, scan: Scan) -> Item:
        """The image of an entry; what it raises on damage is caught."""

    def entries(self, tree: Tree, file: str) -> Iterable[tuple[int, Any]]:
        """The number and the content of each image."""
        path = tree.root / file
        if not file.lower().endswith(".json"):
            return json_lines(path, f"{self.title}'s json")
        content = parse_json(path, f"{self.title}'s json")
        if isinstance(content, dict):
            content = list(content.values())
        return enumerate(content, start=1)

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterator[Item]:
        for number, entry in self.entries(tree, file):
            with reading(f"{tree.root / file}: image {number}", f"{self.title}'s json"):
                yield self.item(entry, scan)


class AutoMlReader(JsonReader):
    """Azure AutoML's JSON lines for images, in shares of their sides.
    https://learn.microsoft.com/azure/machine-learning/reference-automl-images-schema
    """

    title = "Azure AutoML JSONL"
    endings = (".jsonl",)
    shares = True
    keys = ("image_url", "label")

    @classmethod
    def files(cls, tree: Tree) -> list[str]:
        return super().files(tree) or list(_of_tables(tree))

    def item(self, entry: Entry, scan: Scan) -> Item:
        details = entry.get("image_details") or {}
        sides = [str(details.get(side)).removesuffix("px") for side in ("width", "height")]
        size = None
        if all(map(str.isdecimal, sides)):
            size = (int(sides[0]), int(sides[1]))
        if isinstance(entry["label"], str):
            raise DataError(
                f"{entry['image_url']} has a label and no boxes; train it with task=classification."
            )
        boxes = []
        for one in entry["label"]:
            crowd = str(one.get("isCrowd")).lower() in ("1", "true")
            if "polygon" in one:
                points: list[tuple[float, float]] = []
                for part in one["polygon"]:
                    points += zip(part[::2], part[1::2])
                corners = bounds_of(points)
            else:
                corners = list(map(float, map(one.__getitem__, AUTOML_CORNERS)))
            boxes.append(Box(str(one["label"]), corners, crowd))
        return Item(entry["image_url"], boxes, size)


def _of_tables(tree: Tree) -> Iterator[str]:
    """The JSON lines that local MLTable files name, from the tree's root."""
    for file in tree.ending("mltable"):
        place = tree.root / file
        with reading(place, "an MLTable", "correct it"):
            for path in load_yaml(place)["paths"]:
                lines = posixpath.join(posixpath.dirname(file), str(path.get("file")))
                if lines.endswith(".jsonl") and os.path.isfile(f"{tree.root}/{lines}"):
                    yield posixpath.normpath(lines)


class SageMakerReader(JsonReader):
    """SageMaker Ground Truth's output manifest.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sms-data-output.html
    """

    title = "SageMaker manifest"
    endings = (".manifest", ".jsonl")
    keys = ("source-ref",)

    def item(self, entry: Entry, scan: Scan) -> Item:
        for key, value in entry.items():
            if isinstance(value, dict) and "annotations" in value:
                names = entry[f"{key}-metadata"]["class-map"]
                boxes = []
                for one in value["annotations"]:
                    name = names[str(one["class_id"])]
                    boxes.append(with_sides(name, *map(one.__getitem__, EDGES)))
                sides = value["image_size"][0]
                scan.names.update(map(str, names.values()))
                return Item(entry["source-ref"], boxes, (sides["width"], sides["height"]))
        return Item(entry["source-ref"], ())


class HuggingFaceReader(JsonReader):
    """Hugging Face's imagefolder: metadata.jsonl or metadata.csv beside the images.
    https://huggingface.co/docs/datasets/image_dataset
    """

    title = "Hugging Face imagefolder"
    endings = (".jsonl", ".csv")
    keys = ("file_name", "objects")

    def entries(self, tree: Tree, file: str) -> Iterable[tuple[int, Any]]:
        if file.lower().endswith(".jsonl"):
            yield from super().entries(tree, file)
            return
        for number, cells in csv_cells(tree.root / file):
            with reading(f"{tree.root / file}:{number}", "json"):
                objects = json.loads(cells["objects"].replace("'", '"'))
            yield number, {**cells, "objects": objects}

    def item(self, entry: Entry, scan: Scan) -> Item:
        objects = entry["objects"]
        if isinstance(objects, list):
            columns = [(one["bbox"], _class_in(one)) for one in objects]
        else:
            columns = list(zip(objects["bbox"], _class_in(objects), strict=True))
        boxes = [with_sides(name, *box) for box, name in columns]
        return Item(entry["file_name"], boxes)


def _class_in(entry: Entry) -> Any:
    for key in ("categories", "category", "labels", "label", "class", "classes", "id"):
        if key in entry:
            return entry[key]
    raise KeyError("categories")


class CreateMlReader(JsonReader):
    """Apple's Create ML: centres and sides in pixels.
    https://developer.apple.com/documentation/createml/building-an-object-detector-data-source
    """

    title = "Create ML json"
    endings = (".json",)

    @classmethod
    def matches(cls, head: Head) -> bool:
        is_named = head.has("image") or head.has("imagefilename")
        has_list = head.has("annotations") or head.has("annotation")
        return head.kind == "list" and is_named and has_list

    def item(self, entry: Entry, scan: Scan) -> Item:
        boxes = []
        for one in entry.get("annotations", entry.get("annotation")):  # type: ignore[union-attr]
            x, y, width, height = map(float, map(one["coordinates"].__getitem__, SIDES))
            box = with_sides(one["label"], x - width / 2, y - height / 2, width, height)
            boxes.append(box)
        return Item(entry.get("image") or entry["imagefilename"], boxes)


class ViaReader(JsonReader):
    """The VGG Image Annotator's json, project or CSV.
    https://www.robots.ox.ac.uk/~vgg/software/via
    """

    title = "VIA"
    endings = (".json", ".csv")

    @classmethod
    def matches(cls, head: Head) -> bool:
        if head.kind == "table":
            return head.has("region_shape_attributes", "region_attributes")
        return head.has("_via_img_metadata") or {"filename", "regions"} <= {*head.inner}

    def entries(self, tree: Tree, file: str) -> Iterable[tuple[int, object]]:
        if not file.lower().endswith(".csv"):
            content = parse_json(tree.root / file, "VIA's json")
            content = content.get("_via_img_metadata", content)
            return enumerate(content.values(), start=1)
        images: dict[str, dict[str, Any]] = {}
        for line, cells in csv_cells(tree.root / file):
            name = cells.get("filename", next(iter(cells.values())))  # VIA 1's is #filename
            image = images.setdefault(name, {"filename": name, "regions": []})
            with reading(f"{tree.root / file}:{line}", "VIA's CSV"):
                shape = json.loads(cells["region_shape_attributes"])
                attributes = json.loads(cells["region_attributes"])
            if shape:
                region = {"shape_attributes": shape, "region_attributes": attributes}
                image["regions"].append(region)
        return enumerate(images.values(), start=1)

    def item(self, entry: Entry, scan: Scan) -> Item:
        regions = entry["regions"]
        if isinstance(regions, dict):  # of VIA 1
            regions = list(regions.values())
        boxes = []
        for region in regions:
            corners = _via_corners(region["shape_attributes"])
            if corners is not None:
                name = _via_class(region["region_attributes"], entry["filename"])
                boxes.append(Box(name, corners))
        return Item(entry["filename"], boxes, without_box=len(regions) - len(boxes))


def _via_corners(shape: Entry) -> list[float] | None:
    """The bounding box of a shape; None for a point."""
    kind = shape["name"]
    if kind == "rect":
        return list(with_sides("", *map(shape.get, SIDES)).corners)
    if "all_points_x" in shape:
        return bounds_of(list(zip(shape["all_points_x"], shape["all_points_y"], strict=True)))
    if kind in ("circle", "ellipse"):
        rx = shape.get("r", shape.get("rx"))
        ry = shape.get("r", shape.get("ry"))
        return [shape["cx"] - rx, shape["cy"] - ry, shape["cx"] + rx, shape["cy"] + ry]
    return None


def _via_class(attributes: Entry, image: str) -> str:
    keys = [key for key in CLASS_KEYS if key in attributes] or list(attributes)
    if not keys:
        raise DataError(f"VIA: {image} has a region without an attribute; add one, such as class.")
    value = attributes[keys[0]]
    if isinstance(value, dict):  # checkboxes
        value = next(iter(value))
    return str(value).strip()


class LabelStudioReader(JsonReader):
    """Label Studio's JSON and JSON_MIN, in percent of the image.
    https://labelstud.io/guide/export
    """

    title = "Label Studio json"
    endings = (".json",)
    shares = True

    @classmethod
    def matches(cls, head: Head) -> bool:
        if head.kind != "list":
            return False
        return head.has("annotations", "data") or head.has("annotation_id", "annotator")

    def item(self, entry: Entry, scan: Scan) -> Item:
        task, values = _task_of(entry)
        boxes = []
        size = None
        for value in values:
            if "rectanglelabels" in value:
                width = int(value["original_width"])
                height = int(value["original_height"])
                size = (width, height)
                box = with_sides(value["rectanglelabels"][0], *map(value.get, SIDES))
                scales = (width, height, width, height)
                pixels = list(map(mul, box.corners, scales))
                degrees = float(value.get("rotation") or 0)
                turned = turned_bounds(pixels, degrees, (pixels[0], pixels[1]))
                corners = [each / scale / 100 for each, scale in zip(turned, scales)]
                boxes.append(box._replace(corners=corners))
        names = [text for text in task.values() if isinstance(text, str) and is_image(text)]
        name = task.get("image") or names[0]
        return Item(name, boxes, size, without_box=len(values) - len(boxes))


def _task_of(entry: Entry) -> tuple[Entry, list[Entry]]:
    """The data of a task, and the values of its first annotation."""
    values: list[Entry] = []
    if "data" in entry:
        for annotation in entry["annotations"][:1]:
            values += [{**result, **result["value"]} for result in annotation["result"]]
        return entry["data"], values
    for value in entry.values():
        if isinstance(value, list):
            values += [one for one in value if isinstance(one, dict)]
    return entry, values
