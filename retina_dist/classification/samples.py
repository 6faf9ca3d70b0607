"""Labelled images: a folder for each class, a CSV file, or shards.

Classes are numbered in the order of their names.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
from torch import Tensor

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, Url, parse_path, read_bytes
from retina_dist.base.seeding import held_out_rows
from retina_dist.base.text import as_override, escape, pluralize, truncate
from retina_dist.data.images import SUFFIXES, is_image, read_image
from retina_dist.data.settings import SPLITS
from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.data.sources import Source, objects_in

SPLIT_NAMES = SPLITS["train"] + SPLITS["val"]

Row = tuple[str, Source, str]  # name, source, class
Reader = Callable[[PathOrUrl, str], list[Row] | None]  # of a root and a split


@dataclass(frozen=True)
class Samples:
    """Images in the order of their names, and the class of each."""

    names: tuple[str, ...]  # relative to the folder of the images
    sources: tuple[Source, ...]
    labels: np.ndarray  # [N] int64, indices into `classes`
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    form: str = ""  # how they lie in the data's root
    held_out: float | None = None  # the share of the training images that these are

    def __len__(self) -> int:
        return len(self.names)

    def counts(self) -> np.ndarray:
        """[K] images of each class."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def describe(self) -> str:
        """How many images there are, and how they are spread over the classes."""
        counts = self.counts()
        text = f"{pluralize(len(self), 'image')}, {counts.min()} to {counts.max()} of a class"
        if self.held_out:
            text += f"; held out of train by data.val_fraction={self.held_out}"
        return text

    def subsample(self, count: int) -> Samples:
        """At most `count` of them, evenly spaced, so that all parts of a sorted list are there."""
        places = np.linspace(0, len(self) - 1, min(count, len(self)))
        return self.rows(np.unique(places.round().astype(np.int64)))

    def rows(self, rows: Sequence[int] | np.ndarray) -> Samples:
        """The images of these rows, with the same classes."""
        return replace(
            self,
            names=tuple(self.names[i] for i in rows),
            sources=tuple(self.sources[i] for i in rows),
            labels=self.labels[rows],
        )

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """The images to train on, and the `fraction` held out for validation.

        Raises DataError where either is empty.
        """
        rows = held_out_rows(self.names, fraction)
        return self.rows(rows["train"]), replace(self.rows(rows["val"]), held_out=fraction)

    def fingerprint(self) -> str:
        """A digest of names and labels."""
        pairs = zip(self.names, self.labels.tolist(), strict=True)
        lines = "\n".join(f"{name} {label}" for name, label in pairs)
        return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()

    def read_image(self, image_id: int, max_pixels: int) -> Tensor:
        """[3, h, w] uint8 of the image at a place. Raises ImageError."""
        return read_image(self.sources[image_id], None, max_pixels)


def read_samples(
    root: PathOrUrl, split: str, *, classes: Sequence[str] | None = None, bad_images: str = "error"
) -> Samples | None:
    """The images of "train" or "val" below `root`, in any of the forms.

    Args:
        root: a folder or URL, as `data.root`.
        split: None is returned for a "val" that is not there.
        classes: the training data's; an image of another class raises DataError.
        bad_images: "skip" takes a cut shard, else it raises DataError, as a split without images.
    """
    _refuse_yolo(root, split)
    form, read = _reader(root, complete=bad_images != "skip")
    rows = read(root, split)
    if rows is None:
        if split == "train":
            raise DataError(absent("data.root", root, split))
        return None
    rows.sort(key=itemgetter(0))

    if not rows:
        raise DataError(
            f"{root} has no image of the split {split}; "
            f"images end with {', '.join(sorted(SUFFIXES))}."
        )
    used = sorted({label for _, _, label in rows})
    warnings: tuple[str, ...] = ()
    if read is _from_folders and split == "train" and isinstance(root, Path):
        warnings = _empty_classes(root, split, used)
    known = tuple(used if classes is None else classes)
    unknown = sorted(set(used).difference(known))
    if unknown:
        raise DataError(
            f"{root}: {split} has classes that train has not: {truncate(unknown)}; "
            "rename or remove them."
        )

    number = {name: i for i, name in enumerate(known)}
    names, sources, labels = zip(*rows, strict=True)
    numbers = np.array([number[label] for label in labels], np.int64)
    return Samples(names, sources, numbers, known, warnings, form)


def _empty_classes(root: Path, split: str, used: Sequence[str]) -> tuple[str, ...]:
    """A warning that names the folders of classes without an image."""
    folder = next(filter(Path.is_dir, map(root.joinpath, SPLITS[split])), root)
    empty = [f"{folder.name}/{name}" for name in _folders_in(folder) if name not in used]
    if not empty:
        return ()
    return (f"no image in {truncate(empty)}; left out of the classes",)


def _refuse_yolo(root: PathOrUrl, split: str) -> None:
    if not isinstance(root, Path):
        return
    for folder in (root, root / split):
        if (folder / "images").is_dir() and (folder / "labels").is_dir():
            raise DataError(
                f"{root} holds YOLO's images and labels; "
                f"give task=detection data=auto {as_override('data.root', root)}."
            )


def _reader(root: PathOrUrl, complete: bool) -> tuple[str, Reader]:
    """The form of the data below `root`, and the function that reads it."""
    for split in ("train", "val"):
        if has_shards(root, split):
            return "shards", partial(_from_shards, complete)
    if any(file.stem in SPLIT_NAMES for file in root.glob("*.csv")):
        return "CSV files of labels", _from_csv
    return "a folder for each class", _from_folders


