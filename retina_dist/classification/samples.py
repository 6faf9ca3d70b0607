"""Labelled images: a folder for each class, a CSV file, or shards.

Classes are numbered in the order of their names.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
from torch import Tensor

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, Url, not_a_folder, parse_path, read_bytes
from retina_dist.base.text import as_override, escape, pluralize, truncate
from retina_dist.data.images import ENDINGS, is_image, read_image
from retina_dist.data.parsing import columns_of, csv_rows, json_lines
from retina_dist.data.shards import annotations_of, has_shards, read_index
from retina_dist.data.sources import RemoteFile, Source
from retina_dist.data.tree import (
    NEUTRAL,
    SPLIT_OF_WORD,
    Head,
    Tree,
    split_of,
    split_of_cell,
    split_of_folder,
)
from retina_dist.data.val_fraction import held_out_rows

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
        rows = held_out_rows(self.names, self.sources, fraction)
        return self.rows(rows["train"]), replace(self.rows(rows["val"]), held_out=fraction)

    def digest(self) -> str:
        """A digest of names and labels."""
        pairs = zip(self.names, self.labels.tolist(), strict=True)
        lines = "\n".join(f"{name} {label}" for name, label in pairs)
        return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()

    def read_image(self, image_id: int, max_pixels: int) -> Tensor:
        """[3, h, w] uint8 of the image at a place. Raises ImageError."""
        return read_image(self.sources[image_id], None, max_pixels)


def opened(root: PathOrUrl) -> PathOrUrl | Tree:
    """A place whose files are listed once for all splits; one of shards, or without files, as it
    is.
    """
    if has_shards(root, "train") or has_shards(root, "val"):
        return root
    if isinstance(root, Path) and not root.is_dir():
        return root
    return Tree(root)


def read_samples(
    root: PathOrUrl | Tree,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    bad_images: str = "error",
) -> Samples | None:
    """The images of "train", "val" or "test" below `root`, in any of the forms.

    Args:
        root: a folder or URL, as `data.root`, or what `opened` makes of it.
        split: None is returned for a "val" or "test" that is not there.
        classes: the training data's; an image of another class raises DataError.
        bad_images: "skip" takes a cut shard, else it raises DataError, as a split without images.
    """
    place = root if isinstance(root, Tree) else opened(root)
    root = place.root if isinstance(place, Tree) else place
    form, rows, said = _rows(place, split, complete=bad_images != "skip")
    if rows is None:
        if split == "train":
            raise DataError(absent("data.root", root, split))
        return None
    rows.sort(key=itemgetter(0))

    if not rows:
        raise DataError(f"{root} has no image of the split {split}; images end with {ENDINGS}.")
    used = sorted({label for _, _, label in rows})
    known = tuple(used if classes is None else classes)
    unknown = sorted(set(used).difference(known))
    if unknown:
        raise DataError(
            f"{root}: {split} has classes that train has not: {truncate(unknown)}; "
            f"rename or remove them; train has {truncate(known)}."
        )

    number = {name: i for i, name in enumerate(known)}
    names, sources, labels = zip(*rows, strict=True)
    numbers = np.array([number[label] for label in labels], np.int64)
    return Samples(names, sources, numbers, known, tuple(said), form)


def _like_splits(rows: Sequence[Row]) -> list[str]:
    """A warning where classes have the same folders, or those of classes, as splits have."""
    below: dict[str, set[str]] = {}
    for name, _, label in rows:
        below.setdefault(label, set()).update(name.split("/")[1:-1])
    every = list(below.values())
    these = []
    for label, folders in sorted(below.items()):
        is_alike = folders <= {*below} or every.count(folders) == len(every) > 1
        if len(folders) > 1 and is_alike:
            these.append(label)
    if not these:
        return []
    return [
        f"folders in {truncate(these)} repeat the names of other folders; "
        "if these are splits, rename them to train and val"
    ]


def _spelt_alike(rows: Sequence[Row]) -> list[str]:
    """A warning that names classes which differ by case or spaces alone."""
    alike: dict[str, list[str]] = {}
    for label in sorted(set(map(itemgetter(2), rows))):
        alike.setdefault("".join(label.casefold().split()), []).append(label)
    same = [" and ".join(map(repr, labels)) for labels in alike.values() if len(labels) > 1]
    if not same:
        return []
    return [f"classes are spelt alike: {truncate(same)}; rename them if they are one"]


def _empty_classes(rows: Sequence[Row]) -> list[str]:
    """A warning that names the folders of classes without an image, beside those of the rows."""
    name, source, _ = rows[0]
    if not isinstance(source, str):
        return []
    folder = Path(source.removesuffix(name))
    used = set(map(itemgetter(2), rows))
    empty = []
    for path in sorted(folder.glob("[!.]*")):
        if path.is_dir() and path.name not in used and split_of_folder(path.name) is None:
            empty.append(f"{folder.name}/{path.name}")
    if not empty:
        return []
    return [f"no image ({ENDINGS}) in {truncate(empty)}; left out of the classes"]


def _refuse_others(tree: Tree) -> None:
    """Raise DataError for a folder that a detector's annotations are in, or no image."""
    found = tree.select((".xml",), _is_voc) or tree.select((".json",), _has_boxes)
    folders = set(map(posixpath.basename, map(posixpath.dirname, tree.files)))
    if found or folders >= {"images", "labels"}:
        what = f"boxes for a detector, such as {found[0]}" if found else "YOLO's images and labels"
        data = as_override("data.root", tree.root)
        raise DataError(
            f"{tree.root} holds {what}; give experiment=finetune {data} alone, "
            "or cut them out for a classifier (docs/data.md)."
        )
    if tree.files and not tree.images:
        raise DataError(
            f"{tree.root} has no image, but files such as {tree.files[0]}; convert them: "
            f"images end with {ENDINGS}."
        )


