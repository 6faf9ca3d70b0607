"""The training and validation splits that data settings name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import PathOrUrl, parse_path
from retina_dist.base.registry import class_of, is_custom
from retina_dist.base.seeding import held_out_rows
from retina_dist.base.text import pluralize
from retina_dist.data.shards import annotations_of, has_shards
from retina_dist.data.synthetic import folder_to_draw
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.coco import (
    Annotations,
    clean,
    ground_truth_of,
    load_annotations,
    without_empty,
)
from retina_dist.detection.readers.formats import (
    TITLES,
    coco_files,
    find_split,
    read_folder,
    recognise,
)
from retina_dist.detection.readers.items import Items
from retina_dist.detection.readers.records import fill_sizes
from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig
from retina_dist.detection.settings import FOLDER_FORMATS, DetectionData

FEWEST_BOXES = 4  # from which on most of them tell how they were written


def draw_data(data: DetectionData) -> None:
    """Draw the shapes data set where the settings ask for it and it is not there yet."""
    if data.shapes is not None:
        make_shapes(folder_to_draw(data.root, "data.shapes"), **asdict(data.shapes))


def read_split(
    data: DetectionData, split: str, categories: Categories | None = None, *, check: bool = True
) -> Annotations | None:
    """The annotations of "train" or "val"; None for a validation set that the settings do not name.

    Draws the shapes data set first where the settings ask for it. `categories` fixes the labels (val takes the labels of train).
    Raises DataError for `implausible_boxes` unless `check` is False.
    """
    if data.val_fraction and not _has_val(data):
        return _part_of_train(data, split, categories, check)
    source: object = f"data={data.name}"
    if isinstance(data, TorchDatasetConfig):
        part = data.read(split, categories=categories)
    else:
        draw_data(data)
        given, data = data, with_format(data)
        if (place := _locate(data, split)) is None:
            return None
        content, source, images = place
        keys = ("format", "classes", "box_format", "missing_images", "bad_images", "max_pixels")
        options: dict[str, Any] = {key: getattr(data, key) for key in keys}
        part = load_annotations(
            source, images, content=content, split=split, categories=categories, **options
        )
        if data.format != given.format and data.shapes is None:
            part.format = TITLES[data.format]
    if part is None:
        return None
    if not part.records:
        raise DataError(
            f"{source} leaves no image for {split}; give annotations or a dataset with images."
        )
    if check and (problem := implausible_boxes(part, split, data)):
        raise DataError(f"{source}: {split}: {'; '.join(problem)}.")
    return part if data.keep_empty_images or split == "val" else without_empty(part)


def _has_val(data: DetectionData) -> bool:
    """Whether data with a `val_fraction` has a validation split by itself. Raises DataError if that split is damaged."""
    if isinstance(data, TorchDatasetConfig):
        return "val" in data.datasets
    return data.shapes is not None or _locate(with_format(data), "val") is not None


def _part_of_train(
    data: DetectionData, split: str, categories: Categories | None, check: bool
) -> Annotations:
    """The training images that `val_fraction` holds out for "val", or leaves for "train". Raises DataError where none is left."""
    fraction = data.val_fraction or 0.0
    whole = read_split(
        data.with_values(val_fraction=None, keep_empty_images=True),
        "train",
        categories,
        check=check,
    )
    assert whole is not None, "a missing train split is an error"
    part = _with_ground_truth(
        whole, held_out_rows([record.file_name for record in whole.records], fraction)[split]
    )
    part.held_out = fraction if split == "val" else None
    return part if data.keep_empty_images or split == "val" else without_empty(part)


def with_format(data: DetectionData) -> DetectionData:
    """The settings with the format of the files instead of "auto". Raises DataError for a folder of no format."""
    place = data.train_annotations or data.val_annotations or data.root
    if is_custom(data) or place is None:
        return data
    path = parse_path(place)
    if place == data.root and isinstance(path, Path) and not path.is_dir():
        raise DataError(
            f"data.root={path} is not a folder; give the one that holds the annotations."
        )
    if data.format == "auto":
        by_ending = "csv" if path.name.lower().endswith(".csv") else "coco"
        data = data.with_values(
            format=by_ending if place != data.root and not path.is_dir() else recognise(path)
        )
        data.check()
    return data


def _locate(
    data: DetectionData, split: str
) -> tuple[Items | dict[str, Any] | None, PathOrUrl, PathOrUrl] | None:
    """(content, annotations, folder of the images) of a split; the content is None where the annotations are a file.

    None for a validation set that the settings do not name, or that is to be held out of train.
    """
    if is_custom(data):
        if part := class_of(data)(data).read(split):
            folder = parse_path(part[1])
            return part[0], parse_path(data.root) if data.root else folder, folder
        if split == "train":
            raise DataError(f"data={data.name} has no images to train on in data.root={data.root}.")
        return None
    annotations, images = getattr(data, f"{split}_annotations"), getattr(data, f"{split}_images")
    optional = split == "val" and annotations is None
    if annotations is None and data.root is None:
        if optional:
            return None
        raise ConfigError(
            f"data={data.name} needs data.root=FOLDER, or data.train_annotations and data.train_images."
        )
    root = parse_path(data.root) if data.root else parse_path(annotations).parent
    if data.format in FOLDER_FORMATS:
        content = read_folder(data.format, root, split)
        return (content, root, root) if content else None
    if data.format == "shards":
        if optional and not has_shards(root, split):
            return None
        return (
            None,
            (parse_path(annotations) if annotations else root / annotations_of(split)),
            root,
        )
    if optional and data.val_fraction:  # without the fraction, a missing one is an error
        found = root.glob("val.csv") if data.format == "csv" else coco_files(root, "val")
        if not any(found):
            return None
    if annotations is not None:
        file, folder = parse_path(annotations), root
    elif data.format == "csv":
        file, folder = root / f"{split}.csv", root
    else:
        file, folder = find_split(root, split)
    return None, file, parse_path(images) if images else folder


def implausible_boxes(
    part: Annotations, split: str, data: DetectionData | None = None
) -> tuple[str, str] | None:
    """The fault of most boxes of a split that was read as `data` says, and the remedy; None where they can be trained on.

    Boxes read in the wrong form mostly leave their image or have no area, and fit when read in another. `data.box_format=xywh`
    overrules this judgement. Crowd regions do not count.
    """
    entries = [entry for entry in part.coco["annotations"] if not entry["iscrowd"]]
    boxes = np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4)
    start, side = boxes[:, :2], boxes[:, 2:]
    if len(boxes) and (np.abs(side) <= 1).all():
        return (
            "no box is larger than one pixel",
            "multiply shares of the image by its width and height",
        )
    size_of = {record.image_id: (record.width, record.height) for record in part.records}
    sizes = np.array([size_of[entry["image_id"]] for entry in entries], dtype=np.float64).reshape(
        -1, 2
    )
    known = sizes.min(axis=1, initial=np.inf) > 0
    fits = _fits(start, start + side, sizes)[known]
    if (
        known.sum() >= FEWEST_BOXES
        and fits.mean() < 0.9
        and not (data and data.box_format == "xywh")
    ):
        corners = data is not None and data.has_corners
        if corners:
            form, remedy = (
                "they are x, y, width, height",
                "set data.box_format=xywh (csv, voc: correct the files)",
            )
        else:
            form, remedy = (
                "they are two corners, x1, y1, x2, y2",
                "set data.box_format=xyxy, or xywh if they are right",
            )
        readings = [
            (form, remedy, start, side + 2 * start * corners, 0.95 if fits.mean() < 0.5 else 1)
        ]
        if known.sum() >= 20:
            form, remedy = "x, y is the centre of a box", "subtract half of width and height"
            readings.append((form, remedy, start - side / 2, start + side / 2, 1))
        for form, remedy, low, high, share in readings:
            if _fits(low, high, sizes)[known].mean() >= share:
                bad = int((~fits).sum())
                return (
                    f"{bad} of {len(fits)} boxes leave their image or have no area, but fit if {form}",
                    remedy,
                )
    if not sum(map(len, part.boxes)) and (len(boxes) or split == "train"):
        causes = [f"{count} {why}" for why, count in part.dropped.items()] or ["none is annotated"]
        return (
            f"no box is left ({', '.join(causes)})",
            "correct the boxes, or give the right annotations",
        )
    return None


def _fits(low: np.ndarray, high: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes with corners [n, 2] have an area and lie in images of `sizes` [n, 2], but for 2 px or 2 % of a side."""
    slack = np.maximum(2, 0.02 * sizes)
    with np.errstate(invalid="ignore"):
        return np.asarray(((low >= -slack) & (high <= sizes + slack) & (high > low)).all(axis=1))


