"""Is a labelled data set sound? Imbalance, unreadable files, duplicates, sizes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from retina_dist.classification.data.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.splits import check_trainable, read_splits
from retina_dist.data.images import image_size, read_image
from retina_dist.data.sources import read_in_turn
from retina_dist.errors import ConfigError, ImageError
from retina_dist.task import Examination
from retina_dist.text import escape, pluralize

MOST_IMBALANCE = 5.0  # images of the largest class for one of the smallest
FEWEST = 10  # images of a class
NUM_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """What is wrong, how often, and where."""

    level: str  # error | warning | info
    text: str
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" and {len(self.examples) - NUM_EXAMPLES} more" if len(self.examples) > NUM_EXAMPLES else ""
        shown = ", ".join(escape(e) for e in self.examples[:NUM_EXAMPLES])
        return f"  {self.level:<8}{self.text}" + (f": {shown}{more}" if shown else "")


def examine(config: Any) -> Examination:
    """Read the data that the settings name, and look at every image. Raises UserError where it cannot be read at all."""
    data: ClassificationData = config.data
    train, val = read_splits(data)
    parts = {"train": train} | ({"val": val} if val else {})
    findings = [Finding("warning", text) for part in parts.values() for text in part.warnings]
    findings += [] if val else [Finding("info", "there is no validation set: no metric, no best checkpoint")]
    try:
        check_trainable(config.model, data, train)
    except ConfigError as error:
        findings.append(Finding("error", str(error)))
    findings += [f for name, part in parts.items() for f in _balance(name, part)]
    sizes: dict[str, list[tuple[int, int]]] = {}
    if config.images != "none":
        digests: dict[str, list[tuple[str, str, int]]] = defaultdict(list)  # of each content: split, name, label
        for name, part in parts.items():
            found, sizes[name] = _images(name, part, data, config.images == "decode", digests)
            findings += found
        findings += _duplicates(digests)
    findings += _sizes(data, [size for part in sizes.values() for size in part])
    findings.sort(key=lambda f: ("error", "warning", "info").index(f.level))
    counts = {n: dict(zip(p.classes, p.counts().tolist(), strict=True)) for n, p in parts.items()}
    listed = [{"level": f.level, "text": f.text, "examples": list(f.examples)} for f in findings]
    return Examination(
        text="\n".join(_lines(data, counts, findings)),
        content={"images": counts, "findings": listed},
        errors=sum(f.level == "error" for f in findings),
    )


def _balance(split: str, part: Samples) -> Iterator[Finding]:
    counts = part.counts()
    few = [f"{name} ({n})" for name, n in zip(part.classes, counts.tolist(), strict=True) if n < FEWEST]
    if few:
        yield Finding("warning", f"{split}: {pluralize(len(few), 'class')} with fewer than {FEWEST} images", tuple(few))
    if split == "train" and counts.max() > MOST_IMBALANCE * counts.min():
        yield Finding(
            "warning",
            f"train: {part.classes[int(counts.argmax())]} has {counts.max()} images, {part.classes[int(counts.argmin())]} "
            f"{counts.min()}; data.balanced=true or model.balance_loss=true weighs that up; "
            "trainer.monitor=val/balanced_accuracy does not reward the largest class",
        )


def _images(
    split: str, part: Samples, data: ClassificationData, decode: bool, digests: dict[str, list[tuple[str, str, int]]]
) -> tuple[list[Finding], list[tuple[int, int]]]:
    """What is wrong with the files of a split, and the (width, height) of the others; adds their digests."""
    bad: list[str] = []
    sizes: list[tuple[int, int]] = []
    rows = zip(part.names, part.sources, part.labels.tolist(), read_in_turn(part.sources), strict=True)
    for name, source, label, content in rows:
        try:
            if isinstance(content, ImageError):
                raise content
            sizes.append(image_size(source, data.max_pixels, content))
            if decode:
                read_image(source, None, data.max_pixels, content)
        except ImageError as error:
            bad.append(f"{name} ({str(error).split(';')[0].removeprefix(str(source)).strip()})")
            continue
        digests[hashlib.sha256(content).hexdigest()].append((split, name, label))
    level = "error" if data.bad_images == "error" else "warning"
    return ([Finding(level, f"{split}: {pluralize(len(bad), 'unreadable file')}", tuple(bad))] if bad else []), sizes


def _duplicates(digests: dict[str, list[tuple[str, str, int]]]) -> Iterator[Finding]:
    """Files of equal content: between the splits, with different labels, and within a split."""
    groups = [group for group in digests.values() if len(group) > 1]
    named = {
        ("error", "in train and in val; leave them out of one"): [
            g for g in groups if len({split for split, *_ in g}) > 1
        ],
        ("error", "with different labels; keep the right one"): [
            g for g in groups if len({label for *_, label in g}) > 1
        ],
        ("warning", "more than once in a split; keep one"): [
            g for g in groups if len({(s, la) for s, _, la in g}) == 1
        ],
    }
    for (level, where), found in named.items():
        if found:
            examples = tuple(" = ".join(f"{split}/{name}" for split, name, _ in group[:3]) for group in found)
            yield Finding(level, f"{pluralize(len(found), 'image')} {where}", examples)


def _sizes(data: ClassificationData, sizes: list[tuple[int, int]]) -> Iterator[Finding]:
    if not sizes:
        return
    sides = np.array(sizes)
    short = sides.min(axis=1)
    low, middle, high = (int(x) for x in np.percentile(short, (0, 50, 100)))
    yield Finding("info", f"shorter sides of {low} to {high} px, median {middle}; crops of {data.image_size} px")
    small = int((short < data.image_size / 2).sum())
    if small:
        yield Finding(
            "warning",
            f"{pluralize(small, 'image')} with less than half of data.image_size={data.image_size} px; a size such as "
            f"data.image_size={max(32, middle // 32 * 32)} enlarges them less",
        )


def _lines(data: ClassificationData, counts: dict[str, dict[str, int]], findings: list[Finding]) -> Iterator[str]:
    yield f"data={data.name} in {data.root}"
    for split, found in counts.items():
        yield f"  {split:<8}{pluralize(sum(found.values()), 'image')} of {pluralize(len(found), 'class')}"
    yield from map(str, findings)
    errors, warnings = (sum(f.level == level for f in findings) for level in ("error", "warning"))
    yield f"{pluralize(errors, 'error', none='no')}, {pluralize(warnings, 'warning', none='no')}"