def _is_voc(head: Head) -> bool:
    return head.keys in (("annotation",), ("annotations",))


def _has_boxes(head: Head) -> bool:
    return head.has("images", "annotations", "categories") or head.has("shapes", "imagePath")


def _rows(
    tree: PathOrUrl | Tree, split: str, complete: bool
) -> tuple[str, list[Row] | None, list[str]]:
    """The form of the data, the rows of a split, and warnings."""
    if not isinstance(tree, Tree):
        return "shards", _from_shards(complete, tree, split), []
    tables = [file for file in tree.ending(".csv", ".tsv", ".jsonl") if is_table(tree, file)]
    if tables:
        form = "a table of labels"
        rows = _of_tables(tree, tables, split)
    else:
        _refuse_others(tree)
        rows = _from_folders(tree, split)
        form = _form_of_folders(rows or ())
    warnings = _unread(tree, tables, split)
    if not tables and rows and split == "train":
        warnings += _empty_classes(rows) + _like_splits(rows) + _spelt_alike(rows)
    if len(tables) == 1 and "split" not in columns_of(tree.head(tables[0]).keys):
        warnings += _unlabelled(tree, rows or ())
    return form, rows, warnings


def _form_of_folders(rows: Sequence[Row]) -> str:
    """The form of class folders, with what they are in where that is several folders."""
    places = {str(source).removesuffix(name) for name, source, _ in rows}
    if len(places) < 2:
        return "a folder for each class"
    return f"a folder for each class of {truncate(sorted(places), 3)} (data.root=FOLDER takes one)"


def _unread(tree: Tree, tables: Sequence[str], split: str) -> list[str]:
    """What to say with the images of train of those of test, which are not trained on."""
    if split != "train":
        return []
    try:
        test = _from_tables(tree, tables, "test") if tables else _from_folders(tree, "test")
    except DataError as error:  # such as images without a class, whose labels are secret
        return [f"the test split cannot be read: {error}"]
    if not test:
        return []
    use = "evaluate split=test judges on them, data.val_split=test validates on them"
    return [f"{pluralize(len(test), 'image')} of test, not trained on; {use}"]


def _unlabelled(tree: Tree, rows: Sequence[Row]) -> list[str]:
    """A warning that counts the images that the only table does not have."""
    rest = tree.without(map(itemgetter(0), rows))
    if not rest:
        return []
    return [f"{pluralize(len(rest), 'image')} without a label: {truncate(rest, 1)}; left out"]


