"""The training and validation splits that data settings name: found, read, checked.

Boxes that were not read as they were written mostly leave their image.
"""

from collections.abc import Sequence

import numpy as np

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.text import pluralize
from retina_dist.detection.readers.annotations import Annotations, sizes_of, without_empty
from retina_dist.detection.readers.categories import Categories, Entry
from retina_dist.detection.readers.formats import AnnotationReader
from retina_dist.detection.readers.ground_truth import GroundTruth
from retina_dist.detection.readers.load import annotations_of, pausing_gc
from retina_dist.detection.readers.records import fill_sizes
from retina_dist.detection.settings import DetectionData

MIN_BOXES = 4  # Below this many boxes, do not guess how they were written.
MIN_BOXES_CENTRED = 20  # nor below this many that x, y is a centre


def read_split(
    data: DetectionData,
    split: str,
    categories: Categories | None = None,
    *,
    check: bool = True,
    reader: AnnotationReader | None = None,
) -> Annotations | None:
    """The annotations of "train", "val" or "test"; None for one that the settings do not name.

    "val" is the split that data.val_split names.

    The data is found and read, checked, its labels numbered, its images found and its boxes
    cleaned.

    Args:
        data: names the files, says how they are read, and perhaps holds a part of train out for
            val.
        split: its name.
        categories: fixes the labels, as val takes the labels of train.
        check: raise DataError for `implausible_boxes`.
        reader: of `data`, if several splits are read.
    """
    reader = reader or data.reader()
    fraction = _held_out(data, split, reader)
    if fraction:
        whole = _read(data, "train", categories, check, reader)
        part = whole and whole.hold_out(fraction)[split]
    else:
        part = _read(data, data.val_split if split == "val" else split, categories, check, reader)
    if part is None and split == "val" and data.val_split != "val":
        raise DataError(
            f"data={data.name} has no such split, data.val_split={data.val_split}; leave it out."
        )
    return _for_training(part, data) if part and split == "train" else part


def _read(
    data: DetectionData,
    place: str,
    categories: Categories | None,
    is_strict: bool,
    reader: AnnotationReader,
) -> Annotations | None:
    """All images of a split of the files."""
    set_status(f"reading the data, {place}")
    with pausing_gc():
        content = reader.content(place)
        if content is None:
            return None
        part = annotations_of(content, data, categories)
    _check(part, content.source, place, is_strict=is_strict)
    part.warnings += suspected_boxes(part)
    return part


def _for_training(part: Annotations, data: DetectionData) -> Annotations:
    return part if data.keep_empty_images else without_empty(part)


def read_splits(
    data: DetectionData,
    num_classes: int | None = None,
    *,
    check: bool = True,
    reader: AnnotationReader | None = None,
) -> tuple[Annotations, Annotations | None]:
    """`read_split` of "train" and of "val", which takes the labels of train; with labels up to
    `num_classes`.
    """
    reader = reader or data.reader()
    fraction = _held_out(data, "val", reader)
    whole = _read(data, "train", None, check, reader)
    assert whole is not None, "a missing train split is an error"
    whole.categories = whole.categories.padded(num_classes or 0)
    if fraction:  # one reading for both
        parts = whole.hold_out(fraction)
        return _for_training(parts["train"], data), parts["val"]
    val = read_split(data, "val", whole.categories, check=check, reader=reader)
    if val and len(val.records) == len(whole.records) and val.digest() == whole.digest():
        val.warnings.append("val has the images and boxes of train; name others, or leave it out")
    return _for_training(whole, data), val


def _held_out(data: DetectionData, split: str, reader: AnnotationReader) -> float | None:
    """The share of train that is held out for "val", where there is no such split."""
    if not data.val_fraction or split == "test" or reader.has(data.val_split):
        return None
    return data.val_fraction


def _check(part: Annotations, source: object, split: str, *, is_strict: bool) -> None:
    """Raise DataError for a split without images, or with `implausible_boxes`."""
    if not part.records:
        raise DataError(
            f"{source} leaves no image for {split}; give annotations or a dataset with images."
        )
    problem = implausible_boxes(part, split) if is_strict else None
    if problem is not None:
        raise DataError(f"{source}: {split}: {'; '.join(problem)}.")


def first_images_with_objects(annotations: Annotations, count: int) -> Annotations:
    """The first `count` images that have boxes, or of all where none has."""
    rows: Sequence[int] = [row for row, boxes in enumerate(annotations.boxes) if len(boxes)]
    if not rows:
        rows = range(len(annotations.records))
    return annotations.with_rows(rows[:count])


def unread_test(data: DetectionData, reader: AnnotationReader, *, validates: bool) -> str:
    """What to say of a test split that no training reads; "" where there is none."""
    if data.val_split == "test":
        return ""
    try:
        if not reader.has("test"):
            return ""
        count = pluralize(reader.count("test"), "image")
    except DataError as error:
        return f"cannot be read: {error}"
    use = "evaluate split=test judges on it"
    if not validates:
        use = f"data.val_split=test validates on it, {use}"
    return f"{count}, not trained on; {use}"


