"""Is a data set of labelled images sound?"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import cast

import numpy as np

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ConfigError
from retina_dist.base.text import pluralize
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData, ClassifierConfig
from retina_dist.classification.task import check_trainable, read_splits
from retina_dist.data.file_checks import ImageCheck, check_images, file_findings
from retina_dist.reporting.findings import DoctorReport, Finding, listed
from retina_dist.task.settings import DoctorConfig

MAX_IMBALANCE = 5.0  # images of the largest class for one of the smallest
MIN_IMAGES = 10  # of a class


@heartbeat()
def examine(config: DoctorConfig) -> DoctorReport:
    """Read the data that the settings name, and look at every image.

    Raises UserError where it cannot be read at all.
    """
    if config.sheets:
        raise ConfigError(f"sheets={config.sheets} is for detection; leave it out.")
    data = cast(ClassificationData, config.data)
    model = cast(ClassifierConfig, config.model)
    train, val = read_splits(data)
    parts = {"train": train}
    if val:
        parts["val"] = val

    findings = []
    checked = {}
    for split, part in parts.items():
        findings += [Finding("warning", split, text) for text in part.warnings]
        findings += _balance(split, part)
        checked[split] = _checks(part, split, config.images, data.max_pixels)
    if val is None:
        remedy = "set data.val_fraction=0.1 for metrics"
        findings.append(Finding("info", "val", "no validation split", remedy))
    try:
        check_trainable(model, data, train)
    except ConfigError as error:
        findings.append(Finding("error", "train", str(error)))
    harmless = {"unreadable"} if data.bad_images == "skip" else set()
    findings += file_findings(checked, harmless)
    findings += _of_other_labels(checked, parts)
    findings += _of_sizes(checked, data.image_size)

    facts = [f"data={data.name}: {train.form}, in {data.root}"]
    counts = {}
    for split, part in parts.items():
        classes = pluralize(len(part.classes), "class")
        facts.append(f"  {split:<8}{pluralize(len(part), 'image')} of {classes}")
        counts[split] = dict(zip(part.classes, part.counts().tolist(), strict=True))
    return DoctorReport(facts, findings, {"images": counts})


def _checks(part: Samples, split: str, images: str, max_pixels: int) -> list[ImageCheck]:
    files = list(zip(part.names, part.sources, repeat(None)))
    checks = []
    for check in check_images(files, split, images, max_pixels):
        if check.problem == "missing":  # gone since it was listed: left out as a damaged one is
            check = replace(check, problem="unreadable")
        checks.append(check)
    return checks


def _of_sizes(checked: Mapping[str, Sequence[ImageCheck]], image_size: int) -> Iterator[Finding]:
    sizes = []
    for check in chain.from_iterable(checked.values()):
        if check.size:
            sizes.append(check.size)
    if sizes:
        low, middle, high = np.percentile(np.array(sizes).min(axis=1), (0, 50, 100)).astype(int)
        sides = f"shorter sides of {low} to {high} px, median {middle}"
        yield Finding("info", "images", f"{sides}; crops of {image_size} px")


def _balance(split: str, part: Samples) -> Iterator[Finding]:
    counts = part.counts()
    few = []
    for name, count in zip(part.classes, counts.tolist(), strict=True):
        if count < MIN_IMAGES:
            few.append(f"{name} ({count})")
    what = f"classes with fewer than {MIN_IMAGES} images"
    yield from listed("warning", split, what, few, "add images")

    if split == "train" and counts.max() > MAX_IMBALANCE * counts.min():
        largest = part.classes[counts.argmax()]
        smallest = part.classes[counts.argmin()]
        what = f"{largest} has {counts.max()} images, {smallest} {counts.min()}"
        remedy = (
            "data.balanced=true evens them out; "
            "trainer.monitor=val/balanced_accuracy counts each class alike"
        )
        yield Finding("warning", split, what, remedy)


def _of_other_labels(
    checked: Mapping[str, Sequence[ImageCheck]], parts: Mapping[str, Samples]
) -> list[Finding]:
    """Files of equal content that have different labels."""
    # content -> label -> the first file with it
    groups: dict[str, dict[int, str]] = defaultdict(dict)
    for split, part in parts.items():
        for check, label in zip(checked[split], part.labels.tolist(), strict=True):
            if check.digest:
                groups[check.digest].setdefault(label, f"{split}/{check.name}")

    unclear = []
    for names in groups.values():
        if len(names) > 1:
            unclear.append(" = ".join(names.values()))
    return listed("error", "labels", "images with different labels", unclear, "keep the right one")
