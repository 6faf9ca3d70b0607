"""COCO category ids, which may have gaps, and the labels that a model knows; between two files,
names decide.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from retina_dist.base.arguments import Suggests
from retina_dist.base.errors import CheckpointError, ConfigError, DataError
from retina_dist.base.text import is_text, pluralize

# V3Det, the published set with the most, has 13,204 (https://arxiv.org/abs/2304.03752)
MAX_LABELS = 20_000
MAX_LISTED = 20  # names in a message

Entry = dict[str, Any]  # an object of COCO's json


@dataclass(frozen=True)
class Categories(Suggests):
    """Labels 0..K-1: `ids[label]` is the category id, `names[label]` its name.

    A label without a category has id -1 and the name ""; one whose category a file lacks (see
    `matched`) has id -1.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def from_coco(cls, entries: list[Entry]) -> Categories:
        """Labels without gaps for the `categories` of a COCO json, in ascending id order.

        Raises DataError for too many.
        """
        names: dict[int, str] = {}
        for entry in sorted(entries, key=itemgetter("id")):
            names[int(entry["id"])] = str(entry["name"])
        check_count(len(names))
        return cls(tuple(names), tuple(names.values()))

    def matched(self, entries: Sequence[Entry], source: object) -> Categories:
        """These labels and names with the ids that another file gives to these names.

        A name that either side has twice is taken where both sides give it the same ids.

        Args:
            entries: the `categories` of the other file.
            source: that file, for the error.

        Raises DataError that lists the names that do not agree.
        """
        ours: dict[str, list[int]] = defaultdict(list)
        for label, name in enumerate(self.names):
            if name:
                ours[name].append(label)
        theirs: dict[str, list[int]] = defaultdict(list)
        for entry in entries:
            theirs[entry["name"]].append(entry["id"])

        ids = [-1] * len(self.ids)
        wrong: dict[str, int] = {}
        for name, their_ids in theirs.items():
            labels = ours.get(name, [])
            their_ids = sorted(their_ids)
            is_single = len(labels) == len(their_ids) == 1
            our_ids = [self.ids[label] for label in labels]
            if is_single or our_ids == their_ids:
                for label, category_id in zip(labels, their_ids, strict=True):
                    ids[label] = category_id
            else:
                wrong[name] = len(their_ids)
        if wrong:
            raise DataError(_disagreement(wrong, ours, source))
        return Categories(tuple(ids), self.names)

    def after(self, known: Sequence[str]) -> Categories:
        """Labels of the names `known`, then of these others.

        A known name that is none of these gets an id that none of these has.
        """
        id_of = {"": -1, **dict(zip(self.names, self.ids, strict=True))}
        names = [*known, *(name for name in self.names if name not in known)]
        free = itertools.count(max(self.ids) + 1)
        return Categories(tuple(id_of.get(name, next(free)) for name in names), tuple(names))

    def renumbered_by(self, other: Categories) -> bool:
        """Whether `other`, which has the same labels, gives another id to one of them."""
        pairs = zip(self.ids, other.ids, strict=True)
        return any(old != new for old, new in pairs if old >= 0 and new >= 0)

    @property
    def num_classes(self) -> int:
        """K, the number of labels."""
        return len(self.ids)

    @property
    def distinct_names(self) -> list[str]:
        """The names, with the id where several categories have one."""
        distinct = []
        times = Counter(self.names)
        for name, category_id in zip(self.names, self.ids, strict=True):
            shared = times[name] > 1
            distinct.append(f"{name} ({category_id})" if shared else name)
        return distinct

    @property
    def spelt_alike(self) -> list[str]:
        """Pairs of names that differ only in case, spaces, hyphens or underscores."""
        pairs = []
        first_of: dict[str, str] = {}
        for name in self.distinct_names:
            first = first_of.setdefault(plain(name) or name, name)
            if first != name:
                pairs.append(f"{first!r} and {name!r}")
        return pairs

    @property
    def repeated_names(self) -> dict[str, int]:
        """The names that several categories have, and how many."""
        return {name: times for name, times in Counter(self.names).items() if times > 1}

    def padded(self, num_classes: int) -> Categories:
        """The same with labels up to `num_classes` that have no category, for a model that has
        more.
        """
        spare = max(0, num_classes - len(self.ids))
        return Categories(self.ids + (-1,) * spare, self.names + ("",) * spare)

    @property
    def label_of(self) -> dict[int, int]:
        """The label of each category id that has one."""
        return {i: label for label, i in enumerate(self.ids) if i >= 0}

    def state(self) -> dict[str, object]:
        """Plain values, for a checkpoint."""
        return {"ids": list(self.ids), "names": list(self.names)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categories:
        """Raises CheckpointError when `state` is not what `state()` returns."""
        ids = []
        names = []
        try:
            for category_id, name in zip(state["ids"], state["names"], strict=True):
                ids.append(int(category_id))
                names.append(str(name))
            if not all(name == "" or is_text(name) for name in names):
                raise ValueError("a name has control characters")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's categories cannot be read ({error}); use another one."
            ) from error
        return cls(tuple(ids), tuple(names))


def number_labels(
    entries: list[Entry], source: object, known: Categories | None = None
) -> tuple[Categories, list[str]]:
    """The labels of the `categories` of a file, those of `known` by their names, and warnings.

    Raises DataError, naming `source`, for a name that `known` lacks.
    """
    warnings = []
    if known is None:
        labels = Categories.from_coco(entries)
        for name in labels.names:
            if plain(name) == "background":
                warnings.append(
                    f"{source}: the class {name} is learnt like any other; leave it out"
                )
        for name, times in labels.repeated_names.items():
            warnings.append(
                f"{source}: {times} categories are named {name!r} and stay apart; "
                "rename or merge them"
            )
        return labels, warnings
    labels = known.matched(entries, source)
    if known.renumbered_by(labels):
        warnings.append(f"{source} gives other ids to the same category names; the names decide")
    return labels, warnings


def check_count(count: int) -> None:
    """Raise DataError for more categories than a detector may have."""
    if count > MAX_LABELS:
        raise DataError(
            f"{count} categories are more than a detector's {MAX_LABELS}; leave some out."
        )


def check_names(names: object) -> None:
    """Raise ConfigError unless `names` is a list of names, one for each label."""
    if not isinstance(names, list | tuple) or not names or not all(map(is_text, names)):
        raise ConfigError(
            f"categories={names!r} is not a list of names; give one for each label: ['cat', 'dog']."
        )


def plain(name: str) -> str:
    """A name without what a retyped one may differ in."""
    return re.sub(r"[\s_-]+", "", name).casefold()


def _disagreement(wrong: dict[str, int], ours: dict[str, list[int]], source: object) -> str:
    """The sentence on names that do not agree; `wrong` has how many categories of the file have
    each.
    """
    alike = {plain(name): name for name in ours}
    listed = []
    for name, times in list(wrong.items())[:MAX_LISTED]:
        if times > 1 or name in ours:
            labels = pluralize(len(ours.get(name, [])), "label")
            listed.append(f"{name!r} ({times} categories here, {labels})")
        elif plain(name) in alike:
            listed.append(f"{name!r} (a label is {alike[plain(name)]!r})")
        else:
            listed.append(repr(name))
    if len(wrong) > MAX_LISTED:
        listed.append("…")
    unknown = f"{pluralize(len(wrong), 'category name')} without a label"
    remedy = "rename the categories in the file, or remove them with their boxes"
    names = ", ".join(listed)
    return f"{source}: {unknown} of the training data or checkpoint: {names}; {remedy}."
