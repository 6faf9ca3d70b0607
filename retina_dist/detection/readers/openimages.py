"""OpenImages: `*annotations-bbox.csv`, a row for each box in shares of the image. https://storage.googleapis.com/openimages/web"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from retina_dist.detection.readers.items import ENDINGS, SPLITS, Box, Item, Items, number_in, numbered
from retina_dist.errors import DataError
from retina_dist.files import read_bytes

COLUMNS = ("ImageID", "LabelName", "XMin", "YMin", "XMax", "YMax")


def read_openimages(root: Path, split: str) -> Items | None:
    """The images of a split's boxes; None for a validation split that is not there. Boxes of groups become crowd regions.

    Classes are those of the files of all splits, named by class-descriptions*.csv. Raises DataError naming file and line.
    """
    files = sorted(root.rglob("*annotations-bbox.csv"))
    own = [file for file in files if any(name in file.name.lower() for name in SPLITS[split])]
    if not own:
        return None
    names: dict[str, str] = {}
    for file in sorted(root.rglob("class-descriptions*.csv")):
        names |= {row[0]: row[1] for row in csv.reader(io.StringIO(_text(file))) if len(row) == 2}
    boxes_of: dict[str, list[Box]] = {}
    classes = set()
    for file in files:
        reader = csv.DictReader(io.StringIO(_text(file)))
        if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
            raise DataError(f"{file}: line 1 lacks the column {missing[0]}; give OpenImages' own file.")
        for row in reader:
            name = names.get(row["LabelName"], row["LabelName"])
            classes.add(name)
            if file in own:
                where = f"{file}:{reader.line_num}"
                corners = [number_in(row[column], where, column) for column in COLUMNS[2:]]
                boxes_of.setdefault(row["ImageID"], []).append(Box(name, corners, row.get("IsGroupOf") == "1"))
    folders = [folder for name in SPLITS[split] for folder in (f"{name}/", f"{name}/data/", f"images/{name}/")]
    there = [folder for folder in (*folders, "") if (root / folder).is_dir()]
    items = []
    for image, boxes in boxes_of.items():
        candidates = [f"{folder}{image}{ending}" for folder in there for ending in (".jpg", *ENDINGS)]
        items.append(Item(next((file for file in candidates if (root / file).is_file()), candidates[0]), boxes))
    return Items(items, numbered(classes), root, shares=True)


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}).") from error