def first_images_with_objects(annotations: Annotations, count: int) -> Annotations:
    """The first `count` images that have boxes, or of all where none has, as a data set with their ground truth."""
    rows = [i for i, boxes in enumerate(annotations.boxes) if len(boxes)] or range(
        len(annotations.records)
    )
    return _with_ground_truth(annotations, rows[:count])


def _with_ground_truth(annotations: Annotations, rows: Sequence[int]) -> Annotations:
    """The images of these rows, the ground truth of these alone, and the counts of their boxes."""
    records = [annotations.records[row] for row in rows]
    coco = ground_truth_of(annotations.coco, {record.image_id for record in records})
    part = clean(coco, records, annotations.categories)
    return replace(part, warnings=annotations.warnings, format=annotations.format)


def sized_coco(part: Annotations, max_pixels: int) -> dict[str, Any]:
    """The ground truth with the width and height of each image whose file is there and has at most `max_pixels`."""
    records = fill_sizes(list(part.records), "skip", max_pixels, [])
    size_of = {
        record.image_id: {"width": record.width, "height": record.height} for record in records
    }
    images = [entry | size_of.get(entry["id"], {}) for entry in part.coco["images"]]
    return part.coco | {"images": images}


def describe_split(part: Annotations) -> str:
    """Images and boxes of a split, and what was left out of it."""
    boxes = sum(map(len, part.boxes))
    empty = sum(1 for b in part.boxes if not len(b))
    extra = [f"{pluralize(empty, 'image')} without boxes"] if empty else []
    extra += (
        [f"{pluralize(part.num_crowd, 'crowd region')} (evaluated, not trained on)"]
        if part.num_crowd
        else []
    )
    extra += [
        f"{pluralize(count, 'box')} dropped: {name}"
        for name, count in part.dropped.items()
        if count
    ]
    extra += [f"{pluralize(part.clipped, 'box')} clipped to their image"] if part.clipped else []
    extra += [f"held out of train by data.val_fraction={part.held_out}"] if part.held_out else []
    extra += [f"{part.format}, as recognised"] if part.format else []
    return "; ".join(
        [f"{pluralize(len(part.records), 'image')}, {pluralize(boxes, 'box')}", *extra]
    )
