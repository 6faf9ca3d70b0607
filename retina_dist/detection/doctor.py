"""The doctor of a detection data set: its files, boxes and categories, and how the anchors fit."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import DataError, ImageError
from retina_dist.base.text import escape, pluralize
from retina_dist.data.file_checks import ImageCheck, check_images, file_findings
from retina_dist.data.images import read_image
from retina_dist.detection.anchor_coverage import Coverage, better_anchors, coverage_of
from retina_dist.detection.coco_metrics import MAX_DETECTIONS
from retina_dist.detection.pictures import titled_boxes
from retina_dist.detection.readers.annotations import CLIPPED, Annotations, BoxForm, box_faults
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import read_split, read_splits
from retina_dist.reporting.findings import DoctorReport, Finding, Level, listed
from retina_dist.reporting.pictures import sheet
from retina_dist.task.settings import DoctorConfig

LIMITS = (32**2, 96**2)  # COCO's limits of area in px^2, of
SIZES = ("small", "medium", "large")
RARE = 10  # images; LVIS (Gupta et al. 2019) calls a class in at most so many rare
WORTH_SAYING = 0.05  # share of boxes without an anchor
SMALL_SIDE = 16  # px, square root of the area; half of the smallest anchor
SHEET_IMAGES = 24
NUM_CLASSES = 40  # rows on the screen
NAME_WIDTH = 24

Objects = Mapping[str, Mapping[str, int]]  # class -> size or "all" -> boxes


@heartbeat()
def examine(config: DoctorConfig) -> DoctorReport:
    """Read both splits and their image files, and compare the boxes with the model's anchors.

    Raises UserError for annotations that cannot be read at all; everything else is a finding.
    """
    given = cast(DetectionData, config.data)
    # nothing is to stop or hide anything
    data = replace(given, missing_images="ignore", keep_empty_images=True)
    train, val = read_splits(data, check=False)
    splits, findings = _other_splits(data, train, val)
    names = train.categories.distinct_names
    checked = {}
    objects = {}
    images = {}
    for split, part in splits.items():
        checked[split] = check_images(
            [(record.file_name, record.path, record.size) for record in part.records],
            split,
            config.images,
            data.max_pixels,
        )
        part = splits[split] = with_file_sizes(part, checked[split])
        findings += split_findings(part, split, config.images)
        objects[split] = objects_table(part, names)
        images[split] = len(part.records)
    tolerated = []
    if data.bad_images == "skip":
        tolerated += ["unreadable", "of another size"]
    if given.missing_images == "skip":
        tolerated.append("missing")
    findings += file_findings(checked, tolerated)
    findings += category_findings(splits["train"], splits.get("val"))
    if "val" not in splits:
        findings.append(_without_val("test" in splits))

    facts = _format_objects(objects, images, config.output)
    if train.format:
        facts.insert(0, f"{train.format} in {data.root or data.train_annotations}")
    details: dict[str, object] = {"images": images, "objects": objects}
    if isinstance(config.model, ModelConfig):  # a model from outside may have no anchors
        coverage = coverage_of(splits["train"], data, config.model)
        findings += anchor_findings(coverage, splits["train"], data, config.model)
        facts += describe_good_fit(coverage)
        details["anchor_coverage"] = {
            "boxes": len(coverage.best_iou),
            "unreached": coverage.unreached,
            "iou": coverage.threshold,
        }
    if config.sheets:
        _draw_sheets(splits, Path(config.sheets), data.max_pixels)
    return DoctorReport(facts, findings, details)


def _other_splits(
    data: DetectionData, train: Annotations, val: Annotations | None
) -> tuple[dict[str, Annotations], list[Finding]]:
    """All splits that are there; a test split that cannot be read is a finding."""
    splits = {"train": train}
    if val is not None:
        splits["val"] = val
    if data.val_split == "test":
        return splits, []
    try:
        test = read_split(data, "test", train.categories, check=False)
    except DataError as error:
        return splits, [Finding("error", "test", str(error))]
    if test is not None:
        splits["test"] = test
    return splits, []


def _without_val(has_test: bool) -> Finding:
    ways = "data.val_fraction=0.1, or data.val_annotations"
    if has_test:
        ways += ", or data.val_split=test"
    remedy = f"training has no metrics and no best checkpoint: {ways}"
    return Finding("warning", "val", "no validation split", remedy)


def split_findings(part: Annotations, split: str, images: str) -> list[Finding]:
    """Warnings of the reader, boxes that are faulty, and image files that were not decoded."""
    findings = [Finding("warning", split, text) for text in part.warnings]
    for left in part.left_out:
        findings += listed("warning", split, f"{left.noun}s {left.why}", left.names, left.remedy)
    problem = BoxForm(part).fault(split)
    if problem is not None:
        findings.append(Finding("error", split, *problem))
    findings += box_findings(part, split)
    if images != "decode":
        findings.append(
            Finding(
                "info",
                split,
                "image files not decoded",
                f"as images={images} says",
                len(part.records),
            )
        )
    return findings


def describe_good_fit(coverage: Coverage) -> Iterator[str]:
    """A line where nearly all boxes have an anchor; others are a finding."""
    count = len(coverage.best_iou)
    if count and coverage.unreached <= WORTH_SAYING:
        fit = f"{1 - coverage.unreached:.1%} of {pluralize(count, 'training box')}"
        yield f"anchors fit {fit} (IoU from {coverage.threshold} on)"


def anchor_findings(
    coverage: Coverage, train: Annotations, data: DetectionData, model: ModelConfig
) -> Iterator[Finding]:
    """Boxes without an anchor, and boxes that are small after the resize, with what to try."""
    if coverage.unreached > WORTH_SAYING:
        remedy = better_anchors(train, data, model, coverage)
        what = f"boxes that no anchor fits, {coverage.unreached:.1%} of {len(coverage.best_iou)}"
        yield Finding("warning", "train", what, remedy, coverage.num_unreached)

    count = int((coverage.size < SMALL_SIDE).sum())
    if count < 10 or count <= WORTH_SAYING * len(coverage.size):
        return
    # the image size at which nine tenths of all boxes have SMALL_SIDE pixels
    scale = min(2.0, SMALL_SIDE / float(np.quantile(coverage.size, 0.1)))
    sides = [max(round(side * scale / 32), side // 32 + 1) * 32 for side in data.min_sizes]
    remedy = (
        f"try data.min_sizes={sides} data.max_size={round(data.max_size * scale)}, "
        f"{scale**2:.1f} times the memory"
    )
    if scale >= 2:
        remedy += ", or experiment=small_objects, which trains on windows of full resolution"
    what = f"boxes below {SMALL_SIDE} px after the resize"
    yield Finding("warning", "train", what, remedy, count)


def _draw_sheets(splits: Mapping[str, Annotations], folder: Path, max_pixels: int) -> None:
    """Images of each split, evenly spread over it, with the boxes to train on."""
    for split, part in splits.items():
        pictures = []
        spread = np.linspace(0, len(part.records) - 1, SHEET_IMAGES)
        for row in np.unique(spread.round().astype(int)).tolist():
            record = part.records[row]
            try:
                image = read_image(record.path, record.size, max_pixels)
            except ImageError:
                continue  # a finding already
            boxes = torch.from_numpy(part.boxes[row])
            labels = torch.from_numpy(part.labels[row])
            pictures.append(
                titled_boxes(
                    image, boxes, labels, part.categories.names, escape(record.file_name, 60)
                )
            )
        if pictures:
            folder.mkdir(parents=True, exist_ok=True)
            sheet(pictures).save(folder / f"{split}.jpg", quality=92)


def _format_objects(
    tables: Mapping[str, Objects], images: Mapping[str, int], output: str | None
) -> list[str]:
    """The table of objects, as lines: a row for each class, for each split a column for
    each size.
    """
    columns = (*SIZES, "all")
    counts = {}
    for name in sorted(tables["train"], key=lambda name: -tables["train"][name]["all"]):
        counts[name] = [table[name][column] for table in tables.values() for column in columns]
    used = [name for name in counts if any(counts[name])]
    width = min(NAME_WIDTH, max(map(len, [*used, "all classes"])))

    rows = [_row(name, counts[name], width) for name in used]
    more = len(rows) - NUM_CLASSES
    if more > 0:  # the rarest are as telling as the most frequent: leave out the middle
        where = "" if output else "; output=FILE.json has all"
        left_out = f"  ... {pluralize(more, 'more class')}{where}"
        rows[NUM_CLASSES // 2 : -NUM_CLASSES // 2] = [left_out]
    totals = np.array(list(counts.values())).sum(axis=0).tolist()

    heads = ""
    for split, count in images.items():
        heads += f"{split}, {pluralize(count, 'image')}".rjust(9 * len(columns))
    return [
        "Objects by the area of their box in the stored image: "
        "small below 32^2 px, large from 96^2 px",
        f"  {'':<{width}}{heads}",
        _row("class", columns * len(tables), width),
        *rows,
        _row("all classes", totals, width),
    ]


def _row(title: str, cells: Sequence[object], width: int) -> str:
    return f"  {escape(title, width):<{width}}" + "".join(map("{:>9}".format, cells))


def with_file_sizes(data: Annotations, checks: Sequence[ImageCheck]) -> Annotations:
    """`data` as training reads it: with the files' sizes where the annotations have none."""
    records = []
    for record, check in zip(data.records, checks, strict=True):
        if check.size and not record.size:
            record = replace(record, width=check.size[0], height=check.size[1])
        records.append(record)
    return data.with_records(records)


