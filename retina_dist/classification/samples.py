"""Labelled images: a folder for each class, a CSV file, or shards. Classes are numbered in the order of their names."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, Url, parse_path, read_bytes
from retina_dist.base.seeding import held_out_rows
from retina_dist.base.text import escape, pluralize, truncate
from retina_dist.data.images import SUFFIXES, is_image
from retina_dist.data.settings import SPLITS
from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.data.sources import Source, objects_in

Row = tuple[str, Source, str]  # name, source, class


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
        aside = f"; held out of train by data.val_fraction={self.held_out}" if self.held_out else ""
        return (
            f"{pluralize(len(self), 'image')}, {counts.min()} to {counts.max()} of a class{aside}"
        )

    def subsample(self, count: int) -> Samples:
        """At most `count` of them, evenly spaced, so that classes that lie together are all among them."""
        return self.rows(
            np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(np.int64))
        )

    def rows(self, rows: Sequence[int] | np.ndarray) -> Samples:
        """The images of these rows, with the same classes."""
        names, sources = tuple(self.names[i] for i in rows), tuple(self.sources[i] for i in rows)
        return replace(self, names=names, sources=sources, labels=self.labels[rows])

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """The images to train on, and the `fraction` held out for validation. Raises DataError where either is empty."""
        rows = held_out_rows(self.names, fraction)
        return self.rows(rows["train"]), replace(self.rows(rows["val"]), held_out=fraction)

    def fingerprint(self) -> str:
        """A digest of names and labels."""
        rows = (
            f"{name} {label}" for name, label in zip(self.names, self.labels.tolist(), strict=True)
        )
        return hashlib.sha256("\n".join(rows).encode(errors="surrogateescape")).hexdigest()


def read_samples(
    root: PathOrUrl, split: str, *, classes: Sequence[str] | None = None, bad_images: str = "error"
) -> Samples | None:
    """The images of "train" or "val" below `root`, in any of the forms; None for a validation split that is not there.

    `classes` are the training data's: an image of another class raises DataError, as do a split without images and, unless
    `bad_images="skip"`, a cut shard.
    """
    for folder in (root, root / split) if isinstance(root, Path) else ():
        if (folder / "images").is_dir() and (folder / "labels").is_dir():
            raise DataError(
                f"{root} holds YOLO's images and labels; give task=detection data=auto data.root={root}."
            )
    form, read = _reader(root, complete=bad_images != "skip")
    rows = read(root, split)
    if rows is None:
        if split == "train":
            raise DataError(absent("data.root", root, split))
        return None
    rows.sort(key=lambda row: row[0])
    used = {label for _, _, label in rows}
    warnings: tuple[str, ...] = ()
    if read is _from_folders and split == "train" and not isinstance(root, Url):
        folder = root / split if (root / split).is_dir() else root
        if empty := [f"{folder.name}/{name}" for name in _folders_in(folder) if name not in used]:
            warnings = (f"no image in {truncate(empty)}; left out of the classes",)
    if not rows:
        raise DataError(
            f"{root} has no image of the split {split}; images end with {', '.join(sorted(SUFFIXES))}."
        )
    known = tuple(classes) if classes is not None else tuple(sorted(used))
    if unknown := sorted(used - set(known)):
        raise DataError(
            f"{root}: {split} has classes that train has not: {truncate(unknown)}; rename or remove them."
        )
    number = {name: i for i, name in enumerate(known)}
    names, sources, labels = zip(*rows, strict=True)
    return Samples(
        names,
        sources,
        np.array([number[label] for label in labels], np.int64),
        known,
        warnings,
        form,
    )


def _reader(
    root: PathOrUrl, complete: bool
) -> tuple[str, Callable[[PathOrUrl, str], list[Row] | None]]:
    """The form of the data below `root`, and the function that reads it."""
    if any(has_shards(root, split) for split in ("train", "val")):
        return "shards", partial(_from_shards, complete)
    names = SPLITS["train"] + SPLITS["val"]
    if any(file.stem in names for file in root.glob("*.csv")):
        return "CSV files of labels", _from_csv
    return "a folder for each class", _from_folders


def absent(key: str, root: PathOrUrl, split: str) -> str:
    """Message that `root`, the value of `key`, lacks a split, with the remedy."""
    remedy = f"give {key}=FOLDER with {split}/CLASS/IMAGE, or {split}.csv with rows file,label"
    if isinstance(root, Path) and root.resolve().name in SPLITS["train"] + SPLITS["val"]:
        remedy = f"give the folder above, {key}={os.path.normpath(root / '..')}"
    lacks = f"has no {split} images" if isinstance(root, Url) or root.exists() else "does not exist"
    return f"{key}={root} {lacks}; {remedy}."


def _folders_in(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def _from_folders(root: PathOrUrl, split: str) -> list[Row] | None:
    for name in SPLITS[split]:
        if (rows := _class_folders(root / name)) is not None:
            return rows
    if (
        split == "val"
        or isinstance(root, Url)
        or root.resolve().name in SPLITS["train"] + SPLITS["val"]
    ):
        return None
    # a folder for each class in `root` itself, unless the root is COCO's
    in_folders = any(is_image(path.name) for path in root.glob("*/*")) and not any(
        root.glob("annotations/*.json")
    )
    return _class_folders(root) if in_folders else None


def _class_folders(folder: PathOrUrl) -> list[Row] | None:
    """The images in folder/CLASS and below; None where there is no such folder. CLASS may be a link."""
    if isinstance(folder, Url):
        files: dict[str, Source] = dict(objects_in(folder))
        if not files:
            return None
    elif not folder.is_dir():
        return None
    else:
        files = {name: str(folder / name) for name in os.listdir(folder)}
        for label in _folders_in(folder):
            paths = (
                f"{parent}/{name}" for parent, _, names in os.walk(folder / label) for name in names
            )
            files.update({path.removeprefix(f"{folder}/"): path for path in paths})
    images = {
        name: file for name, file in files.items() if is_image(name) and "/." not in f"/{name}"
    }
    rows = [(name, file, name.split("/")[0]) for name, file in images.items() if "/" in name]
    if images and not rows:
        raise DataError(
            f"{folder} holds images but no folder for each class; move each image into {folder}/CLASS."
        )
    return rows


def _from_csv(root: PathOrUrl, split: str) -> list[Row] | None:
    files = {file.stem: file for file in root.glob("*.csv")}
    path = next(
        (files[name] for name in SPLITS[split] if name in files), None
    )  # not by the order of the disk
    if path is None:
        return None
    try:
        lines = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read ({error}); give a CSV file in UTF-8, rows file,label."
        ) from error
    there = objects_in(root) if isinstance(root, Url) else None
    rows: dict[str, Row] = {}
    missing: list[str] = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line]
        if not line or (number == 1 and not any(map(is_image, cells))):  # a header
            continue
        if len(cells) != 2 or not is_image(cells[0]) or not cells[1]:
            words = escape(",".join(line), 80)
            raise DataError(
                f"{path}: line {number} is {words}, not file,label such as images/1.jpg,cat."
            )
        name = os.path.normpath(cells[0].replace("\\", "/"))
        if os.path.isabs(name) or name.split(os.sep)[0] == ".." or "://" in cells[0]:
            raise DataError(
                f"{path}: line {number} names {escape(name, 80)}, which is outside {root}; move it there."
            )
        if name in rows:
            raise DataError(
                f"{path}: line {number} names {escape(name, 80)} again; keep one row of each file."
            )
        source: Source = str(root / name) if there is None else there.get(name, "")
        rows[name] = (name, source, cells[1])
        if not source or (there is None and not os.path.isfile(str(source))):
            missing.append(name)
    if missing:
        count = f"{len(missing)} of {len(rows)} images"
        raise DataError(
            f"{path}: {count} are not in {root}: {truncate(missing)}; restore them, or remove their rows."
        )
    return list(rows.values())


def _from_shards(complete: bool, root: PathOrUrl, split: str) -> list[Row] | None:
    if not has_shards(root, split):
        return None
    path, members = root / annotations_of(split), read_index(root, split, complete=complete)
    try:
        images = json.loads(read_bytes(path))["images"]
        return [
            (str(image["file_name"]), members[image["id"]], str(image["label"])) for image in images
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} has no label for each image ({error!r}); write the shards again."
        ) from error


def root_of(text: str | None, name: str) -> PathOrUrl:
    """The place that `data.root` names. Raises DataError without one."""
    if text is None:
        raise DataError(f"data={name} needs data.root=FOLDER.")
    return parse_path(text)
