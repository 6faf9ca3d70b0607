"""COCO category ids, which may have gaps, and the labels that a model knows; between two files, names decide."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retina_dist.base.errors import CheckpointError, ConfigError, DataError
from retina_dist.base.text import is_text, pluralize

MAX_LABELS = (
    20_000  # V3Det, the published set with the most, has 13,204 (https://arxiv.org/abs/2304.03752)
)
MAX_LISTED = 20  # names in a message


@dataclass(frozen=True)
class Categories:
    """Labels 0..K-1: `ids[label]` is the category id, `names[label]` its name.

    A label without a category has id -1 and the name ""; one whose category a file lacks (see `matched`) has id -1.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    _labels: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_labels", {c: label for label, c in enumerate(self.ids) if c >= 0}
        )

    @classmethod
    def from_coco(cls, entries: list[dict[str, Any]]) -> Categories:
        """Labels without gaps for the `categories` of a COCO json, in ascending id order. Raises DataError for too many."""
        names = {
            int(entry["id"]): str(entry["name"]) for entry in sorted(entries, key=lambda e: e["id"])
        }
        if len(names) > MAX_LABELS:
            raise DataError(
                f"{len(names)} categories are more than a detector's {MAX_LABELS}; leave some out."
            )
        return cls(tuple(names), tuple(names.values()))

    def matched(self, entries: Sequence[Mapping[str, Any]], source: object) -> Categories:
        """These labels and names with the ids that `entries`, the `categories` of another file, give to these names.

        A name that either side has twice is taken where both sides give it the same ids. Raises DataError, naming `source`, that
        lists the names that do not agree.
        """
        ours: dict[str, list[int]] = defaultdict(list)
        for label, name in enumerate(self.names):
            if name:
                ours[name].append(label)
        theirs: dict[str, list[int]] = defaultdict(list)
        for entry in entries:
            theirs[entry["name"]].append(entry["id"])

        ids, wrong = [-1] * len(self.ids), {}
        for name, their_ids in theirs.items():
            labels = ours.get(name, [])
            if len(labels) == len(their_ids) == 1 or (
                labels and [self.ids[i] for i in labels] == sorted(their_ids)
            ):
                for label, category_id in zip(labels, sorted(their_ids), strict=True):
                    ids[label] = category_id
            else:
                wrong[name] = len(their_ids)
        if wrong:
            raise DataError(_disagreement(wrong, ours, source))
        return Categories(tuple(ids), self.names)

    @property
    def num_classes(self) -> int:
        """K, the number of labels."""
        return len(self.ids)

    @property
    def distinct_names(self) -> list[str]:
        """The names, with the id where several categories have one."""
        times = Counter(self.names)
        return [
            f"{name} ({i})" if times[name] > 1 else name
            for name, i in zip(self.names, self.ids, strict=True)
        ]

    def padded(self, num_classes: int) -> Categories:
        """The same with labels up to `num_classes` that have no category, for a model that has more."""
        spare = max(0, num_classes - len(self.ids))
        return Categories(self.ids + (-1,) * spare, self.names + ("",) * spare)

    def labels_of(self, category_ids: np.ndarray) -> np.ndarray:
        """Labels [n] int64 of category ids [n]. Raises KeyError for a category that has no label."""
        return np.array([self._labels[c] for c in category_ids.tolist()], dtype=np.int64)

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"ids": list(self.ids), "names": list(self.names)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categories:
        """Raises CheckpointError when `state` is not what `state()` returns."""
        try:
            pairs = [
                (int(i), str(name)) for i, name in zip(state["ids"], state["names"], strict=True)
            ]
            if not all(name == "" or is_text(name) for _, name in pairs):
                raise ValueError("a name has control characters")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's categories cannot be read ({error}); use another one."
            ) from error
        return cls(tuple(i for i, _ in pairs), tuple(name for _, name in pairs))


def check_names(names: object) -> None:
    """Raise ConfigError unless `names` is a list of names, one for each label."""
    if not isinstance(names, list | tuple) or not names or not all(map(is_text, names)):
        raise ConfigError(
            f"categories={names!r} is not a list of names; give one for each label: ['cat', 'dog']."
        )


def _disagreement(wrong: dict[str, int], ours: dict[str, list[int]], source: object) -> str:
    """`wrong` has the names that do not agree, each with how many categories of the file have it."""

    def plain(name: str) -> str:  # without what a retyped name may differ in
        return re.sub(r"[\s_-]+", "", name).casefold()

    alike = {plain(name): name for name in ours}
    listed = []
    for name, times in list(wrong.items())[:MAX_LISTED]:
        if times > 1 or name in ours:
            listed.append(
                f"{name!r} ({times} categories here, {pluralize(len(ours.get(name, [])), 'label')})"
            )
        else:
            listed.append(
                f"{name!r} (a label is {alike[plain(name)]!r})"
                if plain(name) in alike
                else repr(name)
            )
    listed += ["…"] if len(wrong) > MAX_LISTED else []
    return (
        f"{source}: {pluralize(len(wrong), 'category name')} without a label of the training data or checkpoint: "
        f"{', '.join(listed)}; rename the categories in the file, or remove them with their boxes."
    )