def absent(key: str, root: PathOrUrl, split: str) -> str:
    """Message that `root`, the value of `key`, lacks a split, with the remedy."""
    remedy = (
        f"give {key}=FOLDER with {split}/CLASS/IMAGE, or {split}.csv with rows file,label, "
        "or leave task=classification out to detect"
    )
    if isinstance(root, Path) and root.resolve().name in SPLIT_OF_WORD:
        remedy = f"give the folder above, {key}={os.path.normpath(root / '..')}"
    elif isinstance(root, Path) and not root.is_dir():
        remedy = not_a_folder(key, root, remedy)
    lacks = "does not exist"
    if isinstance(root, Url) or root.exists():
        lacks = f"has no {split} images"
    return f"{key}={root} {lacks}; {remedy}."


def _from_folders(tree: Tree, split: str) -> list[Row] | None:
    """The images in SPLIT/CLASS and below, or of "train" in CLASS, perhaps all in one more folder.

    Raises DataError for images that are in no folder of a class.
    """
    if isinstance(tree.root, Path) and tree.root.resolve().name in SPLIT_OF_WORD:
        return None
    images = list(filter(is_image, tree.files))
    start = _depth_of_classes(images)
    rows = []
    alone = []
    for image in images:
        folders = image.split("/")[:-1]
        named = next(filter(split_of_folder, folders), "")
        first = folders.index(named) + 1 if named else start
        if (split_of_folder(named) or "train") != split:
            continue
        if first < len(folders):
            name = "/".join(image.split("/")[first:])
            rows.append((name, _source(tree, image), folders[first]))
        else:
            alone.append(image)
    if alone and not rows:
        if split == "train":
            tree.raise_damage()
        raise _in_no_folder(tree, alone[0])
    return rows or None


def _in_no_folder(tree: Tree, image: str) -> DataError:
    """The error of an image that is in no folder of a class."""
    folder = tree.root / posixpath.dirname(image)
    remedy = f"move each image into {folder}/CLASS"
    if tree.ending(".txt", ".xml", ".json"):
        remedy += ", give experiment=finetune for boxes, or cut these out (docs/data.md)"
    tables = tree.ending(".csv", ".tsv", ".xlsx")
    if tables:
        remedy += f", or name two columns of {tables[0]} file and label, and save it as CSV"
    return DataError(f"{folder} holds images but no folder for each class; {remedy}.")


def _depth_of_classes(images: Sequence[str]) -> int:
    """How many folders are above those of the classes: those that all images share, where others
    are in them.
    """
    folders = set(map(posixpath.dirname, images))
    if len(folders) < 2:
        return 0
    above = posixpath.commonpath(folders)
    return len(above.split("/")) if above else 0


def _source(tree: Tree, file: str) -> Source:
    if isinstance(tree.root, Url):
        return RemoteFile(str(tree.root), file)
    return str(tree.root / file)


def is_table(tree: Tree, file: str) -> bool:
    """Whether a file has images and their classes, and no boxes.

    One with a column `id` may list the classes of folders: it has to name an image in none.
    """
    head = tree.head(file)
    if head.kind == "lines":
        return head.has("label") and (head.has("image_url") or head.has("file_name"))
    columns = _columns(head)
    if columns is None or head.keys[columns[0]].lower() != "id":
        return columns is not None
    first = posixpath.basename("".join(head.inner[columns[0] : columns[0] + 1]))
    for image in tree.images:
        folder, name = posixpath.split(image)
        if first in (name, posixpath.splitext(name)[0]):
            folder = posixpath.basename(folder).lower()
            return folder in NEUTRAL | {""} or split_of_folder(folder) is not None
    return False


def _columns(head: Head) -> tuple[int, int] | None:
    """The columns of the file and of the class; -1 for a column for each class."""
    images = list(map(is_image, head.keys))
    if any(images):  # no header
        file = images.index(True)
        return (file, int(file == 0)) if len(images) in (2, 3) else None
    if head.has("ImageId", "PredictionString"):  # of ImageNet
        return head.keys.index("ImageId"), head.keys.index("PredictionString")
    columns = columns_of(head.keys)
    if "file" not in columns or columns.keys() & {"x1", "x", "bbox"}:
        return None
    if "class" in columns:
        return columns["file"], columns["class"]
    others = list(head.inner)
    del others[columns["file"] : columns["file"] + 1]
    ones = others and {*others} <= {"0", "1"}
    return (columns["file"], -1) if ones or {*others} == {"0.0", "1.0"} else None


