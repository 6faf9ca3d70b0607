"""The format of the annotations below a folder, the place of a split, and the contract of a format from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, Url, open_regular
from retina_dist.data.images import is_image
from retina_dist.data.settings import SPLITS
from retina_dist.data.shards import has_shards
from retina_dist.detection.readers.items import Items
from retina_dist.detection.settings import DetectionData

TITLES = {
    "coco": "COCO json",
    "shards": "tar shards",
    "yolo": "YOLO",
    "openimages": "OpenImages CSV",
    "csv": "keras-retinanet CSV",
    "voc": "Pascal VOC",
    "cvat": "CVAT XML",
    "labelme": "LabelMe",
}
LAYOUTS = (  # of annotation files below data.root
    "annotations/instances_{split}*.json",  # COCO: instances_train2017.json
    "annotations/{split}*.json",
    "{split}/_annotations.coco.json",  # Roboflow's export
    "{split}.json",
)


def recognise(root: PathOrUrl) -> str:
    """The format of the annotations below a folder, a key of `TITLES`. Raises DataError with what was looked for."""
    if format := _format_of(root):
        return format
    hint = _hint(root) or f"looked for {', '.join(TITLES.values())}; docs/data.md shows their files"
    raise DataError(f"{root} has no annotations of boxes: {hint}.")


def _format_of(root: PathOrUrl) -> str:
    if has_shards(root, "train"):  # beside a train.json
        return "shards"
    if any(coco_files(root, split) for split in ("train", "val")):
        return "coco"
    if any(root.glob("train.csv")):
        return "csv"
    if isinstance(root, Url):
        return ""
    from retina_dist.detection.readers.yolo import yaml_of

    def first(
        *patterns: str,
    ) -> Path | None:  # by name: the order of a folder's files is that of its disk
        return next(
            (min(paths) for pattern in patterns if (paths := list(root.glob(pattern)))), None
        )

    if yaml_of(root) or first("labels/*.txt", "labels/*/*.txt", "*/labels/*.txt", "classes.txt"):
        return "yolo"
    if first("*annotations-bbox.csv", "*/*annotations-bbox.csv"):
        return "openimages"
    if file := first("Annotations/*.xml", "*.xml", "*/*.xml", "*/*/*.xml"):
        return "cvat" if b"<annotations>" in _head(file) else "voc"
    file = first("*.json", "*/*.json")
    return "labelme" if file and b'"shapes"' in _head(file) else ""


def read_folder(format: str, root: PathOrUrl, split: str) -> Items | None:
    """A split of one of `settings.FOLDER_FORMATS`; None for a validation split that is not there. Raises DataError."""
    from retina_dist.detection.readers.csv_files import read_openimages
    from retina_dist.detection.readers.labelme import read_labelme
    from retina_dist.detection.readers.voc import read_cvat, read_voc
    from retina_dist.detection.readers.yolo import read_yolo

    readers = dict(
        voc=read_voc,
        yolo=read_yolo,
        labelme=read_labelme,
        cvat=read_cvat,
        openimages=read_openimages,
    )
    if format not in readers:
        raise DataError(f"data.format={format} is unknown; use {', '.join(TITLES)}.")
    if isinstance(root, Url):
        raise DataError(
            f"data.root={root}: {TITLES[format]} needs a local folder; copy it, or make shards of it."
        )
    items = readers[format](root, split)
    if split == "train" and items is None:
        raise DataError(f"{root} has no train images.")
    return items if split == "train" or (items and items.items) else None


def find_split(root: PathOrUrl, split: str) -> tuple[PathOrUrl, PathOrUrl]:
    """(annotation file, image folder) of "train" or "val" in COCO's layout or a near one.

    Of several annotation files of one layout the shortest name wins, so instances_val2017.json before instances_val2017_small.json.
    Raises DataError with everything that was looked for.
    """
    files = coco_files(root, split)
    if not files:
        looked = ", ".join(layout.format(split=split) for layout in LAYOUTS)
        part = ", or hold out a part of train with data.val_fraction=0.1" if split == "val" else ""
        raise DataError(
            f"{root} has no {split} annotations in COCO json: looked for {looked}; give data=auto for another format, or name the "
            f"file with data.{split}_annotations=FILE (evaluate: annotations=FILE){part}."
        )
    names, annotations = SPLITS[split], files[0]
    own, stem = [root / name for name in names], annotations.stem.removeprefix("instances_")
    folders = (
        [annotations.parent] if annotations.parent in own else []
    )  # Roboflow's images lie beside them
    folders += [root / stem, root / "images" / stem, *own]
    folders += [*(root / "images" / name for name in names), root / "images"]
    return annotations, next((folder for folder in folders if folder.is_dir()), root)


def coco_files(root: PathOrUrl, split: str) -> list[PathOrUrl]:
    """The COCO json files of a split below a folder, the likeliest first."""
    files: list[PathOrUrl] = []
    for pattern in [layout.format(split=name) for name in SPLITS[split] for layout in LAYOUTS]:
        files += sorted(root.glob(pattern), key=lambda path: (len(path.name), path.name))
    return files


def _head(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(4096)


def _hint(root: PathOrUrl) -> str:
    """The content of a folder without annotations, and the remedy; "" if unknown."""
    if isinstance(root, Url):
        return ""
    if archives := sorted(file.name for file in root.glob("*.zip")):
        return f"it holds {', '.join(archives[:3])}; unpack them"
    if any(is_image(file) for file in root.glob("train/*/*")):
        return "it holds class folders; give experiment=finetune_classifier, or task=classification data=folders"
    from retina_dist.detection.readers.yolo import yaml_of

    for above in root.absolute().parents[:2]:
        if coco_files(above, "train") or coco_files(above, "val") or yaml_of(above):
            return f"give the folder above, {above}"
    return ""


class AnnotationReader(ABC):
    """Reads a data set as COCO; `settings` is the class's dataclass below `DetectionData`, and of an instance its values."""

    settings: Any = DetectionData

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def read(self, split: str) -> tuple[dict[str, Any], Path | PathOrUrl | str] | None:
        """A COCO dictionary of "train" or "val", and the folder that its file names are relative to; None without such a split.

        The dictionary has `images` (id, file_name; width and height in px are read from the files where they are left out),
        `annotations` (image_id, category_id, bbox as [x, y, width, height] in px) and `categories` (id, name). Raises DataError.
        """