def box_findings(data: Annotations, split: str) -> list[Finding]:
    """Boxes that training leaves out or changes, crowds, and images without boxes."""
    remedies = {
        "not finite": "fix or remove them: not trained on, and the metric cannot be trusted",
        CLIPPED: "clipped to the image in training, left as they are in the metric",
    }
    not_learnt = "fix or remove them: not trained on, but evaluated, and always missed"
    findings = []
    for fault, examples in _faulty_boxes(data).items():
        level: Level = "info" if fault == CLIPPED else "warning"
        remedy = remedies.get(fault, not_learnt)
        findings += listed(level, split, f"boxes {fault}", examples, remedy)
    if split != "train":
        findings += _beyond_the_metric(data, split)
    if data.num_crowd:
        remedy = "not trained on; in the metric a detection there is neither right nor wrong"
        findings.append(Finding("info", split, "crowd regions", remedy, data.num_crowd))

    empty = []
    for record, boxes in zip(data.records, data.boxes, strict=True):
        if not len(boxes):
            empty.append(record.file_name)
    if len(empty) < len(data.records):
        remedy = "every detection there is wrong"
        if split == "train":
            remedy = "background to learn from"
        findings += listed("info", split, "images without boxes", empty, remedy)
    elif split != "train":  # `BoxForm` judges the training boxes
        remedy = "nothing to measure: is data.val_annotations the right file?"
        findings += listed("warning", split, "images, and none has a box", empty, remedy)
    return findings