def sized_coco(part: Annotations, max_pixels: int) -> Entry:
    """The ground truth with width and height of each image whose file is there and small enough."""
    sized = fill_sizes(part.records, "skip", max_pixels).records
    size_of = {record.image_id: record for record in sized}
    coco = part.coco
    images = []
    for entry in coco["images"]:
        record = size_of.get(entry["id"])
        if record is not None:
            entry = {**entry, "width": record.width, "height": record.height}
        images.append(entry)
    return coco | {"images": images}


def implausible_boxes(part: Annotations, split: str) -> tuple[str, str] | None:
    """The fault of most boxes of a split and the remedy; None where they can be trained on.

    Boxes read in the wrong form mostly leave their image or have no area, and fit when read in
    another. `data.box_format=xywh` overrules this judgement. Crowd regions do not count.
    """
    objects = part.truth.of_objects(~part.truth.crowd)
    boxes = objects.boxes
    misread = misread_boxes(part, objects)
    if misread is not None:
        return misread

    if any(map(len, part.boxes)) or (split != "train" and not len(boxes)):
        return None
    causes = [f"{count} {why}" for why, count in part.dropped.items()] or ["none is annotated"]
    remedy = "correct the boxes, or give the right annotations"
    return f"no box is left ({', '.join(causes)})", remedy


def misread_boxes(part: Annotations, objects: GroundTruth) -> tuple[str, str] | None:
    """The form in which most boxes of objects in these images would fit, and the remedy, where
    they do not as they were read.
    """
    sides = objects.boxes[:, 2:]
    if len(sides) and (np.abs(sides) <= 1).all():
        remedy = "multiply shares of the image by its width and height"
        return "no box is larger than one pixel", remedy

    found = _misfits(part, objects)
    if found is None:
        return None
    start, side, sizes, fits = found
    bad = f"{int((~fits).sum())} of {len(fits)} boxes leave their image or have no area, but fit if"
    enough = 0.95 if fits.mean() < 0.5 else 1.0
    if part.box_format == "xyxy":
        form = "they are x, y, width, height"
        remedy = "set data.box_format=xywh (csv, voc: correct the files)"
        end = side + 2 * start
    else:
        form = "they are two corners, x1, y1, x2, y2"
        remedy = "set data.box_format=xyxy, or xywh if they are right"
        end = side
    if _fits(start, end, sizes).mean() >= enough:
        return f"{bad} {form}", remedy
    centred = _fits(start - side / 2, start + side / 2, sizes)
    if len(fits) >= MIN_BOXES_CENTRED and centred.all():
        return f"{bad} x, y is the centre of a box", "subtract half of width and height"
    return None


def suspected_boxes(part: Annotations) -> list[str]:
    """A warning of the form in which many boxes that leave their image would fit.

    It is no error, since no setting says that the boxes are right. Empty where `misread_boxes`
    finds a fault.
    """
    objects = part.truth.of_objects(~part.truth.crowd)
    found = _misfits(part, objects)
    if found is None or misread_boxes(part, objects):
        return []
    start, side, sizes, fits = found
    swapped = "x and y, or width and height of the images, are swapped; correct the files"
    forms = {swapped: (start[:, ::-1], (start + side)[:, ::-1])}
    if part.centred:
        written = start + side / 2
        line = "write class, x and y of the centre, width, height"
        forms[f"a line has two corners; {line}"] = (written, side)
        forms[f"x, y is the upper left corner; {line}"] = (written, written + side)
    for form, corners in forms.items():
        if _fits(*corners, sizes).mean() >= 0.95:
            return [f"{(~fits).sum()} of {len(fits)} boxes leave their image, but fit if {form}"]
    return []


def _misfits(part: Annotations, objects: GroundTruth) -> tuple[np.ndarray, ...] | None:
    """Upper left corner, sides and size of the image of each object [n, 2] whose size is known, and
    which lie in their image [n]; None where nine tenths do, or nobody can or shall tell.
    """
    rows = objects.rows_in(part.image_ids)
    sizes = sizes_of(part.records)[rows]
    known = np.isfinite(sizes).all(axis=1)
    sizes = sizes[known]
    start = objects.boxes[known, :2]
    side = objects.boxes[known, 2:]
    fits = _fits(start, start + side, sizes)
    if part.box_format == "xywh" or len(fits) < MIN_BOXES or fits.mean() >= 0.9:
        return None
    return start, side, sizes, fits


def _fits(low: np.ndarray, high: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes with corners [n, 2] have an area and lie in images of `sizes` [n, 2].

    2 px or 2 % of a side are let pass.
    """
    slack = np.maximum(2, 0.02 * sizes)
    with np.errstate(invalid="ignore"):
        return np.asarray(((low >= -slack) & (high <= sizes + slack) & (high > low)).all(axis=1))