def absent(key: str, root: PathOrUrl, split: str) -> str:
    """Message that `root`, the value of `key`, lacks a split, with the remedy."""
    remedy = (
        f"give {key}=FOLDER with {split}/CLASS/IMAGE, or {split}.csv with rows file,label, "
        "or leave task=classification out to detect"
    )
    if isinstance(root, Path) and root.resolve().name in SPLIT_NAMES:
        remedy = f"give the folder above, {key}={os.path.normpath(root / '..')}"
    lacks = "does not exist"
    if isinstance(root, Url) or root.exists():
        lacks = f"has no {split} images"
    return f"{key}={root} {lacks}; {remedy}."


def _folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())


def _from_folders(root: PathOrUrl, split: str) -> list[Row] | None:
    for name in SPLITS[split]:
        rows = _class_folders(root / name)
        if rows is not None:
            return rows
    if split == "val" or isinstance(root, Url) or root.resolve().name in SPLIT_NAMES:
        return None

    # a folder for each class in `root` itself, unless the root is COCO's
    has_classes = any(is_image(path.name) for path in root.glob("*/*"))
    if has_classes and not any(root.glob("annotations/*.json")):
        return _class_folders(root)
    return None


def _class_folders(folder: PathOrUrl) -> list[Row] | None:
    """The images in folder/CLASS and below; None without the folder. CLASS may be a link."""
    if isinstance(folder, Url):
        files: dict[str, Source] = dict(objects_in(folder))
        if not files:
            return None
    elif folder.is_dir():
        files = _files_below(folder)
    else:
        return None

    rows = []
    has_images = False
    for name, file in files.items():
        if not is_image(name) or "/." in f"/{name}":
            continue
        has_images = True
        label, slash, _ = name.partition("/")
        if slash:
            rows.append((name, file, label))
    if has_images and not rows:
        raise DataError(
            f"{folder} holds images but no folder for each class; "
            f"move each image into {folder}/CLASS."
        )
    return rows


def _files_below(folder: Path) -> dict[str, Source]:
    """The files in `folder` and in its folders, by their paths below it."""
    files: dict[str, Source] = {name: str(folder / name) for name in os.listdir(folder)}
    for label in _folders_in(folder):
        for parent, _, names in os.walk(folder / label):
            for name in names:
                path = f"{parent}/{name}"
                files[path.removeprefix(f"{folder}/")] = path
    return files


def _from_csv(root: PathOrUrl, split: str) -> list[Row] | None:
    files = {file.stem: file for file in root.glob("*.csv")}
    named = list(filter(files.get, SPLITS[split]))
    if not named:
        return None
    path = files[named[0]]
    try:
        lines = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read ({error}); give a CSV file in UTF-8, rows file,label."
        ) from error

    labels: dict[str, str] = {}  # by the name of the file
    for number, line in enumerate(lines, start=1):
        is_header = number == 1 and not any(is_image(cell.strip()) for cell in line)
        if not line or is_header:
            continue
        place = f"{path}: line {number}"
        name, label = _parse_line(line, place, root)
        if name in labels:
            raise DataError(f"{place} names {escape(name, 80)} again; keep one row of each file.")
        labels[name] = label
    return _rows_of(labels, root, path)


def _parse_line(line: Sequence[str], place: str, root: PathOrUrl) -> tuple[str, str]:
    """The file, relative to `root`, and the label of a line of the CSV file.

    Raises DataError, whose text begins with `place`.
    """
    cells = [cell.strip() for cell in line]
    if len(cells) != 2 or not is_image(cells[0]) or not cells[1]:
        words = escape(",".join(line), 80)
        raise DataError(f"{place} is {words}, not file,label such as images/1.jpg,cat.")
    name = os.path.normpath(cells[0].replace("\\", "/"))
    if os.path.isabs(name) or name.split(os.sep)[0] == ".." or "://" in cells[0]:
        raise DataError(
            f"{place} names {escape(name, 80)}, which is outside {root}; move it there."
        )
    return name, cells[1]


def _rows_of(labels: dict[str, str], root: PathOrUrl, path: PathOrUrl) -> list[Row]:
    """The rows of the files of a CSV file at `path`. Raises DataError where files are missing."""
    if isinstance(root, Url):
        sources: dict[str, Source] = dict(objects_in(root))
    else:
        sources = {name: str(root / name) for name in labels if os.path.isfile(root / name)}
    missing = [name for name in labels if name not in sources]
    if missing:
        raise DataError(
            f"{path}: {len(missing)} of {len(labels)} images are not in {root}: "
            f"{truncate(missing)}; restore them, or remove their rows."
        )
    return [(name, sources[name], label) for name, label in labels.items()]


def _from_shards(complete: bool, root: PathOrUrl, split: str) -> list[Row] | None:
    if not has_shards(root, split):
        return None
    path = root / annotations_of(split)
    members = read_index(root, split, complete=complete)
    rows: list[Row] = []
    try:
        for image in json.loads(read_bytes(path))["images"]:
            rows.append((str(image["file_name"]), members[image["id"]], str(image["label"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} has no label for each image ({error!r}); write the shards again."
        ) from error
    return rows


def root_of(text: str | None, name: str) -> PathOrUrl:
    """The place that `data.root` names. Raises DataError without one."""
    if text is None:
        raise DataError(f"data={name} needs data.root=FOLDER.")
    return parse_path(text)