def _beyond_the_metric(data: Annotations, split: str) -> list[Finding]:
    """Images with more objects of a class than COCO's metric counts detections."""
    counts = [int(np.bincount(labels).max(initial=0)) for labels in data.labels]
    crowded = []
    for record, count in zip(data.records, counts, strict=True):
        if count > MAX_DETECTIONS:
            crowded.append(f"{record.file_name} ({count})")
    what = f"images with more than {MAX_DETECTIONS} boxes of a class"
    remedy = "COCO's metric counts no more detections, so some are always missed"
    remedy += f"; evaluate max_detections={max(counts, default=0)} counts them too"
    return listed("info", split, what, crowded, remedy)


def _faulty_boxes(data: Annotations) -> dict[str, list[str]]:
    """A line on each faulty box, by its fault."""
    counts = ~data.truth.crowd
    objects = data.truth.of_objects(counts)
    faulty: dict[str, list[str]] = {}
    for fault, mask in box_faults(objects.boxes, data.sizes[counts])[1].items():
        examples = faulty[fault] = []
        for number in np.flatnonzero(mask).tolist():
            record = data.records[objects.image_rows[number]]
            box = ", ".join(map("{:g}".format, objects.boxes[number]))
            size = "an unknown size"
            if record.width and record.height:
                size = f"{record.width} x {record.height}"
            label = objects.ids[number]
            examples.append(f"annotation {label}: [{box}] in {record.file_name} of {size}")
    return faulty


def category_findings(train: Annotations, val: Annotations | None) -> list[Finding]:
    """Categories without boxes, rare ones, and a validation split that is not there."""
    names = train.categories.distinct_names
    learnt = _images_by_label(train)
    absent = [name for label, name in enumerate(names) if learnt and label not in learnt]
    remedy = "nothing to learn them from"
    findings = listed("warning", "train", "categories without a box", absent, remedy)

    alike = train.categories.spelt_alike
    remedy = "give each class one spelling; every spelling is trained as its own class"
    findings += listed("warning", "train", "categories spelt alike", alike, remedy)

    most = max(learnt.values(), default=0)
    rare = []
    for label, count in sorted(learnt.items(), key=lambda item: item[1]):
        if count <= RARE and 10 * count <= most:
            rare.append(f"{names[label]} (in {pluralize(count, 'image')})")
    threshold = min(0.1, 100 / len(train.records))
    remedy = f"draw their images more often with data.repeat_threshold={threshold:.2g}"
    findings += listed("info", "train", "rare classes", rare, remedy)

    if val is None:
        return findings
    judged = _images_by_label(val)
    if judged:
        absent = [names[label] for label in sorted(learnt.keys() - judged.keys())]
        remedy = "learnt, but not in the metric, which is the mean of the others"
        findings += listed("warning", "val", "categories of train without a box", absent, remedy)
    return findings


def _images_by_label(data: Annotations) -> Counter[int]:
    counts: Counter[int] = Counter()
    for labels in data.labels:
        counts.update(set(labels.tolist()))
    return counts


def objects_table(data: Annotations, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Boxes to train on of each label, which `names` name, by COCO's sizes.

    That is the area of the box in pixels of the stored image.
    """
    boxes = np.concatenate([np.zeros((0, 4)), *data.boxes])
    labels = np.concatenate([np.zeros(0, np.int64), *data.labels])
    size = np.searchsorted(LIMITS, (boxes[:, 2:] - boxes[:, :2]).prod(axis=1), side="right")
    counts = np.zeros((data.categories.num_classes, len(SIZES)), dtype=np.int64)
    np.add.at(counts, (labels, size), 1)
    table = {}
    for name, row in zip(names, counts.tolist(), strict=True):
        table[name] = {**dict(zip(SIZES, row, strict=True)), "all": sum(row)}
    return table
