"""The doctor of a detection data set: its files and boxes, and how the model's anchors fit them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from retina_dist.data.images import read_image
from retina_dist.detection.doctor import data_checks as checks
from retina_dist.detection.doctor.anchor_coverage import Coverage, anchor_coverage
from retina_dist.detection.doctor.data_checks import ImageCheck
from retina_dist.detection.model.retinanet import anchor_generator
from retina_dist.detection.readers.coco import Annotations
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import implausible_boxes, read_split
from retina_dist.errors import ImageError
from retina_dist.reporting.findings import DoctorReport, Finding
from retina_dist.text import escape, pluralize

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig

WORTH_SAYING = 0.05  # share of boxes without an anchor
WORTH_DOING = 0.8  # a change is proposed if it leaves at most this share of them
SMALL_SIDE = 16  # px, square root of the area; half of the smallest anchor
SHEET_IMAGES = 24
NUM_CLASSES = 40  # rows on the screen
NAME_WIDTH = 24


@dataclass(frozen=True)
class Remedy:
    """Settings that were tried, and the share of training boxes that they leave without an anchor."""

    settings: tuple[str, ...]
    unreached: float


def examine(config: DoctorConfig) -> DoctorReport:
    """Read both splits and their image files, and compare the boxes with the model's anchors.

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
        findings += [Finding("warning", split, text) for text in part.warnings]
        if config.images != "none":
            checked[split] = _read_images(part, split, config)
            splits[split] = part = checks.with_file_sizes(part, checked[split])
        findings += checks.image_findings(checked[split], split, _tolerated(config.data))
        if problem := implausible_boxes(part, split, config.data):
            findings.append(Finding("error", split, *problem))
        findings += checks.box_findings(part, split)
        if config.images != "decode":
            what = "image files not decoded" if config.images == "header" else "image files not read"
            findings.append(Finding("info", split, what, f"as images={config.images} says", len(part.records)))
    findings += checks.leak_findings(checked["train"], checked["val"])
    findings += checks.category_findings(splits["train"], splits.get("val"))
    if val is None:
        remedy = "training has no metrics and no best checkpoint: data.val_fraction=0.1, or data.val_annotations"
        findings.append(Finding("warning", "val", "no validation split", remedy))

    objects = {split: checks.objects_table(part) for split, part in splits.items()}
    images = {split: len(part.records) for split, part in splits.items()}
    facts = _format_objects(objects, images, config.output)
    facts[:0] = [f"{train.format} in {config.data.root}"] if train.format else []
    details: dict[str, Any] = {"images": images, "objects": objects}
    if isinstance(config.model, ModelConfig):  # a model from outside may have no anchors
        coverage = _coverage(splits["train"], config.data, config.model)
        tried = remedies(splits["train"], config.data, config.model, coverage)
        if coverage.unreached > WORTH_SAYING:
            remedy = "each is learnt from its least bad anchor only: see Anchors above"
            findings.append(Finding("warning", "train", "boxes that no anchor fits", remedy, coverage.num_unreached))
        findings += _small_objects(coverage, config.data)
        facts += _format_coverage(coverage, tried, config.data)
        details["anchor_coverage"] = coverage.to_dict() | {"remedies": [asdict(remedy) for remedy in tried]}
    if config.sheets:
        for split, part in splits.items():
            _draw_sheet(part, Path(config.sheets) / f"{split}.jpg", config.data.max_pixels)
    return DoctorReport(facts, findings, details)


def _small_objects(coverage: Coverage, data: DetectionData) -> list[Finding]:
    """Boxes that are small after the resize, with the image size at which nine tenths of all have `SMALL_SIDE` pixels."""
    count = int((coverage.size < SMALL_SIDE).sum())
    if count < 10 or count <= WORTH_SAYING * len(coverage.size):
        return []
    scale = min(2.0, SMALL_SIDE / float(np.quantile(coverage.size, 0.1)))
    sides = [round(side * scale / 32) * 32 for side in data.min_sizes]
    remedy = (
        f"try data.min_sizes={sides} data.max_size={round(data.max_size * scale)}, at {scale**2:.1f} times the memory"
    )
    remedy += "" if scale < 2 else ", or experiment=small_objects, which trains on windows of full resolution"
    return [Finding("warning", "train", f"boxes below {SMALL_SIDE} px after the resize", remedy, count)]


