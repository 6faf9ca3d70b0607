"""Boxes as rows of CSV, as keras-retinanet has them.
https://github.com/fizyr/keras-retinanet#csv-datasets
"""

from __future__ import annotations

from collections.abc import Iterator

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, parse_path
from retina_dist.detection.readers.formats import Content, FileReader, Place, content_of
from retina_dist.detection.readers.items import Box, Item, Items
from retina_dist.detection.readers.parsing import csv_rows, numbers_in
from retina_dist.detection.settings import FILE_SETTINGS

MAX_DIGITS = 15  # of a class index; int() refuses some thousands of them
ROW = "path,x1,y1,x2,y2,class"


class CsvReader(FileReader):
    """train.csv, val.csv and classes.csv, or files that settings name."""

    title = "keras-retinanet CSV"
    file_settings = [key for key in FILE_SETTINGS if key != "box_format"]

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        return any(root.glob("train.csv"))

    def find_in(self, root: PathOrUrl, split: str) -> Place | None:
        is_optional = split == "val" and self.settings.val_fraction
        if is_optional and not any(root.glob("val.csv")):
            return None
        return Place(root / f"{split}.csv", root, split)

    def read_place(self, place: Place) -> Content:
        classes = place.annotations.parent / "classes.csv"
        if self.settings.classes:
            classes = parse_path(self.settings.classes)
        items = read_csv(place.annotations, classes, place.images)
        return content_of(items, place.annotations, self.settings.max_pixels)


def read_csv(annotations: PathOrUrl, classes: PathOrUrl, images: PathOrUrl) -> Items:
    """The files as items: ids are the indices of the class file. Raises DataError naming file and
    line.
    """
    ids = _read_classes(classes)
    boxes_of: dict[str, list[Box]] = {}
    for line, (name, *texts, label) in _rows(annotations, ROW, "*_annotations"):
        where = f"{annotations}:{line}"
        if not name:
            raise DataError(f"{where} names no image; write {ROW}.")
        boxes = boxes_of.setdefault(name, [])
        if label or any(texts):
            corners = numbers_in(texts, where, "the coordinate in pixels")
            if label not in ids:
                problem = f"has class {label!r}, which {classes} does not list"
                raise DataError(f"{where} {problem}; add it there.")
            boxes.append(Box(label, corners))
    items = [Item(name, boxes) for name, boxes in boxes_of.items()]
    return Items(items, ids, images)


def _read_classes(path: PathOrUrl) -> dict[str, int]:
    ids: dict[str, int] = {}
    taken: set[int] = set()
    for line, (name, text) in _rows(path, "class,index", "classes"):
        where = f"{path}:{line}"
        if not text.isascii() or not text.strip().isdecimal() or len(text) > MAX_DIGITS:
            problem = f"has index {text[:80]!r}, not a whole number"
            raise DataError(f"{where} {problem}; write class,0 and no header.")
        index = int(text)
        if name in ids or index in taken:
            raise DataError(f"{where} gives class {name!r} or index {text} a second time.")
        ids[name] = index
        taken.add(index)
    if not ids:
        raise DataError(f"{path} lists no class; write one class,index a row.")
    return ids


def _rows(path: PathOrUrl, form: str, key: str) -> Iterator[tuple[int, list[str]]]:
    """The line number and the cells of each row, which has as many as `form`."""
    columns = form.count(",") + 1
    missing = f"write {form} into it, or name it with data.{key}=FILE"
    for line, row in csv_rows(path, missing):
        if len(row) != columns:
            problem = f"has {len(row)} columns, not {columns}"
            raise DataError(f"{path}:{line} {problem}; write {form}.")
        yield line, row
