"""Checks a data set and the fit of the model's anchors, and formats the report."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tqdm import tqdm

from retina_dist.config.commands import DoctorConfig
from retina_dist.detection.doctor import data_checks as checks
from retina_dist.detection.doctor.anchor_coverage import Coverage, anchor_coverage
from retina_dist.detection.doctor.data_checks import Finding, ImageCheck, Level
from retina_dist.detection.model.retinanet import anchor_generator
from retina_dist.detection.readers.coco import Annotations
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import implausible_boxes, read_split
from retina_dist.task import Examination
from retina_dist.text import pluralize

TITLES: dict[Level, str] = {"error": "ERRORS", "warning": "WARNINGS", "info": "INFO"}
WORTH_SAYING = 0.05  # share of boxes without an anchor
WORTH_DOING = 0.8  # what a change must at least leave that share at, as a factor
NUM_EXAMPLES = 3
NUM_CLASSES = 40  # rows on the screen
NAME_WIDTH = 24


@dataclass(frozen=True)
class Remedy:
    """Settings that were tried, and the share of training boxes that they leave without an anchor."""

    settings: tuple[str, ...]
    unreached: float


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    data: DetectionData
    findings: list[Finding]  # errors first
    images: dict[str, int]  # of each split
    objects: dict[str, dict[str, dict[str, int]]]  # split -> class -> size -> boxes
    coverage: Coverage
    remedies: list[Remedy]  # empty where few boxes lack an anchor; the best first

    def count(self, level: Level) -> int:
        """Kinds of findings, not occurrences."""
        return sum(finding.level == level for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every example."""
        return {
            **{TITLES[level].lower(): self.count(level) for level in TITLES},
            "findings": [asdict(finding) for finding in self.findings],
            "images": self.images,
            "objects": self.objects,
            "anchor_coverage": {
                "boxes": len(self.coverage.best_iou),
                "iou": self.coverage.threshold,
                "unreached": self.coverage.unreached,
                "by_size": self.coverage.rows("size"),
                "by_aspect": self.coverage.rows("aspect"),
                "remedies": [asdict(remedy) for remedy in self.remedies],
            },
        }


def examination(config: DoctorConfig) -> Examination:
    """The report of `examine` as text and as content for JSON."""
    report = examine(config)
    return Examination(format_report(report, config.output), report.to_dict(), report.count("error"))


def examine(config: DoctorConfig) -> Report:
    """Read both splits and their image files, and hold the boxes against the model's anchors.

    Raises UserError for annotations that cannot be read at all; everything else is a finding.
    """
    data = replace(config.data, missing_images="ignore", keep_empty_images=True)  # nothing is to stop or hide anything
    train = read_split(data, "train", check=False)
    assert train is not None, "a missing train split is an error"
    val = read_split(data, "val", train.categories, check=False)

    splits = {"train": train} | ({"val": val} if val else {})
    checked: dict[str, list[ImageCheck]] = {"train": [], "val": []}
    findings: list[Finding] = []
    for split, part in splits.items():
        findings += [Finding("warning", split, text, 1) for text in part.warnings]
        if config.images != "none":
            checked[split] = _read_images(part, split, config)
            splits[split] = part = checks.with_file_sizes(part, checked[split])
        findings += checks.image_findings(checked[split], split, _tolerated(config.data))
        if problem := implausible_boxes(part, split):
            findings.append(Finding("error", split, problem[0], 1, (), problem[1]))
        findings += checks.box_findings(part, split)
    findings += checks.leak_findings(checked["train"], checked["val"])
    findings += checks.category_findings(splits["train"], splits.get("val"))
    if val is None:
        remedy = "training goes without metrics and best checkpoint: give data.val_annotations"
        findings.append(Finding("warning", "val", "validation split missing", 1, (), remedy))

    if config.images != "decode":
        what = "image files not decoded" if config.images == "header" else "image files not looked at"
        findings += [
            Finding("info", s, what, len(p.records), (), f"as images={config.images} says") for s, p in splits.items()
        ]

    coverage = _coverage(splits["train"], config.data, config.model)
    if coverage.unreached > WORTH_SAYING:
        remedy = "learnt badly, each from the one anchor that fits it least badly: see Anchors above"
        findings.append(Finding("warning", "train", "boxes that no anchor fits", coverage.num_unreached, (), remedy))
    return Report(
        data=config.data,
        findings=sorted(findings, key=lambda finding: list(TITLES).index(finding.level)),
        images={split: len(part.records) for split, part in splits.items()},
        objects={split: checks.objects_table(part) for split, part in splits.items()},
        coverage=coverage,
        remedies=remedies(splits["train"], config.data, config.model, coverage),
    )


