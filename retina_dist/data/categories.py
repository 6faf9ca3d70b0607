"""One mapping between COCO category ids, which may have gaps, and the labels that a model knows. Layer 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from retina_dist.errors import CheckpointError, DataError

LabelMapping = Literal["contiguous", "category_id"]
MAX_LABELS = 10_000  # a head for more classes than that comes from an id that was never meant as a label


@dataclass(frozen=True)
class Categories:
    """Labels 0..K-1: `ids[label]` is the category id, `names[label]` its name.

    A label that stands for no category (where labels are the ids themselves) has id -1 and the name "".
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    _labels: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_labels", {c: label for label, c in enumerate(self.ids) if c >= 0})

    @classmethod
    def from_coco(cls, entries: list[dict[str, Any]], mapping: LabelMapping = "contiguous") -> Categories:
        """Of the `categories` of a COCO json: labels in ascending id order without gaps, or the ids themselves.

        "category_id" is what torchvision's COCO weights use: 91 labels, label = id. Raises DataError for ids that
        cannot be labels.
        """
        names = {int(entry["id"]): str(entry["name"]) for entry in sorted(entries, key=lambda e: e["id"])}
        if mapping == "contiguous":
            return cls(tuple(names), tuple(names.values()))
        if min(names) < 0 or max(names) >= MAX_LABELS:
            wrong = min(names) if min(names) < 0 else max(names)
            raise DataError(
                f"data.label_mapping=category_id needs ids from 0 to {MAX_LABELS - 1}, not {wrong}; use contiguous."
            )
        slots = range(max(names) + 1)
        return cls(tuple(i if i in names else -1 for i in slots), tuple(names.get(i, "") for i in slots))

    @property
    def num_classes(self) -> int:
        """K, the number of labels."""
        return len(self.ids)

    def label_of(self, category_id: int) -> int:
        """Raises KeyError for a category that has no label."""
        return self._labels[category_id]

    def category_id_of(self, label: int) -> int:
        """The COCO id to write into results."""
        return self.ids[label]

    def name_of(self, label: int) -> str:
        """The category's name."""
        return self.names[label]

    def padded(self, num_classes: int) -> Categories:
        """The same with labels up to `num_classes` that stand for no category, for a model that has more."""
        spare = max(0, num_classes - len(self.ids))
        return Categories(self.ids + (-1,) * spare, self.names + ("",) * spare)

    def __contains__(self, category_id: object) -> bool:
        return category_id in self._labels

    def labels_of(self, category_ids: np.ndarray) -> np.ndarray:
        """Labels [n] int64 of category ids [n], all of which must be known."""
        return np.array([self._labels[c] for c in category_ids.tolist()], dtype=np.int64)

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"ids": list(self.ids), "names": list(self.names)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categories:
        """Raises CheckpointError when `state` is not what `state()` returns."""
        try:
            pairs = [(int(i), str(name)) for i, name in zip(state["ids"], state["names"], strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's categories cannot be read ({error}); use another one.") from error
        return cls(tuple(i for i, _ in pairs), tuple(name for _, name in pairs))
