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
from retina_dist.classification.task import check_trainable, read_splits
from retina_dist.data.images import image_size, read_image
from retina_dist.data.sources import read_in_turn
from retina_dist.errors import ConfigError, ImageError
from retina_dist.reporting.findings import DoctorReport, Finding, Level
from retina_dist.text import pluralize

MOST_IMBALANCE = 5.0  # images of the largest class for one of the smallest
FEWEST = 10  # images of a class


def examine(config: Any) -> DoctorReport:
    """Read the data that the settings name, and look at every image. Raises UserError where it cannot be read at all."""
    data: ClassificationData = config.data
    train, val = read_splits(data)
    parts = {"train": train} | ({"val": val} if val else {})
    findings = [Finding("warning", split, text) for split, part in parts.items() for text in part.warnings]
    if val is None:
        findings.append(
            Finding("info", "val", "no validation split", "no metric and no best checkpoint; set data.val_fraction=0.1")
        )
    try:
        check_trainable(config.model, data, train)
    except ConfigError as error:
        findings.append(Finding("error", "train", str(error)))
    findings += [finding for split, part in parts.items() for finding in _balance(split, part)]
    if config.images != "none":
        files = _Files(data, decode=config.images == "decode")
        findings += [finding for split, part in parts.items() for finding in files.unreadable(split, part)]
        findings += [*files.duplicates(), *(files.small() if files.sizes else ())]
    counts = {n: dict(zip(p.classes, p.counts().tolist(), strict=True)) for n, p in parts.items()}
    facts = [f"data={data.name}: {train.form}, in {data.root}"]
    for split, part in parts.items():
        facts.append(f"  {split:<8}{pluralize(len(part), 'image')} of {pluralize(len(part.classes), 'class')}")
    return DoctorReport(facts, findings, {"images": counts})


def _balance(split: str, part: Samples) -> Iterator[Finding]:
    counts = part.counts()
    few = tuple(f"{name} ({n})" for name, n in zip(part.classes, counts.tolist(), strict=True) if n < FEWEST)
    if few:
        yield Finding("warning", split, f"classes with fewer than {FEWEST} images", "add images", len(few), few)
    if split == "train" and counts.max() > MOST_IMBALANCE * counts.min():
        most, least = (part.classes[int(i)] for i in (counts.argmax(), counts.argmin()))
        what = f"{most} has {counts.max()} images, {least} {counts.min()}"
        remedy = (
            "data.balanced=true evens them out; trainer.monitor=val/balanced_accuracy does not reward the largest class"
        )
        yield Finding("warning", split, what, remedy)


class _Files:
    """What the files of all splits tell."""

    def __init__(self, data: ClassificationData, decode: bool) -> None:
        self.data, self.decode = data, decode
        self.sizes: list[tuple[int, int]] = []  # (width, height) of each readable image
        self.same: dict[str, list[tuple[str, str, int]]] = defaultdict(list)  # content -> split, name, label

    def unreadable(self, split: str, part: Samples) -> Iterator[Finding]:
        bad: list[str] = []
        rows = zip(part.names, part.sources, part.labels.tolist(), read_in_turn(part.sources), strict=True)
        for name, source, label, content in rows:
            try:
                if isinstance(content, ImageError):
                    raise content
                size = image_size(source, self.data.max_pixels, content)
                if self.decode:
                    read_image(source, None, self.data.max_pixels, content)
            except ImageError as error:
                reason = str(error).split(";")[0].removeprefix(str(source)).strip()
                unknown = isinstance(error.__cause__, UnidentifiedImageError)
                bad.append(f"{name}: {'not an image' if unknown else reason}")
                continue
            self.sizes.append(size)
            self.same[hashlib.sha256(content).hexdigest()].append((split, name, label))
        if bad:
            level: Level = "error" if self.data.bad_images == "error" else "warning"
            remedy = "restore or remove them, or continue without: data.bad_images=skip"
            yield Finding(level, split, "unreadable files", remedy, len(bad), tuple(bad))

    def duplicates(self) -> Iterator[Finding]:
        """Files of equal content: in both splits, with different labels, or several times in one class."""
        groups = [group for group in self.same.values() if len(group) > 1]
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

    def small(self) -> Iterator[Finding]:
        """The sizes of the images, and how many of them a training enlarges to twice their size or more."""
        short, crop = np.array(self.sizes).min(axis=1), self.data.image_size
        low, middle, high = (int(x) for x in np.percentile(short, (0, 50, 100)))
        yield Finding("info", "images", f"shorter sides of {low} to {high} px, median {middle}; crops of {crop} px")
        if small := int((short < crop / 2).sum()):
            what = f"images with less than half of data.image_size={crop} px"
            remedy = f"enlarge them less: data.image_size={max(32, middle // 32 * 32)}"
            yield Finding("warning", "images", what, remedy, small)
