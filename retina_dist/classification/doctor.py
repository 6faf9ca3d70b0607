"""The doctor of a labelled data set: imbalance, unreadable files, duplicates, sizes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError

from retina_dist.classification.data.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.splits import check_trainable, read_splits
from retina_dist.data.images import image_size, read_image
from retina_dist.data.sources import read_in_turn
from retina_dist.errors import ConfigError, ImageError
from retina_dist.reporting.findings import DoctorReport, Finding, Level
from retina_dist.text import pluralize

MOST_IMBALANCE = 5.0  # images of the largest class for one of the smallest
FEWEST = 10  # images of a class

Digests = dict[str, list[tuple[str, str, int]]]  # of each content: split, name, label


def examine(config: Any) -> DoctorReport:
    """Read the data that the settings name, and look at every image. Raises UserError where it cannot be read at all."""
    data: ClassificationData = config.data
    train, val = read_splits(data)
    parts = {"train": train} | ({"val": val} if val else {})
    findings = [Finding("warning", split, text) for split, part in parts.items() for text in part.warnings]
    if val is None:
        remedy = "training goes without metrics and best checkpoint: add a folder or a list of that name"
        findings.append(Finding("info", "val", "no validation split", remedy))
    try:
        check_trainable(config.model, data, train)
    except ConfigError as error:
        findings.append(Finding("error", "train", str(error)))
    findings += [finding for split, part in parts.items() for finding in _balance(split, part)]
    sizes: list[tuple[int, int]] = []
    if config.images != "none":
        digests: Digests = defaultdict(list)
        for split, part in parts.items():
            findings += _images(split, part, data, config.images == "decode", digests, sizes)
        findings += _duplicates(digests)
    findings += _sizes(data, sizes)
    counts = {n: dict(zip(p.classes, p.counts().tolist(), strict=True)) for n, p in parts.items()}
    facts = [f"data={data.name} in {data.root}"]
    for split, of_class in counts.items():
        facts.append(f"  {split:<8}{pluralize(sum(of_class.values()), 'image')} of {pluralize(len(of_class), 'class')}")
    return DoctorReport(facts, findings, {"images": counts})


def _balance(split: str, part: Samples) -> Iterator[Finding]:
    counts = part.counts()
    few = tuple(f"{name} ({n})" for name, n in zip(part.classes, counts.tolist(), strict=True) if n < FEWEST)
    if few:
        yield Finding("warning", split, f"classes with fewer than {FEWEST} images", "add images", len(few), few)
    if split == "train" and counts.max() > MOST_IMBALANCE * counts.min():
        names = (part.classes[int(counts.argmax())], part.classes[int(counts.argmin())])
        yield Finding(
            "warning",
            split,
            f"{names[0]} has {counts.max()} images, {names[1]} {counts.min()}",
            "data.balanced=true or model.balance_loss=true evens them out; trainer.monitor=val/balanced_accuracy does not reward "
            "the largest class",
        )


def _images(
    split: str, part: Samples, data: ClassificationData, decode: bool, digests: Digests, sizes: list[tuple[int, int]]
) -> Iterator[Finding]:
    """The unreadable files of a split; adds digest and (width, height) of the others."""
    bad: list[str] = []
    rows = zip(part.names, part.sources, part.labels.tolist(), read_in_turn(part.sources), strict=True)
    for name, source, label, content in rows:
        try:
            if isinstance(content, ImageError):
                raise content
            size = image_size(source, data.max_pixels, content)
            if decode:
                read_image(source, None, data.max_pixels, content)
        except ImageError as error:
            cause = error.__cause__
            reason = str(error).split(";")[0].removeprefix(str(source)).strip()
            bad.append(f"{name}: {'not an image' if isinstance(cause, UnidentifiedImageError) else reason}")
            continue
        sizes.append(size)
        digests[hashlib.sha256(content).hexdigest()].append((split, name, label))
    if bad:
        level: Level = "error" if data.bad_images == "error" else "warning"
        remedy = "restore or remove them, or continue without: data.bad_images=skip"
        yield Finding(level, split, "unreadable files", remedy, len(bad), tuple(bad))


def _duplicates(digests: Digests) -> Iterator[Finding]:
    """Files of equal content: in both splits, with different labels, or several times in one class."""
    groups = [group for group in digests.values() if len(group) > 1]
    across = [group for group in groups if len({split for split, *_ in group}) > 1]
    unclear = [group for group in groups if len({label for *_, label in group}) > 1]
    twins = [group for group in groups if len({(split, label) for split, _, label in group}) == 1]
    kinds: tuple[tuple[Level, str, str, str, list[Any]], ...] = (
        ("error", "val", "images that are in train too", "take them out of one split", across),
        ("error", "labels", "images with different labels", "keep the right one", unclear),
        ("warning", "train, val", "images that occur more than once", "keep one of each", twins),
    )
    for level, where, what, remedy, same in kinds:
        if same:
            examples = tuple(" = ".join(f"{split}/{name}" for split, name, _ in group[:3]) for group in same)
            yield Finding(level, where, what, remedy, len(same), examples)


def _sizes(data: ClassificationData, sizes: list[tuple[int, int]]) -> Iterator[Finding]:
    if not sizes:
        return
    short = np.array(sizes).min(axis=1)
    low, middle, high = (int(x) for x in np.percentile(short, (0, 50, 100)))
    yield Finding(
        "info", "images", f"shorter sides of {low} to {high} px, median {middle}; crops of {data.image_size} px"
    )
    if small := int((short < data.image_size / 2).sum()):
        what = f"images with less than half of data.image_size={data.image_size} px"
        remedy = f"enlarge them less: data.image_size={max(32, middle // 32 * 32)}"
        yield Finding("warning", "images", what, remedy, small)