def _read_images(part: Annotations, split: str, config: DoctorConfig) -> list[ImageCheck]:
    results = checks.check_images(
        part.records,
        decode=config.images == "decode",
        max_pixels=config.data.max_pixels,
        max_processes=len(os.sched_getaffinity(0)),
    )
    total = len(part.records)
    return list(tqdm(results, f"reading {split}", total, unit=" images", leave=False, disable=not sys.stderr.isatty()))


def _tolerated(data: DetectionData) -> set[str]:
    missing = {"missing"} if data.missing_images == "skip" else set()
    return missing | ({"unreadable", "of another size"} if data.bad_images == "skip" else set())


def _coverage(train: Annotations, data: DetectionData, model: ModelConfig) -> Coverage:
    return anchor_coverage(
        train,
        [anchors.numpy() for anchors in anchor_generator(model.anchor_sizes, model.aspect_ratios).cell_anchors],
        min_sizes=data.min_sizes,
        max_size=data.max_size,
        num_buckets=data.num_buckets,
        threshold=model.foreground_iou,
    )


def remedies(train: Annotations, data: DetectionData, model: ModelConfig, now: Coverage) -> list[Remedy]:
    """The usual changes of anchors, each tried on the data: the best, then simpler ones. Empty where little is amiss."""
    if now.unreached <= WORTH_SAYING:
        return []
    sizes = model.anchor_sizes
    smaller, larger = [[[max(1, int(size * factor)) for size in level] for level in sizes] for factor in (0.5, 2)]
    wider = [smaller[0], *sizes[1:-1], larger[-1]]
    ratios = sorted({*model.aspect_ratios, min(model.aspect_ratios) / 2, max(model.aspect_ratios) * 2})
    tried = []
    for anchor_sizes in (sizes, smaller, larger, wider, [smaller[0], *sizes[1:]], [*sizes[:-1], larger[-1]]):
        for aspect_ratios in (model.aspect_ratios, ratios):
            other = replace(model, anchor_sizes=anchor_sizes, aspect_ratios=aspect_ratios)
            changed = [key for key in ("anchor_sizes", "aspect_ratios") if getattr(other, key) != getattr(model, key)]
            settings = tuple(f"model.{key}={getattr(other, key)}".replace(", ", ",") for key in changed)
            tried.append(Remedy(settings, _coverage(train, data, other).unreached))
    helpful = [remedy for remedy in tried if remedy.unreached <= WORTH_DOING * now.unreached]
    best: list[Remedy] = []
    for remedy in sorted(helpful, key=lambda remedy: (remedy.unreached, len(remedy.settings))):
        if not best or len(remedy.settings) < len(best[-1].settings):
            best.append(remedy)
    return best


def format_report(report: Report, output: str | None = None) -> str:
    """The report for a terminal; the findings come last, where the reader is."""
    lines = [*_format_objects(report, output), *_format_coverage(report)]
    for level, title in TITLES.items():
        found = [finding for finding in report.findings if finding.level == level]
        lines += ["", title] if found else []
        for finding in found:
            lines.append(f"  {finding.split:<5}  {finding.count:>6}  {finding.what}")
            lines += [f"{'':<17}{example}" for example in finding.examples[:NUM_EXAMPLES]]
            if (more := len(finding.examples) - NUM_EXAMPLES) > 0:
                lines.append(f"{'':<17}... and {more} more")
            lines += [f"{'':<15}-> {finding.remedy}"] if finding.remedy else []
    return "\n".join([*lines, "", _verdict(report)])


