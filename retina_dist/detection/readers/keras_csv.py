"""keras-retinanet's CSV: a row for each object, `path,x1,y1,x2,y2,class`, and the class file's rows `class,index`.

An image without objects is one row `path,,,,,`. https://github.com/fizyr/keras-retinanet#csv-datasets
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from retina_dist.detection.readers.items import Box, Item, Items, number_in
from retina_dist.errors import DataError, UserError
from retina_dist.files import PathOrUrl, read_bytes
from retina_dist.text import parse_number

MAX_DIGITS = 15  # of a class index; int() refuses some thousands of them


def read_csv(annotations: PathOrUrl, classes: PathOrUrl, images: PathOrUrl) -> Items:
    """The files as items: ids are the indices of the class file. Raises DataError naming file and line."""
    ids = _read_classes(classes)
    boxes_of: dict[str, list[Box]] = {}
    for line, (name, *corners, label) in _rows(annotations, columns=6):
        if not name:
            raise DataError(f"{annotations}:{line} names no image; write path,x1,y1,x2,y2,class.")
        boxes = boxes_of.setdefault(name, [])
        if not label and not any(corners):
            continue
        if label not in ids:
            if line == 1 and not any(map(math.isfinite, map(parse_number, corners))):
                raise DataError(f"{annotations}: line 1 is a header; remove it.")
            raise DataError(f"{annotations}:{line} has class {label!r}, which {classes} does not list; add it there.")
        where = f"{annotations}:{line}"
        boxes.append(Box(label, [number_in(text, where, "the coordinate in pixels") for text in corners]))
    return Items([Item(name, boxes) for name, boxes in boxes_of.items()], ids, images)


def _read_classes(path: PathOrUrl) -> dict[str, int]:
    ids: dict[str, int] = {}
    for line, (name, index) in _rows(path, columns=2):
        if not index.isascii() or not index.strip().isdecimal() or len(index) > MAX_DIGITS:
            header = ", without a header" if line == 1 else ""
            raise DataError(f"{path}:{line} has index {index[:80]!r}, not a whole number; write class,index{header}.")
        if name in ids or int(index) in ids.values():
            raise DataError(f"{path}:{line} gives class {name!r} or index {index} a second time.")
        ids[name] = int(index)
    if not ids:
        raise DataError(f"{path} lists no class; write one class,index a row.")
    return ids


def _rows(path: PathOrUrl, columns: int) -> Iterator[tuple[int, list[str]]]:
    form, key = ("path,x1,y1,x2,y2,class", "train_annotations") if columns == 6 else ("class,index", "classes")
    try:
        reader = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""))
        for row in reader:
            if row and len(row) != columns:
                raise DataError(
                    f"{path}:{reader.line_num} has {len(row)} columns, not {columns}; write {form}, separated by commas."
                )
            if row:
                yield reader.line_num, row
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; write {form} into it, or name it with data.{key}=FILE.") from error
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}).") from error
