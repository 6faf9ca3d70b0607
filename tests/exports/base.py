"""The three photos, their boxes, and what writes files of them; the table of exports."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Box = tuple[str, int, int, int, int]  # class, x1, y1, x2, y2
Splits = Mapping[str, Sequence[str]]  # photos by split
Export = Callable[[Path], Splits]

NAMES = ("cat", "dog")
SIZES = {"a": (64, 48), "b": (80, 60), "c": (50, 40)}  # (width, height)
BOXES: dict[str, list[Box]] = {
    "a": [("dog", 4, 6, 40, 30), ("cat", 10, 12, 20, 44)],
    "b": [("cat", 8, 15, 72, 45)],
    "c": [("dog", 5, 10, 45, 30)],
}
ALL = ("a", "b", "c")
THREE = {"train": ("a",), "val": ("b",), "test": ("c",)}
TWO = {"train": ("a", "b"), "val": ("c",)}
ONE = {"train": ALL}
# the folders of the splits that hold one photo each
VAL = ("train", "val", "test")
VALID = ("train", "valid", "test")
VALIDATION = ("train", "validation", "test")
SUBSETS = ("Train", "Validation", "Test")

EXPORTS: dict[str, Export] = {}


def export(tool: str) -> Callable[[Export], Export]:
    """Add a function to the table."""

    def add(write: Export) -> Export:
        EXPORTS[tool] = write
        return write

    return add


def photo(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = SIZES[name]
    rng = np.random.default_rng(ord(name))
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def photos(root: Path, image: str, names: Iterable[str] = ALL) -> None:
    """A photo for each name, which `{}` stands for."""
    for name in names:
        photo(root / image.format(name), name)


def pairs(
    root: Path,
    image: str,
    label: str,
    write: Callable[[Path, str], None],
    folders: Sequence[str] = ("", "", ""),
) -> None:
    """Each photo and what `write` writes of it, by two paths with `{name}` and perhaps `{folder}`,
    the one of `folders` in its place.
    """
    for folder, name in zip(folders, ALL, strict=True):
        photo(root / image.format(name=name, folder=folder), name)
        write(root / label.format(name=name, folder=folder), name)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def dump(path: Path, content: Any) -> None:
    text(path, json.dumps(content))


def lines(path: Path, entries: Iterable[Any]) -> None:
    text(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def table(path: Path, rows: Iterable[Sequence[Any]], delimiter: str = ",") -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    text(path, file.getvalue())
