"""Boxes as rows of CSV: keras-retinanet's files, https://github.com/fizyr/keras-retinanet#csv-datasets, and OpenImages',
https://storage.googleapis.com/openimages/web, in shares of the image.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, read_bytes
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.items import (
    ENDINGS,
    Box,
    Item,
    Items,
    number_in,
    numbered,
    read_text,
    reading,
)

COLUMNS = ("ImageID", "LabelName", "XMin", "YMin", "XMax", "YMax")  # of OpenImages that are read
MAX_DIGITS = 15  # of a class index; int() refuses some thousands of them


def read_csv(annotations: PathOrUrl, classes: PathOrUrl, images: PathOrUrl) -> Items:
    """The files as items: ids are the indices of the class file. Raises DataError naming file and line."""
    ids = _read_classes(classes)
    boxes_of: dict[str, list[Box]] = {}
    for line, (name, *texts, label) in _rows(
        annotations, "path,x1,y1,x2,y2,class", "*_annotations"
    ):
        where = f"{annotations}:{line}"
        if not name:
            raise DataError(f"{where} names no image; write path,x1,y1,x2,y2,class.")
        boxes = boxes_of.setdefault(name, [])
        if label or any(texts):
            corners = [number_in(text, where, "the coordinate in pixels") for text in texts]
            if label not in ids:
                raise DataError(
                    f"{where} has class {label!r}, which {classes} does not list; add it there."
                )
            boxes.append(Box(label, corners))
    return Items([Item(name, boxes) for name, boxes in boxes_of.items()], ids, images)


def _read_classes(path: PathOrUrl) -> dict[str, int]:
    ids: dict[str, int] = {}
    for line, (name, index) in _rows(path, "class,index", "classes"):
        if not index.isascii() or not index.strip().isdecimal() or len(index) > MAX_DIGITS:
            raise DataError(
                f"{path}:{line} has index {index[:80]!r}, not a whole number; write class,0 and no header."
            )
        if name in ids or int(index) in ids.values():
            raise DataError(f"{path}:{line} gives class {name!r} or index {index} a second time.")
        ids[name] = int(index)
    if not ids:
        raise DataError(f"{path} lists no class; write one class,index a row.")
    return ids


def _rows(path: PathOrUrl, form: str, key: str) -> Iterator[tuple[int, list[str]]]:
    columns = form.count(",") + 1
    with reading(path, "CSV", missing=f"write {form} into it, or name it with data.{key}=FILE"):
        reader = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""))
        for row in filter(None, reader):
            if len(row) != columns:
                raise DataError(
                    f"{path}:{reader.line_num} has {len(row)} columns, not {columns}; write {form}."
                )
            yield reader.line_num, row


def read_openimages(root: Path, split: str) -> Items | None:
    """The images of a split's boxes; None for a validation split that is not there. Boxes of groups become crowd regions.

    Classes are taken from the files of all splits and named by class-descriptions*.csv. Raises DataError naming file and line.
    """
    files = sorted(root.rglob("*annotations-bbox.csv"))
    own = [file for file in files if any(name in file.name.lower() for name in SPLITS[split])]
    if not own:
        return None
    names: dict[str, str] = {}
    for file in sorted(root.rglob("class-descriptions*.csv")):
        with reading(file, "CSV"):
            names |= {
                row[0]: row[1] for row in csv.reader(io.StringIO(read_text(file))) if len(row) == 2
            }
    boxes_of: dict[str, list[Box]] = {}
    classes = set()
    for file in files:
        with reading(file, "CSV"):
            reader = csv.DictReader(io.StringIO(read_text(file)))
            if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
                raise DataError(
                    f"{file}: line 1 lacks the column {missing[0]}; give OpenImages' own file."
                )
            for row in reader:
                if not (label := row["LabelName"]):
                    raise DataError(f"{file}:{reader.line_num} has no LabelName; restore the file.")
                classes.add(name := names.get(label, label))
                if file in own:
                    where = f"{file}:{reader.line_num}"
                    corners = [number_in(row[column], where, column) for column in COLUMNS[2:]]
                    boxes_of.setdefault(row["ImageID"], []).append(
                        Box(name, corners, row.get("IsGroupOf") == "1")
                    )
    folders = [
        folder
        for name in SPLITS[split]
        for folder in (f"{name}/", f"{name}/data/", f"images/{name}/")
    ]
    there = [folder for folder in (*folders, "") if (root / folder).is_dir()]
    items = []
    for image, boxes in boxes_of.items():
        candidates = [
            f"{folder}{image}{ending}" for folder in there for ending in (".jpg", *ENDINGS)
        ]
        items.append(
            Item(
                next((file for file in candidates if (root / file).is_file()), candidates[0]), boxes
            )
        )
    return Items(items, numbered(classes), root, shares=True)
