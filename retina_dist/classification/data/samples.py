"""Labelled images: a folder for each class, a CSV file, or shards.

Classes are numbered in the order of their names. Names come out of files that others wrote: one that leaves the folder
of the images is refused.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retina_dist.data.images import SUFFIXES
from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.data.sources import ArchiveMember, RemoteFile, Source, objects_in
from retina_dist.errors import DataError
from retina_dist.files import PathOrUrl, Url, parse_path, read_bytes
from retina_dist.text import escape, pluralize, truncate


@dataclass(frozen=True)
class Samples:
    """Images in the order of their names, and the class of each."""

    names: tuple[str, ...]  # relative to the folder of the images
    sources: tuple[Source, ...]
    labels: np.ndarray  # [N] int64, indices into `classes`
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def counts(self) -> np.ndarray:
        """[K] images of each class."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def subsample(self, count: int) -> Samples:
        """At most `count` of them, evenly spaced, so that classes that lie together are all among them."""
        rows = np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(np.int64))
        return replace(
            self,
            names=tuple(self.names[i] for i in rows),
            sources=tuple(self.sources[i] for i in rows),
            labels=self.labels[rows],
        )

    def fingerprint(self) -> str:
        """A digest of names and labels."""
        rows = (f"{name} {label}" for name, label in zip(self.names, self.labels.tolist(), strict=True))
        return hashlib.sha256("\n".join(rows).encode(errors="surrogateescape")).hexdigest()


def read_samples(
    root: PathOrUrl, split: str, form: str, *, classes: Sequence[str] | None = None, missing_images: str = "error"
) -> Samples | None:
    """The images of "train" or "val" below `root`; None for a validation split that is not there.

    `classes` are those of the training data: an image of another class raises DataError, as does a split without images.
    """
    readers = {"folders": _from_folders, "csv": _from_csv, "shards": _from_shards}
    rows = readers[form](root, split)
    if rows is None:
        if split == "train":
            raise DataError(absent("data.root", root, split, form))
        return None
    rows.sort(key=lambda row: row[0])
    rows, warnings = _present(rows, missing_images, root)
    if form == "folders" and split == "train" and not isinstance(root, Url):
        used = {label for _, _, label in rows}
        if empty := [f"{split}/{name}" for name in _folders_in(root / split) if name not in used]:
            warnings.append(f"no image in {truncate(empty)}; left out of the classes")
    if not rows:
        raise DataError(f"{root} has no image of the split {split}; images end with {', '.join(sorted(SUFFIXES))}.")
    known = tuple(classes) if classes is not None else tuple(sorted({label for _, _, label in rows}))
    number = {name: i for i, name in enumerate(known)}
    unknown = sorted({label for _, _, label in rows} - set(number))
    if unknown:
        raise DataError(
            f"{root}: {split} has {pluralize(len(unknown), 'class')} that train has not: {truncate(unknown)}; rename them, or "
            "add training images of them."
        )
    names, sources, labels = zip(*rows, strict=True)
    return Samples(names, sources, np.array([number[label] for label in labels], np.int64), known, tuple(warnings))


def absent(key: str, root: PathOrUrl, split: str, form: str) -> str:
    """A sentence that says that `root`, the value of `key`, lacks a split, and what to change."""
    wanted = {
        "folders": f"folder {split} with a folder for each class",
        "csv": f"file {split}.csv",
        "shards": f"{split} shards",
    }
    file = f"{split}.csv" if form == "csv" else split
    remedy = f"give {key}=FOLDER with {split} in it" + (", or another data.format" if split == "train" else "")
    if not isinstance(root, Url) and not root.exists():
        return f"{key}={root} does not exist; {remedy}."
    if not isinstance(root, Url):
        names = sorted(path.name for path in root.glob("*"))
        alike = [name for name in names if name.lower() == file != name]
        classes = sorted({path.parent.name for path in root.glob("*/*") if _is_image(path.name)})
        if root.resolve().name in ("train", "val") and (root / ".." / file).exists():
            remedy = f"give the folder above, {key}={os.path.normpath(root / '..')}"
        elif alike:
            remedy = f"rename {root / alike[0]} to {file}"
        elif form != "csv" and split == "train" and "train.csv" in names:
            remedy = "train.csv is there: give data=labels_csv"
        elif form != "folders" and split == "train" and "train" in names:
            remedy = "a folder train is there: give data=folders"
        elif form == "folders" and split not in names and classes:
            remedy = f"move {truncate(classes)} into {root / split}"
    return f"{key}={root} has no {wanted[form]}; {remedy}."


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _folders_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


Row = tuple[str, Source, str]  # name, source, class


