"""OpenImages' CSV files, boxes in shares of the image.
https://storage.googleapis.com/openimages/web
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import names_in
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.formats import FolderReader
from retina_dist.detection.readers.items import Box, Item, Items, numbered
from retina_dist.detection.readers.parsing import ENDINGS, csv_rows, number_in

COLUMNS = ("ImageID", "LabelName", "XMin", "YMin", "XMax", "YMax")  # that are read


def read_openimages(root: Path, split: str) -> Items | None:
    """The images of a split's boxes; None for a split that is not there.

    Boxes of groups become crowd regions. Classes are taken from the files of all splits and named
    by class-descriptions*.csv. Raises DataError naming file and line.
    """
    files = sorted(root.rglob("*annotations-bbox.csv"))
    own = [file for file in files if any(name in file.name.lower() for name in SPLITS[split])]
    if not own:
        return None

    names = _class_names(root)
    classes: set[str] = set()
    boxes_of: dict[str, list[Box]] = {}
    for file in files:
        for where, cells in _rows(file):
            label = cells.get("LabelName")
            if not label:
                raise DataError(f"{where} has no LabelName; restore the file.")
            name = names.get(label, label)
            classes.add(name)
            if file in own:
                corners = [number_in(cells.get(column), where, column) for column in COLUMNS[2:]]
                box = Box(name, corners, cells.get("IsGroupOf") == "1")
                boxes_of.setdefault(cells.get("ImageID", ""), []).append(box)

    files_of = _ImageFiles(root, split)
    items = [Item(files_of.name_of(image), boxes) for image, boxes in boxes_of.items()]
    return Items(items, numbered(classes), root, shares=True)


class OpenImagesReader(FolderReader):
    """A folder with OpenImages' own annotation files, and images in a folder for each split."""

    title = "OpenImages CSV"
    patterns = ("*annotations-bbox.csv", "*/*annotations-bbox.csv")
    read_items = staticmethod(read_openimages)


def _class_names(root: Path) -> dict[str, str]:
    """The name of each label, such as /m/01g317."""
    names: dict[str, str] = {}
    for file in sorted(root.rglob("class-descriptions*.csv")):
        for _, row in csv_rows(file):
            if len(row) == 2:
                names[row[0]] = row[1]
    return names


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """FILE:LINE of each row, and its cells by the header's names, as far as it has them."""
    rows = csv_rows(path)
    _, header = next(rows, (1, []))
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        problem = f"line 1 lacks the column {missing[0]}"
        raise DataError(f"{path}: {problem}; give OpenImages' own file.")
    for line, row in rows:
        yield f"{path}:{line}", dict(zip(header, row, strict=False))


class _ImageFiles:
    """Which file an image's id names: each folder is listed once, not asked for every ending."""

    def __init__(self, root: Path, split: str) -> None:
        places = []
        for name in SPLITS[split]:
            places += [f"{name}/", f"{name}/data/", f"images/{name}/"]
        self.folders = [place for place in (*places, "") if (root / place).is_dir()]
        self.listed = {place: set(names_in(root / place)) for place in self.folders}
        self.root = root

    def name_of(self, image: str) -> str:
        """Relative to the root; the likeliest name where no file is there."""
        for folder in self.folders:
            for ending in (".jpg", *ENDINGS):
                if self._has(folder, f"{image}{ending}"):
                    return f"{folder}{image}{ending}"
        return f"{self.folders[0]}{image}.jpg"

    def _has(self, folder: str, name: str) -> bool:
        if "/" in name:  # below a folder that was not listed
            return os.path.isfile(self.root / folder / name)
        return name in self.listed[folder] and os.path.isfile(self.root / folder / name)
