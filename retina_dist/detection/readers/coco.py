"""COCO json: one file a split, in COCO's layout or one near it.
https://cocodataset.org/#format-data
"""

from __future__ import annotations

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, read_bytes
from retina_dist.data.settings import SPLITS
from retina_dist.detection.readers.categories import Entry
from retina_dist.detection.readers.formats import Content, FileReader, Place
from retina_dist.detection.readers.ground_truth import CocoContent, decode_coco
from retina_dist.detection.readers.parsing import reading
from retina_dist.detection.settings import FILE_SETTINGS

LAYOUTS = (  # of annotation files below data.root
    "annotations/instances_{split}*.json",  # COCO: instances_train2017.json
    "annotations/{split}*.json",
    "{split}/_annotations.coco.json",  # Roboflow's export
    "{split}.json",
)


class CocoReader(FileReader):
    """COCO's ground truth, local or behind a URL."""

    title = "COCO json"
    file_settings = [key for key in FILE_SETTINGS if key != "classes"]

    @classmethod
    def claims(cls, root: PathOrUrl) -> bool:
        return any(coco_files(root, split) for split in ("train", "val"))

    @classmethod
    def is_top(cls, folder: PathOrUrl) -> bool:
        return cls.claims(folder)

    def find_in(self, root: PathOrUrl, split: str) -> Place | None:
        is_optional = split == "val" and self.settings.val_fraction
        if is_optional and not coco_files(root, split):
            return None
        annotations, images = find_split(root, split)
        return Place(annotations, images, split)

    def read_place(self, place: Place) -> Content:
        return Content(read_coco(place.annotations), place.images, place.annotations)


def find_split(root: PathOrUrl, split: str) -> tuple[PathOrUrl, PathOrUrl]:
    """(annotation file, image folder) of "train" or "val" in COCO's layout or a near one.

    Of several annotation files of one layout the shortest name wins, so instances_val2017.json
    before instances_val2017_small.json. Raises DataError with everything that was looked for.
    """
    files = coco_files(root, split)
    if not files:
        looked = ", ".join(layout.format(split=split) for layout in LAYOUTS)
        remedy = f"name the file with data.{split}_annotations=FILE"
        if split == "val":
            remedy += ", or hold out a part of train with data.val_fraction=0.1"
        problem = f"{root} has no {split} annotations in COCO json: looked for {looked}"
        raise DataError(f"{problem}; {remedy}, or read another format by data=auto.")

    annotations = files[0]
    stem = annotations.stem.removeprefix("instances_")
    own = [root / name for name in SPLITS[split]]
    folders = [root / stem, root / "images" / stem, *own]
    if annotations.parent in own:  # Roboflow's images lie beside them
        folders.insert(0, annotations.parent)
    folders += [root / "images" / name for name in SPLITS[split]]
    folders.append(root / "images")
    for folder in folders:
        if folder.is_dir():
            return annotations, folder
    return annotations, root


def coco_files(root: PathOrUrl, split: str) -> list[PathOrUrl]:
    """The COCO json files of a split below a folder, the likeliest first."""
    files: list[PathOrUrl] = []
    for name in SPLITS[split]:
        for layout in LAYOUTS:
            found = root.glob(layout.format(split=name))
            files += sorted(found, key=lambda path: (len(path.name), path.name))
    return files


def read_coco(path: PathOrUrl) -> CocoContent | Entry:
    """The content of a COCO json, which may still be wrong. Raises DataError for no JSON."""
    remedy = "restore the file"
    if path.name.endswith(".gz"):
        remedy = "unpack it with gunzip"
    with reading(path, "JSON", remedy, missing="check its path"):
        content = decode_coco(read_bytes(path))
    if not isinstance(content, CocoContent | dict):
        expected = "give ground truth (instances_*.json), not results"
        raise DataError(f"{path} holds a {type(content).__name__}; {expected}.")
    return content
