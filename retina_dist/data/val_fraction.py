"""Which training images `data.val_fraction` holds out for validation, by the hash of their name."""

from collections.abc import Sequence

from retina_dist.base.errors import DataError
from retina_dist.base.seeding import derived_seed
from retina_dist.base.text import pluralize
from retina_dist.data.sources import Source


def held_out(name: str, fraction: float) -> bool:
    """Whether an image is in the `fraction` that validates; adding others never moves it."""
    return derived_seed("held out", name) < fraction * 2**63


def held_out_rows(
    names: Sequence[str], sources: Sequence[Source], fraction: float
) -> dict[str, list[int]]:
    """The rows of the images of "train" and, for `fraction` of them, of "val".

    The name of the first of identical images decides. Raises DataError where that leaves either
    empty.
    """
    from retina_dist.data.file_checks import first_of_same

    rows: dict[str, list[int]] = {"train": [], "val": []}
    for row, first in enumerate(first_of_same(sources)):
        rows["val" if held_out(names[first], fraction) else "train"].append(row)
    for split, chosen in rows.items():
        if not chosen:
            raise DataError(
                f"data.val_fraction={fraction} of {pluralize(len(names), 'image')} leaves none for "
                f"{split}; give another fraction, or more images."
            )
    return rows
