"""What was read of a data set: images, the boxes to train on, and the ground truth to judge by;
which boxes are faulty, and whether most were read as they were written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from retina_dist.base.text import pluralize, truncate
from retina_dist.data.sources import ImageSource
from retina_dist.data.val_fraction import held_out_rows
from retina_dist.detection.readers.categories import Categories, Entry
from retina_dist.detection.readers.ground_truth import GroundTruth
from retina_dist.detection.readers.items import LeftOut
from retina_dist.detection.readers.records import ImageRecord

T = TypeVar("T")

ROUNDING = 0.01  # pixels: what six digits of a share of a side leave
CLIPPED = "reaching out of the image"
# of image, class and box, so that the sum tells rows apart
ROW_WEIGHTS = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
MIN_BOXES = 4  # Below this many boxes, do not guess how they were written.
MIN_BOXES_CENTRED = 20  # nor below this many that x, y is a centre


@dataclass
class Annotations:
    """A data set's images with the boxes to train on, and the ground truth to judge by.

    Args:
        truth: boxes as in the file, missing id, area and iscrowd filled in.
        records: the images.
        boxes: of each record, float32 [n, 4] xyxy within the image; no crowd regions.
        labels: of each record, int64 [n].
        categories: the category id and the name of each label.
        sizes: (width, height) of each object's image, float64 [A, 2]; infinite where not known.
        num_crowd: crowd regions.
        clipped: boxes that reached out of their image.
        dropped: how many boxes cannot be trained on, by the reason.
        warnings: sentences for the log.
        format: the title of the data format, where it was recognised.
        held_out: the share of the training images that these are.
        left_out: what of the data set the split does not have.
        box_format: the form in which the boxes were read, "xyxy", or the one that the settings
            vouch for, "xywh"; None: xywh, which nobody has said.
        centred: x, y of a box in the files is its centre.
    """

    truth: GroundTruth
    records: tuple[ImageRecord, ...]
    boxes: list[np.ndarray]
    labels: list[np.ndarray]
    categories: Categories
    sizes: np.ndarray
    num_crowd: int = 0
    clipped: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    format: str = ""
    held_out: float | None = None
    box_format: str | None = None
    centred: bool = False
    left_out: Sequence[LeftOut] = ()

    @property
    def coco(self) -> Entry:
        """The ground truth as COCO's dictionary, made anew each time."""
        return self.truth.to_coco()

    def digest(self) -> str:
        """A digest of the images' names and sizes, and of the boxes and the classes to train on."""
        found = hashlib.sha256(repr(self.categories.names).encode())
        for record, boxes, labels in zip(self.records, self.boxes, self.labels, strict=True):
            image = (record.image_id, record.file_name, record.size)
            found.update(repr(image).encode() + boxes.tobytes() + labels.tobytes())
        return found.hexdigest()

    @property
    def sources(self) -> list[ImageSource]:
        return [record.path for record in self.records]

    @property
    def image_ids(self) -> list[int]:
        return [record.image_id for record in self.records]

    @property
    def by_id(self) -> dict[int, ImageRecord]:
        return dict(zip(self.image_ids, self.records, strict=True))

    def describe(self, known: Sequence[str] = ()) -> str:
        """Images and boxes, and what was left out; `known` classes need no box."""
        boxes = sum(map(len, self.boxes))
        facts = [f"{pluralize(len(self.records), 'image')}, {pluralize(boxes, 'box')}"]
        empty = len(self.boxes) - sum(map(bool, map(len, self.boxes)))
        if empty:
            facts.append(f"{pluralize(empty, 'image')} without boxes")
        if self.num_crowd:
            facts.append(f"{pluralize(self.num_crowd, 'crowd region')} (evaluated, not trained on)")
        for name, count in self.dropped.items():
            facts.append(f"{pluralize(count, 'box')} {name} (evaluated, not trained on)")
        facts += map(str, self.left_out)
        seen = set(np.concatenate([[], *self.labels]).tolist())
        absent = []
        for label, name in enumerate(self.categories.names):
            if name not in {"", *known} and label not in seen:
                absent.append(name)
        if absent and boxes:
            facts.append(f"{pluralize(len(absent), 'class')} without a box: {truncate(absent, 1)}")
        if self.clipped:
            facts.append(f"{pluralize(self.clipped, 'box')} clipped to their image")
        if self.held_out:
            facts.append(f"held out of train by data.val_fraction={self.held_out}")
        if self.format:
            facts.append(f"{self.format}, as recognised")
        return "; ".join(facts)

    def with_labels(self, categories: Categories) -> Annotations:
        """The same with the labels of `categories`, which have these names among others."""
        places = list(map(categories.names.index, self.categories.names))
        labels = [np.array(places)[each] for each in self.labels]
        return replace(self, labels=labels, categories=categories)

    def with_rows(self, rows: Sequence[int]) -> Annotations:
        """The images of these rows, the ground truth of these alone, and the counts of
        their boxes.
        """
        records = _taken(self.records, rows)
        truth = self.truth.of_images({record.image_id for record in records})
        return replace(self, truth=truth).with_records(records)

    def with_records(self, records: Sequence[ImageRecord]) -> Annotations:
        """The same with these records of all images, by whose sizes the boxes are cleaned again."""
        return replace(
            clean(self.truth, records, self.categories),
            warnings=self.warnings,
            format=self.format,
            box_format=self.box_format,
            left_out=self.left_out,
        )

    def hold_out(self, fraction: float) -> dict[str, Annotations]:
        """Of training images the `fraction` held out for "val", and those left for "train".

        Raises DataError where none is left.
        """
        names = [record.file_name for record in self.records]
        rows = held_out_rows(names, self.sources, fraction)
        parts = {split: self.with_rows(chosen) for split, chosen in rows.items()}
        parts["val"].held_out = fraction
        return parts


