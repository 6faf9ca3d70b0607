"""keras-retinanet's CSV annotations, as COCO.

One object a row, `path,x1,y1,x2,y2,class`; an image without objects is one row `path,,,,,`. The class file
has rows `class,index`. https://github.com/fizyr/keras-retinanet#csv-datasets
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from retina_dist.errors import DataError, UserError
from retina_dist.files import PathOrUrl, read_bytes
from retina_dist.text import parse_number

MAX_DIGITS = 15  # of a class index; int() refuses some thousands of them


def read_csv(annotations: PathOrUrl, classes: PathOrUrl) -> dict[str, Any]:
    """The files as one COCO dict: category ids are the indices of the class file, image ids count from 1 in order of
    appearance, sizes are left to the images. Raises DataError naming file and line.
    """
    categories = _read_classes(classes)
    images: dict[str, int] = {}
    boxes: list[dict[str, Any]] = []
    for line, row in _rows(annotations, columns=6):
        name, *corners, label = row
        if not name:
            raise DataError(f"{annotations}:{line} names no image; write path,x1,y1,x2,y2,class.")
        image_id = images.setdefault(name, len(images) + 1)
        if not label and not any(corners):
            continue
        if label not in categories:
            if line == 1 and not any(map(math.isfinite, map(parse_number, corners))):
                raise DataError(f"{annotations}: line 1 is a header; remove it.")
            raise DataError(f"{annotations}:{line} has class {label!r}, which {classes} does not list; add it there.")
        x1, y1, x2, y2 = (_number(text, annotations, line) for text in corners)
        if x2 <= x1 or y2 <= y1:
            raise DataError(
                f"{annotations}:{line} has x1,y1,x2,y2 = {x1:g},{y1:g},{x2:g},{y2:g}; x2 and y2 must be larger."
            )
        boxes.append(
            {
                "id": len(boxes) + 1,
                "image_id": image_id,
                "category_id": categories[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
        )
    return {
        "images": [{"id": i, "file_name": name} for name, i in images.items()],
        "annotations": boxes,
        "categories": [{"id": i, "name": name} for name, i in categories.items()],
    }


def _read_classes(path: PathOrUrl) -> dict[str, int]:
    categories: dict[str, int] = {}
    taken: set[int] = set()
    for line, (name, index) in _rows(path, columns=2):
        if not index.isascii() or not index.strip().isdecimal() or len(index) > MAX_DIGITS:
            raise DataError(f"{path}:{line} has index {index[:80]!r}, not a whole number; write class,index.")
        if name in categories or int(index) in taken:
            raise DataError(f"{path}:{line} gives class {name!r} or index {index} a second time.")
        categories[name] = int(index)
        taken.add(int(index))
    if not categories:
        raise DataError(f"{path} lists no class; write one class,index a row.")
    return categories


def _rows(path: PathOrUrl, columns: int) -> Iterator[tuple[int, list[str]]]:
    try:
        reader = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""))
        for row in reader:
            if not row:
                continue
            if len(row) != columns:
                form = "path,x1,y1,x2,y2,class" if columns == 6 else "class,index"
                raise DataError(
                    f"{path}:{reader.line_num} has {len(row)} columns, not {columns}; write {form}, separated by commas."
                )
            yield reader.line_num, row
    except FileNotFoundError as error:
        key, form = ("train_annotations", "path,x1,y1,x2,y2,class") if columns == 6 else ("classes", "class,index")
        raise DataError(f"{path} does not exist; write {form} into it, or name it with data.{key}=FILE.") from error
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}).") from error


def _number(text: str, path: PathOrUrl, line: int) -> float:
    value = parse_number(text)
    if not math.isfinite(value):
        raise DataError(f"{path}:{line} has {text[:80]!r} where a coordinate in pixels belongs.")
    return value