def _verdict(report: Report) -> str:
    errors, warnings = _plural(report.count("error"), "error"), _plural(report.count("warning"), "warning")
    if report.count("error"):
        return f"{errors}, {warnings}: fix the errors before you train."
    return f"No errors, {warnings}: fit to train on" + (
        ", once you have looked at the warnings." if report.count("warning") else "."
    )


def _plural(count: int, noun: str) -> str:
    return pluralize(count, noun, none="no")


def _format_objects(report: Report, output: str | None) -> list[str]:
    tables, columns = report.objects, (*checks.SIZES, "all")
    names = sorted(tables["train"], key=lambda name: -tables["train"][name]["all"])
    shown = [name for name in names if any(table[name]["all"] for table in tables.values())]
    width = min(NAME_WIDTH, max(map(len, [*shown, "all classes"])))

    def row(title: str, counts: list[int]) -> str:
        return f"  {title[:width]:<{width}}" + "".join(f"{count:>9}" for count in counts)

    rows = [row(name, [table[name][column] for table in tables.values() for column in columns]) for name in shown]
    if (more := len(rows) - NUM_CLASSES) > 0:  # the rarest are as telling as the most frequent: leave out the middle
        where = "" if output else "; output=FILE.json has all"
        rows[NUM_CLASSES // 2 : -NUM_CLASSES // 2] = [f"  ... {_plural(more, 'more class')}{where}"]
    totals = [sum(line[column] for line in table.values()) for table in tables.values() for column in columns]
    heads = [f"{split}, {_plural(report.images[split], 'image')}" for split in tables]
    return [
        "Objects by the area of their box in the stored image: small below 32^2 px, large from 96^2 px",
        f"  {'':<{width}}" + "".join(f"{head:>{9 * len(columns)}}" for head in heads),
        f"  {'class':<{width}}" + "".join(f"{column:>9}" for _ in heads for column in columns),
        *rows,
        row("all classes", totals),
    ]


def _format_coverage(report: Report) -> list[str]:
    coverage, data = report.coverage, report.data
    if not len(coverage.best_iou):
        return ["", "Anchors: there is no box, in images of known size, to hold against them"]
    lines = [
        "",
        f"Anchors: {coverage.num_unreached} of {len(coverage.best_iou)} training boxes ({coverage.unreached:.1%}) have none at "
        f"IoU {coverage.threshold:g}; short side resized to {max(data.min_sizes)} px, long side to {data.max_size} px at most",
    ]
    titles: dict[Literal["size", "aspect"], str] = {"size": "size in px, resized", "aspect": "height : width"}
    for by, title in titles.items():
        lines.append(f"  {title:<20}{'boxes':>8}{'without anchor':>17}{'median best IoU':>18}")
        for row in coverage.rows(by):
            bounds = _bounds(row["from"], row["to"], _pixels if by == "size" else _ratio)
            lines.append(f"  {bounds:<20}{row['boxes']:>8}{row['unreached']:>17.1%}{row['median_iou']:>18.2f}")
    for remedy in report.remedies:
        lines.append(f"  -> {remedy.unreached:.1%} are left, tried on these boxes, with")
        lines += [f"     {setting}" for setting in remedy.settings]
    if coverage.unreached > WORTH_SAYING and not report.remedies:
        lines.append("  -> neither other sizes nor more aspect ratios help: look at the boxes, and at data.min_sizes")
    return lines


def _bounds(low: float | None, high: float | None, text: Any) -> str:
    if low is None:
        return f"below {text(high)}"
    return f"{text(low)} to {text(high)}" if high is not None else f"{text(low)} and more"


def _pixels(size: float) -> str:
    return f"{size:g}"


def _ratio(aspect: float) -> str:
    return f"{aspect:g}:1" if aspect >= 1 else f"1:{1 / aspect:g}"
