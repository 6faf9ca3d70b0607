"""Whether boxes were read as they were written: those in another form mostly leave their image."""

from __future__ import annotations

import numpy as np

from retina_dist.detection.readers.annotations import Annotations, sizes_of
from retina_dist.detection.readers.ground_truth import GroundTruth

MIN_BOXES = 4  # Below this many boxes, do not guess how they were written.
MIN_BOXES_CENTRED = 20  # nor below this many that x, y is a centre


def implausible_boxes(part: Annotations, split: str) -> tuple[str, str] | None:
    """The fault of most boxes of a split and the remedy; None where they can be trained on.

    Boxes read in the wrong form mostly leave their image or have no area, and fit when read in
    another. `data.box_format=xywh` overrules this judgement. Crowd regions do not count.
    """
    objects = part.truth.of_objects(~part.truth.crowd)
    boxes = objects.boxes
    if len(boxes) and (np.abs(boxes[:, 2:]) <= 1).all():
        remedy = "multiply shares of the image by its width and height"
        return "no box is larger than one pixel", remedy

    misread = _misread(part, objects)
    if misread is not None:
        return misread

    if any(map(len, part.boxes)) or (split != "train" and not len(boxes)):
        return None
    causes = [f"{count} {why}" for why, count in part.dropped.items()] or ["none is annotated"]
    remedy = "correct the boxes, or give the right annotations"
    return f"no box is left ({', '.join(causes)})", remedy


def _misread(part: Annotations, objects: GroundTruth) -> tuple[str, str] | None:
    """The form in which most boxes would fit, and the remedy, where they do not as they were
    read.
    """
    if part.box_format == "xywh":
        return None
    rows = objects.rows_in([record.image_id for record in part.records])
    sizes = sizes_of(part.records)[rows]
    start = objects.boxes[:, :2]
    side = objects.boxes[:, 2:]
    known = np.isfinite(sizes).all(axis=1)
    fits = _fits(start, start + side, sizes)
    share = fits[known].mean() if known.any() else 1.0
    if known.sum() < MIN_BOXES or share >= 0.9:
        return None

    bad = f"{int((~fits).sum())} of {len(fits)} boxes leave their image or have no area, but fit if"
    enough = 0.95 if share < 0.5 else 1.0
    if part.box_format == "xyxy":
        form = "they are x, y, width, height"
        remedy = "set data.box_format=xywh (csv, voc: correct the files)"
        end = side + 2 * start
    else:
        form = "they are two corners, x1, y1, x2, y2"
        remedy = "set data.box_format=xyxy, or xywh if they are right"
        end = side
    if _fits(start, end, sizes)[known].mean() >= enough:
        return f"{bad} {form}", remedy
    centred = _fits(start - side / 2, start + side / 2, sizes)[known]
    if known.sum() >= MIN_BOXES_CENTRED and centred.all():
        return f"{bad} x, y is the centre of a box", "subtract half of width and height"
    return None


def _fits(low: np.ndarray, high: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes with corners [n, 2] have an area and lie in images of `sizes` [n, 2].

    2 px or 2 % of a side are let pass.
    """
    slack = np.maximum(2, 0.02 * sizes)
    with np.errstate(invalid="ignore"):
        return np.asarray(((low >= -slack) & (high <= sizes + slack) & (high > low)).all(axis=1))
