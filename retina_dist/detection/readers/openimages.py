"""OpenImages' CSV files, boxes in shares of the image.
https://storage.googleapis.com/openimages/web
"""

from collections.abc import Iterable
from functools import cached_property

from retina_dist.base.errors import DataError
from retina_dist.data.parsing import csv_cells, csv_rows, number_in
from retina_dist.data.tree import Tree
from retina_dist.detection.readers.formats import FolderReader, Scan
from retina_dist.detection.readers.items import Box, Item

COLUMNS = ("ImageID", "LabelName", "XMin", "YMin", "XMax", "YMax")  # that are read
MACHINE_NAMES = ("/m/", "/g/", "/t/")  # of classes begin so


class OpenImagesReader(FolderReader):
    """OpenImages' own annotation files, whatever their names, and images in a folder for each
    split.

    Boxes of groups become crowd regions. Classes are those of all splits, named by the files of
    two columns whose first is a class.
    """

    title = "OpenImages CSV"
    endings = (".csv",)
    shares = True
    keys = ("ImageID", "LabelName", "XMin")

    @classmethod
    def files(cls, tree: Tree) -> list[str]:
        found = super().files(tree)
        named = [file for file in tree.ending("annotations-bbox.csv") if file not in found]
        return sorted(found + named)

    @cached_property
    def _titles(self) -> dict[Tree, dict[str, str]]:
        return {}

    def items_of(self, tree: Tree, file: str, scan: Scan) -> Iterable[Item]:
        titles = self._titles.setdefault(tree, {})
        if not titles:
            titles.update(class_titles(tree))
        path = tree.root / file
        boxes_of: dict[str, list[Box]] = {}
        for line, cells in csv_cells(path, COLUMNS):
            where = f"{path}:{line}"
            label = cells.get("LabelName")
            if not label:
                raise DataError(f"{where} has no LabelName; restore the file.")
            corners = []
            for column in COLUMNS[2:]:
                corners.append(number_in(cells.get(column), where, column))
            box = Box(titles.get(label, label), corners, cells.get("IsGroupOf") == "1")
            boxes_of.setdefault(cells.get("ImageID", ""), []).append(box)
        return [Item(f"{image}.jpg", boxes) for image, boxes in boxes_of.items()]


def class_titles(tree: Tree) -> dict[str, str]:
    """The name of each class, such as /m/01g317."""
    titles: dict[str, str] = {}
    for file in tree.ending(".csv"):
        head = tree.head(file)
        is_titles = "class-descriptions" in file
        for cells in filter(None, (head.keys, head.inner)):
            is_titles |= len(cells) == 2 and cells[0].startswith(MACHINE_NAMES)
        if is_titles:
            for _, row in csv_rows(tree.root / file):
                if len(row) == 2:
                    titles[row[0]] = row[1]
    return titles