def _taken(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    return [column[row] for row in rows]


def box_faults(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Boxes within their images, and which of them are faulty.

    Args:
        boxes: [n, 4] x, y, width, height in pixels.
        sizes: [n, 2] (width, height) of each box's image.

    Returns the corners [n, 4] float32, clipped to the image, and a mask [n] for each kind of fault.
    A box has at most one fault: the first of the dictionary. All but the last exclude it from
    training.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # boxes that are not finite
        corners = np.hstack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]))
        clipped = np.clip(corners, 0, np.tile(sizes, 2))
        # judged as training will see it: a side can vanish in the rounding
        inside = clipped.astype(np.float32)
        moved = (np.abs(clipped - corners) > ROUNDING).any(axis=1)
    faults = {
        "not finite": ~np.isfinite(boxes).all(axis=1),
        "of zero or negative size": (boxes[:, 2:] <= 0).any(axis=1),
        "outside the image": ~(inside[:, 2:] > inside[:, :2]).all(axis=1),
        CLIPPED: moved,
    }
    sound = np.ones(len(boxes), dtype=bool)
    for mask in faults.values():
        mask &= sound
        sound &= ~mask
    return inside, faults


def sizes_of(records: Sequence[ImageRecord]) -> np.ndarray:
    """(width, height) of each image, float64 [n, 2]; infinite where it is not known."""
    sizes = [(record.width or np.inf, record.height or np.inf) for record in records]
    return np.array(sizes, dtype=np.float64).reshape(-1, 2)


def clean(
    truth: GroundTruth, records: Sequence[ImageRecord], categories: Categories
) -> Annotations:
    """The boxes to train on: finite, clipped to their image, with an area, no crowd regions.

    `records` are of the images of `truth`, in their order.
    """
    crowd = truth.crowd
    rows = truth.image_rows
    sizes = sizes_of(records)[rows]
    inside, faults = box_faults(truth.boxes, sizes)
    clipped = faults.pop(CLIPPED) & ~crowd
    good = ~crowd
    dropped: dict[str, int] = {}
    for fault, mask in faults.items():
        count = int((mask & ~crowd).sum())
        if count:
            dropped[fault] = count
        good &= ~mask
    order = np.flatnonzero(good)[np.argsort(rows[good], kind="stable")]

    ends = np.searchsorted(rows[order], np.arange(1, len(records) + 1))
    label_of = categories.label_of
    labels = [label_of[i] for i in truth.category_ids[order].tolist()]
    return Annotations(
        truth=truth,
        records=tuple(records),
        boxes=_parts(inside[order], ends),
        labels=_parts(np.array(labels, dtype=np.int64), ends),
        categories=categories,
        sizes=sizes,
        num_crowd=int(crowd.sum()),
        clipped=int(clipped.sum()),
        dropped=dropped,
    )


