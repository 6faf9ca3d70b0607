"""The splits of a data set: their names, and a validation split held out of the training images."""

from __future__ import annotations

from collections.abc import Sequence

from retina_dist.errors import DataError
from retina_dist.seeding import held_out
from retina_dist.text import pluralize

# split -> names of its folders and files
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}


def held_out_rows(names: Sequence[str], fraction: float) -> dict[str, list[int]]:
    """The rows of the images of "train" and, for `fraction` of them, of "val". Raises DataError where that leaves either empty."""
    rows: dict[str, list[int]] = {"train": [], "val": []}
    for row, name in enumerate(names):
        rows["val" if held_out(name, fraction) else "train"].append(row)
    for split in rows:
        if not rows[split]:
            raise DataError(
                f"data.val_fraction={fraction} of {pluralize(len(names), 'image')} leaves none for {split}; give another fraction, "
                "or more images."
            )
    return rows