def _from_folders(root: PathOrUrl, split: str) -> list[Row] | None:
    folder = root / split
    if isinstance(folder, Url):
        there = objects_in(folder)
        top = [name for name in there if "/" not in name]
        listed: list[Row] = [(name, file, name.split("/")[0]) for name, file in there.items() if "/" in name]
    else:
        if not folder.is_dir():
            return None
        above = set(map(str, (folder.resolve(), *folder.resolve().parents)))
        top = os.listdir(folder)
        files = ((file, label) for label in _folders_in(folder) for file in _files(folder / label, above))
        listed = [(file.removeprefix(f"{folder}/"), file, label) for file, label in files]
    shown = [row for row in listed if not any(part.startswith(".") for part in row[0].split("/"))]
    images = [row for row in shown if _is_image(row[0])]
    if not images and any(_is_image(name) and not name.startswith(".") for name in top):
        raise DataError(f"{folder} holds images but no folder for each class; move each image into {folder}/CLASS.")
    return images if images or split == "train" or listed else None


def _files(folder: Path, above: set[str]) -> Iterator[str]:
    """All files in a folder. Links to folders are followed; each folder is read once, and none of those `above`."""
    entered = set(above)
    for parent, folders, files in os.walk(folder, followlinks=True):
        target = os.path.realpath(parent)
        if f"{target}/".startswith(("/proc/", "/sys/")):
            raise DataError(f"{parent} is a link to {target}, which holds no images; remove the link.")
        folders[:] = [] if target in entered else [name for name in folders if not name.startswith(".")]
        if target not in entered:
            yield from (os.path.join(parent, name) for name in files)
        entered.add(target)


def _from_csv(root: PathOrUrl, split: str) -> list[Row] | None:
    path = root / f"{split}.csv"
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); give a CSV file in UTF-8.") from error
    rows: list[Row] = []
    labels: dict[str, str] = {}
    try:
        read = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV ({error}); write one row file,label for each image.") from error
    for number, row in enumerate(read, start=1):
        if not row or (number == 1 and [cell.strip().lower() for cell in row] == ["file", "label"]):
            continue
        name, label = (row[0].strip().replace("\\", "/"), row[1].strip()) if len(row) == 2 else ("", "")
        if not name or not label:
            raise DataError(
                f"{path}: line {number} is {escape(','.join(row), 80)}, not file,label with a comma between."
            )
        if _is_image(label) and not _is_image(name):
            raise DataError(f"{path}: the columns are label,file; write file,label.")
        if number == 1 and not _is_image(name) and any(map(_is_image, (read[1:] or [[]])[0][:1])):
            raise DataError(
                f"{path}: line 1 is {escape(','.join(row), 80)}, a header other than file,label; remove it."
            )
        inside = os.path.normpath(name)
        if os.path.isabs(inside) or inside.split(os.sep)[0] == ".." or "://" in name:
            raise DataError(f"{path}: line {number} names {escape(name, 80)}, which is outside {root}; move it there.")
        if labels.setdefault(inside, label) != label:
            raise DataError(f"{path}: line {number} gives {escape(inside, 80)} a second label; keep one.")
        source: Source = RemoteFile(str(root), inside) if isinstance(root, Url) else str(root / inside)
        rows.append((inside, source, label))
    if len(labels) != len(rows):
        raise DataError(f"{path} names {pluralize(len(rows) - len(labels), 'file')} twice; keep one row of each.")
    return rows


def _from_shards(root: PathOrUrl, split: str) -> list[Row] | None:
    if not has_shards(root, split):
        return None
    path = root / annotations_of(split)
    members = read_index(root, split)
    try:
        content = json.loads(read_bytes(path))
        listed = [(str(e["file_name"]), members[e["id"]], str(e["label"])) for e in content["images"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} has no label for each image of the shards ({error!r}); write them again: python -m retina_dist.shards "
            "task=classification."
        ) from error
    return list(listed)


def _present(rows: list[Row], policy: str, root: PathOrUrl) -> tuple[list[Row], list[str]]:
    """The rows whose files are there; others are an error, or are left out with a warning ("skip")."""
    remote = None
    if isinstance(root, Url) and any(isinstance(source, RemoteFile) and not source.version for _, source, _ in rows):
        remote = objects_in(root)
    present: list[Row] = []
    missing: list[str] = []
    for name, source, label in rows:
        if remote is not None and isinstance(source, RemoteFile):
            source = remote.get(source.name, source)
            there = source.name in remote
        else:
            there = isinstance(source, (RemoteFile, ArchiveMember)) or os.path.isfile(str(source))
        if there:
            present.append((name, source, label))
        else:
            missing.append(name)
    if not missing:
        return present, []
    text = f"{len(missing)} of {len(rows)} images are not in {root}: {truncate(missing)}"
    if policy == "error":
        raise DataError(f"{text}; check the folder, or leave them out with data.missing_images=skip.")
    return present, [f"{text}; left out"]


def root_of(text: str | None, name: str) -> PathOrUrl:
    """The place that `data.root` names. Raises ConfigError without one."""
    if text is None:
        raise DataError(f"data={name} needs data.root=FOLDER.")
    return parse_path(text)
