"""LabelMe: a json beside each image, with a list of shapes. https://github.com/wkentaro/labelme"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from retina_dist.base.files import read_bytes
from retina_dist.base.text import pluralize
from retina_dist.detection.readers.items import Box, Item, Items, numbered, reading, split_of


def read_labelme(root: Path, split: str) -> Items:
    """The images of a split, by the folders that name one. Polygons, circles and other shapes are read as their bounding boxes.

    Points have no box; they are left out with a warning. Raises DataError naming file and shape.
    """
    items, names, points = [], set(), 0
    for path in sorted(root.rglob("*.json")):
        with reading(path, "LabelMe's json"):
            content = json.loads(read_bytes(path))
            if not isinstance(content, dict) or "shapes" not in content:
                continue
            name = content["imagePath"].replace("\\", "/")
            beside = path.parent / name.rpartition("/")[2]
            file = os.path.relpath(beside if beside.is_file() else path.parent / name, root)
            width, height = (
                content.get("imageWidth"),
                content.get("imageHeight"),
            )  # not in files of old versions
            size = None if width is None or height is None else (int(width), int(height))
            shapes = [(str(shape["label"]), _corners(shape)) for shape in content["shapes"]]
        boxes = [Box(name, corners) for name, corners in shapes if corners]
        names |= {box.name for box in boxes}
        if split_of(str(path.relative_to(root))) == split:
            points += len(shapes) - len(boxes)
            items.append(Item(file, boxes, size))
    warnings = (
        [f"{root}: {pluralize(points, 'point')} of LabelMe left out, which have no box"]
        if points
        else []
    )
    return Items(items, numbered(names), root, warnings=warnings)


def _corners(shape: dict[str, Any]) -> list[float] | None:
    if shape["label"] is None:
        raise ValueError("a shape has no label")
    points = [(float(x), float(y)) for x, y in shape["points"]]
    if not all(map(math.isfinite, sum(points, ()))):
        raise ValueError(f"a shape of {shape['label']} has points that are not finite")
    if shape.get("shape_type") == "circle" and len(points) == 2:
        (x, y), edge = points
        radius = math.dist((x, y), edge)
        points = [(x - radius, y - radius), (x + radius, y + radius)]
    if len(points) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]
