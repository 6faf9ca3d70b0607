"""Boxes as rows of a table: with a header, whose columns are known by their names, or without one,
as keras-retinanet has them. https://github.com/fizyr/keras-retinanet#csv-datasets
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, parse_path
from retina_dist.base.text import parse_number
from retina_dist.data.images import is_image
from retina_dist.data.parsing import columns_of, csv_rows, numbers_in, reading
from retina_dist.data.settings import SPLITS
from retina_dist.data.tree import Head, Tree, split_of_cell
from retina_dist.detection.readers.formats import FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item, with_sides

MAX_DIGITS = 15  # of a class index; int() refuses some thousands of them
ROW = "path,x1,y1,x2,y2,class"
UNNAMED = "object"  # the class of a table without classes

CORNERS = ("x1", "y1", "x2", "y2")
SIDES = ("x", "y", "w", "h")


def has_boxes(columns: Mapping[str, int]) -> bool:
    """Whether a table with these columns has images and boxes."""
    corners = columns.keys() >= set(CORNERS) or columns.keys() >= set(SIDES)
    return "file" in columns and (corners or "bbox" in columns)


class Row(NamedTuple):
    """A row of a table: its place, and its cells by their columns."""

    where: str
    cells: Mapping[str, str]


class CsvReader(FolderReader):
    """CSV or TSV: SPLIT in its name or its folder; classes.csv beside one without a header."""

    title = "CSV"
    file_settings = (*FolderReader.file_settings, "classes", "columns")
    endings: ClassVar[Sequence[str]] = (".csv", ".tsv")
    is_local = False

    @classmethod
    def matches(cls, head: Head) -> bool:
        if "LabelName" in head.keys:  # OpenImages
            return False
        return has_boxes(columns_of(head.keys)) or _is_headless(head)

    @classmethod
    def claims(cls, tree: Tree) -> bool:
        return bool(tree.select(cls.endings, cls.matches))

    def files(self, tree: Tree) -> list[str]:  # type: ignore[override]
        """The tables, by the names of columns that the settings give."""
        if not tree.is_whole:
            return list(tree.files)
        if not self.settings.columns:
            return tree.select(self.endings, self.matches)
        tables = tree.ending(*self.endings)
        found = list(filter(partial(self._has_boxes, tree), tables))
        if tables and not found:
            header = ", ".join(tree.head(tables[0]).keys)
            problem = f"{tree.root / tables[0]} has no box by data.columns, but {header}"
            raise DataError(f"{problem}; name file, class, x1, y1, x2 and y2 of these.")
        return found

    def _has_boxes(self, tree: Tree, file: str) -> bool:
        return has_boxes(columns_of(tree.head(file).keys, self.settings.columns))

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        path = tree.root / file
        head = tree.head(file)
        columns = columns_of(head.keys, self.settings.columns)
        items: dict[tuple[str, str], Item] = {}
        if has_boxes(columns):
            rows = with_header(path, columns)
            if "class" not in columns:
                unnamed = f"no column names a class, so every box is of the class {UNNAMED}; "
                unnamed += "if one has them under another name, give data.columns=[class:COLUMN]"
                for split in SPLITS:
                    scan.warnings[split] = [unnamed]
        else:
            classes = path.parent / "classes.csv"
            if self.settings.classes:
                classes = parse_path(self.settings.classes)
            scan.ids.update(read_classes(classes))
            rows = without_header(path, scan.ids, classes)
        for where, cells in rows:
            key = (cells["file"], cells.get("split", ""))
            if not key[0]:
                raise DataError(f"{where} names no image; write {ROW}.")
            item = items.get(key)
            named = split_of_cell(key[1])
            if key[1] and not named:
                said = f"{where} has {key[1]!r} as split; write train, val or test"
                scan.warnings["train"] = [said]
            if item is None:
                item = items[key] = Item(key[0], [], _size(cells), named)
            box = _box(where, cells)
            if box is not None:
                item.boxes.append(box)  # type: ignore[attr-defined]
        return items.values()


def _is_headless(head: Head) -> bool:
    cells = head.keys
    if len(cells) != 6 or not is_image(cells[0]):
        return False
    corners = cells[1:5]
    return not any(cells[1:]) or all(parse_number(cell) == parse_number(cell) for cell in corners)


def with_header(path: PathOrUrl, columns: Mapping[str, int]) -> Iterable[Row]:
    """The rows below the header. Raises DataError for a row that is too short."""
    rows = csv_rows(path)
    next(rows)
    last = max(columns.values())
    for line, row in rows:
        if len(row) <= last:
            raise DataError(
                f"{path}:{line} has {len(row)} columns, not {last + 1}; complete the row."
            )
        yield Row(f"{path}:{line}", {name: row[i].strip() for name, i in columns.items()})


def without_header(path: PathOrUrl, ids: Mapping[str, int], classes: PathOrUrl) -> Iterable[Row]:
    """keras-retinanet's rows, whose class must be one of `ids`."""
    for line, cells in _rows(path, ROW, "*_annotations"):
        named = dict(zip(("file", *CORNERS, "class"), cells, strict=True))
        label = named["class"]
        if label and label not in ids:
            raise DataError(
                f"{path}:{line} has class {label!r}, which {classes} does not list; add it there."
            )
        yield Row(f"{path}:{line}", named)


def _size(cells: Mapping[str, str]) -> tuple[int, int] | None:
    sides = [parse_number(cells.get(side, "")) for side in ("width", "height")]
    if not all(side > 0 and side.is_integer() for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def _box(where: str, cells: Mapping[str, str]) -> Box | None:
    """The box of a row; None where all its cells are empty."""
    name = cells.get("class", UNNAMED)
    if cells.get("bbox"):
        with reading(where, "a box [x, y, width, height]", "correct it"):
            return with_sides(name, *json.loads(cells["bbox"]))
    keys = CORNERS if "x1" in cells else SIDES
    texts = [cells.get(key, "") for key in keys]
    if not any(texts) and (not name or name == UNNAMED or "bbox" in cells):
        return None
    corners = numbers_in(texts, where, "the coordinate in pixels")
    if not name:
        raise DataError(f"{where} has a box without a class; add it, or remove the row.")
    if keys == SIDES:
        return with_sides(name, *corners)
    return Box(name, corners)


def read_classes(path: PathOrUrl) -> dict[str, int]:
    """The index of each class of keras-retinanet's class file. Raises DataError."""
    ids: dict[str, int] = {}
    for line, (name, text) in _rows(path, "class,index", "classes"):
        where = f"{path}:{line}"
        if not text.isascii() or not text.strip().isdecimal() or len(text) > MAX_DIGITS:
            raise DataError(
                f"{where} has index {text[:80]!r}, not a whole number; write class,0 and no header."
            )
        index = int(text)
        if name in ids or index in ids.values():
            raise DataError(f"{where} gives class {name!r} or index {text} a second time.")
        ids[name] = index
    if not ids:
        raise DataError(f"{path} lists no class; write one class,index a row.")
    return ids


def _rows(path: PathOrUrl, form: str, key: str) -> Iterable[tuple[int, list[str]]]:
    """The line number and the cells of each row, which has as many as `form`."""
    columns = form.count(",") + 1
    missing = f"write {form} into it, or name it with data.{key}=FILE"
    for line, row in csv_rows(path, missing):
        if len(row) != columns:
            raise DataError(f"{path}:{line} has {len(row)} columns, not {columns}; write {form}.")
        yield line, row