def _parts(rows: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """The rows before the first end, those up to the second, and so on."""
    return [rows[start:end] for start, end in pairwise([0, *ends.tolist()])]


def without_empty(full: Annotations) -> Annotations:
    """Leave out the images without boxes, with a warning that counts them; the ground
    truth stays.
    """
    rows = [row for row, boxes in enumerate(full.boxes) if len(boxes)]
    empty = len(full.records) - len(rows)
    if not empty:
        return full
    left_out = f"{pluralize(empty, 'image')} without boxes left out"
    return replace(
        full,
        records=tuple(_taken(full.records, rows)),
        boxes=_taken(full.boxes, rows),
        labels=_taken(full.labels, rows),
        warnings=[*full.warnings, f"{left_out} (data.keep_empty_images=false)"],
    )


class BoxForm:
    """Whether boxes were read in the form in which they were written.

    Boxes read in the wrong form mostly leave their image or have no area, and fit when read in
    another. `data.box_format=xywh` says that they are right. Crowd regions do not count.

    Args:
        part: the boxes, in which images they are, and how they were read.
    """

    def __init__(self, part: Annotations) -> None:
        self.part = part
        counts = ~part.truth.crowd
        self.boxes = part.truth.boxes[counts]
        sizes = part.sizes[counts]
        known = np.isfinite(sizes).all(axis=1)
        # of those whose image has a known size: upper left corner, sides, size of the image [n, 2]
        self.start = self.boxes[known, :2]
        self.side = self.boxes[known, 2:]
        self.sizes = sizes[known]
        self.inside = self._inside(self.start, self.start + self.side)
        # the last two of four numbers, as the file has them
        self.written = self.side
        if part.box_format == "xyxy":
            self.written = self.start + self.side

    @property
    def fits(self) -> bool:
        """Whether nine tenths of the boxes lie in their image, or nobody can or shall tell."""
        is_given = self.part.box_format == "xywh"
        return is_given or len(self.inside) < MIN_BOXES or self.inside.mean() >= 0.9

    def fault(self, split: str) -> tuple[str, str] | None:
        """The fault of most boxes of a split and the remedy; None where they can be trained on."""
        part = self.part
        fault = self.misread()
        if fault or any(map(len, part.boxes)) or (split != "train" and not len(self.boxes)):
            return fault
        causes = [f"{count} {why}" for why, count in part.dropped.items()]
        remedy = "give the right annotations"
        if part.num_crowd:
            remedy = "crowd regions are not trained on: set iscrowd (difficult, IsGroupOf) to 0"
        if not causes:
            return "no box is annotated", remedy
        remedy = "correct the boxes (shares or pixels?), or give the right annotations"
        return f"no box is left ({', '.join(causes)})", remedy

    def misread(self) -> tuple[str, str] | None:
        """The form in which most boxes would fit, and the remedy, where they do not as they were
        read.
        """
        sides = self.boxes[:, 2:]
        if len(sides) and (np.abs(sides) <= 1).all():
            remedy = "multiply shares of the image by its width and height"
            return "no box is larger than one pixel", remedy
        if self.fits or self.part.centred:  # of YOLO, whose form is but suspected
            return None

        outside = int((~self.inside).sum())
        bad = f"{outside} of {len(self.inside)} boxes leave their image or have no area, but fit if"
        enough = 0.95 if self.inside.mean() < 0.5 else 1.0
        if self.part.box_format == "xyxy":
            form = "they are x, y, width, height"
            remedy = "set data.box_format=xywh (csv: name the columns x, y, w, h; correct voc)"
            end = self.start + self.written
        else:
            form = "they are two corners, x1, y1, x2, y2"
            remedy = "set data.box_format=xyxy, or xywh if they are right"
            end = self.written
        if self._inside(self.start, end).mean() >= enough:
            return f"{bad} {form}", remedy
        half = self.written / 2
        centred = self._inside(self.start - half, self.start + half)
        if len(self.inside) >= MIN_BOXES_CENTRED and centred.all():
            return f"{bad} x, y is the centre of a box", "subtract half of width and height"
        return None

    def suspected(self) -> list[str]:
        """A warning of the form in which many boxes that leave their image would fit.

        It is no error, since no setting says that the boxes are right. Empty where they are
        `misread`.
        """
        start, side = self.start, self.side
        many = len(side) >= MIN_BOXES_CENTRED and self.part.box_format != "xywh"
        if many and (2 * (start + side) < self.sizes).all():
            where = "all boxes are in the upper left quarter of the images"
            return [f"{where}; if they are of a smaller size, scale them to the images' pixels"]
        if self.fits or self.misread():
            return []
        swapped = "x and y, or width and height of the images, are swapped; correct the files"
        forms = {swapped: (start[:, ::-1], (start + side)[:, ::-1])}
        sides = np.stack((start, self.written), axis=2)
        forms["they are x1, x2, y1, y2; correct their order"] = (sides[:, 0], sides[:, 1])
        forms["the sides are x2 and y2; name the columns so, or subtract x1 and y1"] = (start, side)
        if self.part.centred:
            written = start + side / 2
            line = "write class, x and y of the centre, width, height"
            forms[f"a line has two corners; {line}"] = (written, side)
            forms[f"x, y is the upper left corner; {line}"] = (written, written + side)
        for form, corners in forms.items():
            if self._inside(*corners).mean() >= 0.95:
                bad = f"{(~self.inside).sum()} of {len(self.inside)} boxes leave their image"
                return [f"{bad}, but fit if {form}"]
        if many and self.inside.mean() < 0.5:
            return ["most boxes leave their image; scale them to the size of the image in pixels"]
        return []

    def _inside(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether boxes with corners [n, 2] have an area and lie in their images.

        2 px or 2 % of a side are let pass.
        """
        slack = np.maximum(2, 0.02 * self.sizes)
        with np.errstate(invalid="ignore"):
            fits = (low >= -slack) & (high <= self.sizes + slack) & (high > low)
        return np.asarray(fits.all(axis=1))


def repeated_boxes(part: Annotations) -> list[str]:
    """A warning where most boxes are there twice, as of a file that was joined to itself."""
    truth = part.truth
    columns = (truth.image_rows, truth.category_ids, *truth.boxes.T)
    rows = np.column_stack(columns)
    if not len(rows) or len(np.unique(rows @ ROW_WEIGHTS, equal_nan=False)) > len(rows) / 2:
        return []
    return [f"most of {pluralize(len(rows), 'box')} are there twice; remove the copies"]