def _of_tables(tree: Tree, tables: Sequence[str], split: str) -> list[Row] | None:
    """The images of a split; None where tables of no split's name have no row of it."""
    rows = _from_tables(tree, tables, split)
    is_named = split in [split_of(file, by_word=True) for file in tables]
    return rows if rows or is_named else None


def _from_tables(tree: Tree, tables: Sequence[str], split: str) -> list[Row] | None:
    """The images of the table of a split. Raises DataError for two, and for what it lacks."""
    own = _of_split(tables, split)
    if not own:
        return None
    named = split_of(own[0], by_word=True)
    if len(own) > 1 and split in ("train", named):
        raise DataError(f"{tree.root}: {own[0]} and {own[1]} are both of {split}; remove one.")
    rows = []
    seen = set()
    missing = []
    for where, name, label, of in _labelled(tree, own[0]):
        if (named or _split_of_row(of)) != split:
            continue
        if not name or not label:
            raise DataError(f"{where} has no file or no class; write file,label.")
        found = tree.find(name, own[0], named)
        if found is None:
            missing.append(name)
        elif found in seen:
            raise DataError(f"{where} names {escape(name, 80)} again; keep one row of each file.")
        else:
            seen.add(found)
            rows.append((found, _source(tree, found), label))
    if missing:
        raise DataError(
            f"{tree.root / own[0]}: {len(missing)} of {len(missing) + len(rows)} images are not in "
            f"{tree.root}: {truncate(missing)}; restore them, or remove their rows."
        )
    return rows


def _of_split(tables: Sequence[str], split: str) -> list[str]:
    """Those whose names say so, or else those whose names say nothing."""
    splits = {file: split_of(file, by_word=True) for file in tables}
    own = [file for file in tables if splits[file] == split]
    return own or [file for file in tables if splits[file] is None]


def _labelled(tree: Tree, file: str) -> Iterator[tuple[str, str, str, str]]:
    """FILE: line NUMBER, the image, the class and the split of each row."""
    path = tree.root / file
    if file.lower().endswith(".jsonl"):
        for number, entry in json_lines(path, "json"):
            if isinstance(entry.get("label"), list):
                raise DataError(f"{path}:{number} has a list of labels; give one class.")
            name = entry.get("image_url") or entry.get("file_name")
            yield f"{path}: line {number}", str(name or ""), str(entry.get("label") or ""), ""
        return
    head = tree.head(file)
    columns = _columns(head)
    assert columns is not None, "it is a table"
    split = columns_of(head.keys).get("split", -1)
    has_header = not any(map(is_image, head.keys))
    for line, row in csv_rows(path):
        if line > 1 or not has_header:
            cells = [*map(str.strip, row), ""]
            if len(row) <= max(*columns, split):
                words = escape(",".join(row), 80)
                raise DataError(
                    f"{path}: line {line} is {words}, not file,label such as images/1.jpg,cat."
                )
            where = f"{path}: line {line}"
            label = _label(where, cells, columns[1], head)
            yield where, cells[columns[0]], label, cells[split]


def _split_of_row(cell: str) -> str:
    return split_of_cell(cell) or "train"


def _label(where: str, cells: Sequence[str], column: int, head: Head) -> str:
    if column >= 0:
        label = cells[column]
        return label.partition(" ")[0] if "PredictionString" in head.keys else label
    ones = [name for name, cell in zip(head.keys, cells) if cell in ("1", "1.0")]
    if len(ones) != 1:
        raise DataError(
            f"{where} has {pluralize(len(ones), 'class')}; give one: a classifier learns one of "
            "each image."
        )
    return ones[0]


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
        raise DataError(f"data={name} needs data.root=FOLDER, in Python root=FOLDER.")
    return parse_path(text)
