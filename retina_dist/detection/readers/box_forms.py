"""Whether boxes were read as they were written: those that were not mostly leave their image."""

import numpy as np

from retina_dist.detection.readers.annotations import Annotations

MIN_BOXES = 4  # Below this many boxes, do not guess how they were written.
MIN_BOXES_CENTRED = 20  # nor below this many that x, y is a centre


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
        if not causes:
            return "no box is annotated", "give the right annotations"
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
        if self.fits:
            return None

        outside = int((~self.inside).sum())
        bad = f"{outside} of {len(self.inside)} boxes leave their image or have no area, but fit if"
        enough = 0.95 if self.inside.mean() < 0.5 else 1.0
        if self.part.box_format == "xyxy":
            form = "they are x, y, width, height"
            remedy = "set data.box_format=xywh (csv, voc: correct the files)"
            end = self.side + 2 * self.start
        else:
            form = "they are two corners, x1, y1, x2, y2"
            remedy = "set data.box_format=xyxy, or xywh if they are right"
            end = self.side
        if self._inside(self.start, end).mean() >= enough:
            return f"{bad} {form}", remedy
        centred = self._inside(self.start - self.side / 2, self.start + self.side / 2)
        if len(self.inside) >= MIN_BOXES_CENTRED and centred.all():
            return f"{bad} x, y is the centre of a box", "subtract half of width and height"
        return None

    def suspected(self) -> list[str]:
        """A warning of the form in which many boxes that leave their image would fit.

        It is no error, since no setting says that the boxes are right. Empty where they are
        `misread`.
        """
        if self.fits or self.misread():
            return []
        start, side = self.start, self.side
        swapped = "x and y, or width and height of the images, are swapped; correct the files"
        forms = {swapped: (start[:, ::-1], (start + side)[:, ::-1])}
        if self.part.centred:
            written = start + side / 2
            line = "write class, x and y of the centre, width, height"
            forms[f"a line has two corners; {line}"] = (written, side)
            forms[f"x, y is the upper left corner; {line}"] = (written, written + side)
        for form, corners in forms.items():
            if self._inside(*corners).mean() >= 0.95:
                bad = f"{(~self.inside).sum()} of {len(self.inside)} boxes leave their image"
                return [f"{bad}, but fit if {form}"]
        return []

    def _inside(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether boxes with corners [n, 2] have an area and lie in their images.

        2 px or 2 % of a side are let pass.
        """
        slack = np.maximum(2, 0.02 * self.sizes)
        with np.errstate(invalid="ignore"):
            fits = (low >= -slack) & (high <= self.sizes + slack) & (high > low)
        return np.asarray(fits.all(axis=1))