def _draw_sheet(part: Annotations, path: Path, max_pixels: int) -> None:
    """Images of a split, evenly spread over it, with the boxes to train on."""
    from retina_dist.detection.pictures import draw_boxes
    from retina_dist.reporting.pictures import sheet, titled

    pictures = []
    for i in np.unique(np.linspace(0, len(part.records) - 1, SHEET_IMAGES).round().astype(int)).tolist():
        record = part.records[i]
        try:
            image = read_image(record.path, (record.width, record.height), max_pixels)
        except ImageError:
            continue  # a finding already
        boxes, labels = torch.from_numpy(part.boxes[i]), torch.from_numpy(part.labels[i])
        picture = draw_boxes(image, boxes, labels, part.categories.names)
        pictures.append(titled(picture, f"{escape(record.file_name, 60)}: {pluralize(len(boxes), 'box')}"))
    if pictures:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet(pictures).save(path, quality=92)


def _read_images(part: Annotations, split: str, config: DoctorConfig) -> list[ImageCheck]:
    results = checks.check_images(part.records, decode=config.images == "decode", max_pixels=config.data.max_pixels)
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
    """The usual changes of anchors, each tried on the data: the best, then simpler ones. Empty where few boxes lack one."""
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


def _format_objects(
    tables: dict[str, dict[str, dict[str, int]]], images: dict[str, int], output: str | None
) -> list[str]:
    columns = (*checks.SIZES, "all")
    names = sorted(tables["train"], key=lambda name: -tables["train"][name]["all"])
    used = [name for name in names if any(table[name]["all"] for table in tables.values())]
    width = min(NAME_WIDTH, max(map(len, [*used, "all classes"])))

    def row(title: str, counts: list[int]) -> str:
        return f"  {escape(title, width):<{width}}" + "".join(f"{count:>9}" for count in counts)

    rows = [row(name, [table[name][column] for table in tables.values() for column in columns]) for name in used]
    if (more := len(rows) - NUM_CLASSES) > 0:  # the rarest are as telling as the most frequent: leave out the middle
        where = "" if output else "; output=FILE.json has all"
        rows[NUM_CLASSES // 2 : -NUM_CLASSES // 2] = [f"  ... {pluralize(more, 'more class')}{where}"]
    totals = [sum(line[column] for line in table.values()) for table in tables.values() for column in columns]
    heads = [f"{split}, {pluralize(images[split], 'image')}" for split in tables]
    return [
        "Objects by the area of their box in the stored image: small below 32^2 px, large from 96^2 px",
        f"  {'':<{width}}" + "".join(f"{head:>{9 * len(columns)}}" for head in heads),
        f"  {'class':<{width}}" + "".join(f"{column:>9}" for _ in heads for column in columns),
        *rows,
        row("all classes", totals),
    ]


def _format_coverage(coverage: Coverage, tried: Sequence[Remedy], data: DetectionData) -> list[str]:
    if not len(coverage.best_iou):
        return ["", "Anchors: no box in an image of known size to compare them with"]
    lines = [
        "",
        f"Anchors: {coverage.num_unreached} of {len(coverage.best_iou)} training boxes ({coverage.unreached:.1%}) have none at "
        f"IoU {coverage.threshold:g}; short side resized to {max(data.min_sizes)} px, long side to {data.max_size} px at most",
    ]
    titles: dict[Literal["size", "aspect"], str] = {"size": "size in px, resized", "aspect": "height : width"}
    for by, title in titles.items():
        lines.append(f"  {title:<20}{'boxes':>8}{'without anchor':>17}{'median best IoU':>18}")
        for row in coverage.rows(by):
            low, high = (_limit(value, by) for value in (row["from"], row["to"]))
            bounds = f"below {high}" if not low else f"{low} to {high}" if high else f"{low} and more"
            lines.append(f"  {bounds:<20}{row['boxes']:>8}{row['unreached']:>17.1%}{row['median_iou']:>18.2f}")
    for remedy in tried:
        lines.append(f"  -> {remedy.unreached:.1%} are left, tried on these boxes, with")
        lines += [f"     {setting}" for setting in remedy.settings]
    if coverage.unreached > WORTH_SAYING and not tried:
        lines.append("  -> neither other sizes nor more aspect ratios help: look at the boxes, and at data.min_sizes")
    return lines


def _limit(value: float | None, by: str) -> str:
    if value is None:
        return ""
    return f"{value:g}" if by == "size" else f"{value:g}:1" if value >= 1 else f"1:{1 / value:g}"
