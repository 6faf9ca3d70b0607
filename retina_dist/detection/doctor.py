"""The doctor of a detection data set: its files, boxes and categories, and how the model's anchors fit the boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retina_dist.base.errors import ImageError
from retina_dist.base.text import escape, pluralize
from retina_dist.data.buckets import resized_size
from retina_dist.data.file_checks import ImageCheck, check_images, file_findings
from retina_dist.data.images import read_image
from retina_dist.detection.data.dataset import buckets_of
from retina_dist.detection.model.retinanet import anchor_generator
from retina_dist.detection.plausibility import implausible_boxes
from retina_dist.detection.readers.annotations import Annotations, box_faults, clean
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import read_split
from retina_dist.reporting.findings import DoctorReport, Finding, Level

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig

SMALL, MEDIUM = 32**2, 96**2  # COCO's limits of area in px^2
RARE = 10  # images; LVIS (Gupta et al. 2019) calls a class in at most so many rare
SIZES = ("small", "medium", "large")
WORTH_SAYING = 0.05  # share of boxes without an anchor
WORTH_DOING = 0.8  # a change is proposed if it leaves at most this share of them
SMALL_SIDE = 16  # px, square root of the area; half of the smallest anchor
SHEET_IMAGES = 24
NUM_CLASSES = 40  # rows on the screen
NAME_WIDTH = 24


def examine(config: DoctorConfig) -> DoctorReport:
    """Read both splits and their image files, and compare the boxes with the model's anchors.

    Raises UserError for annotations that cannot be read at all; everything else is a finding.
    """
    data = replace(
        config.data, missing_images="ignore", keep_empty_images=True
    )  # nothing is to stop or hide anything
    train = read_split(data, "train", check=False)
    assert train is not None, "a missing train split is an error"
    val = read_split(data, "val", train.categories, check=False)

    splits = {"train": train} | ({"val": val} if val else {})
    checked: dict[str, list[ImageCheck]] = {}
    findings: list[Finding] = []
    for split, part in splits.items():
        findings += [Finding("warning", split, text) for text in part.warnings]
        files = [(r.file_name, r.path, r.size) for r in part.records]
        checked[split] = check_images(files, split, config.images, config.data.max_pixels)
        splits[split] = part = with_file_sizes(part, checked[split])
        if problem := implausible_boxes(part, split):
            findings.append(Finding("error", split, *problem))
        findings += box_findings(part, split)
        if config.images != "decode":
            remedy = f"as images={config.images} says"
            findings.append(
                Finding("info", split, "image files not decoded", remedy, len(part.records))
            )
    tolerated = {"missing"} if config.data.missing_images == "skip" else set()
    tolerated |= {"unreadable", "of another size"} if config.data.bad_images == "skip" else set()
    findings += [Finding(*f) for f in file_findings(checked, tolerated)]
    findings += category_findings(splits["train"], splits.get("val"))
    if val is None:
        remedy = "training has no metrics and no best checkpoint: data.val_fraction=0.1, or data.val_annotations"
        findings.append(Finding("warning", "val", "no validation split", remedy))

    objects = {
        split: objects_table(part, train.categories.distinct_names)
        for split, part in splits.items()
    }
    images = {split: len(part.records) for split, part in splits.items()}
    facts = _format_objects(objects, images, config.output)
    facts[:0] = [f"{train.format} in {config.data.root}"] if train.format else []
    details: dict[str, Any] = {"images": images, "objects": objects}
    if isinstance(config.model, ModelConfig):  # a model from outside may have no anchors
        coverage = _coverage(splits["train"], config.data, config.model)
        if coverage.unreached > WORTH_SAYING:
            what = (
                f"boxes that no anchor fits, {coverage.unreached:.1%} of {len(coverage.best_iou)}"
            )
            remedy = better_anchors(splits["train"], config.data, config.model, coverage)
            findings.append(Finding("warning", "train", what, remedy, coverage.num_unreached))
        findings += _small_objects(coverage, config.data)
        counts = {"boxes": len(coverage.best_iou), "unreached": coverage.unreached}
        details["anchor_coverage"] = {**counts, "iou": coverage.threshold}
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
    sides = [max(round(side * scale / 32), side // 32 + 1) * 32 for side in data.min_sizes]
    remedy = f"try data.min_sizes={sides} data.max_size={round(data.max_size * scale)}, {scale**2:.1f} times the memory"
    remedy += (
        ""
        if scale < 2
        else ", or experiment=small_objects, which trains on windows of full resolution"
    )
    return [
        Finding("warning", "train", f"boxes below {SMALL_SIDE} px after the resize", remedy, count)
    ]


def _draw_sheet(part: Annotations, path: Path, max_pixels: int) -> None:
    """Images of a split, evenly spread over it, with the boxes to train on."""
    from retina_dist.detection.pictures import draw_boxes
    from retina_dist.reporting.pictures import sheet, titled

    pictures = []
    for i in np.unique(
        np.linspace(0, len(part.records) - 1, SHEET_IMAGES).round().astype(int)
    ).tolist():
        record = part.records[i]
        try:
            image = read_image(record.path, record.size, max_pixels)
        except ImageError:
            continue  # a finding already
        boxes, labels = torch.from_numpy(part.boxes[i]), torch.from_numpy(part.labels[i])
        picture = draw_boxes(image, boxes, labels, part.categories.names)
        pictures.append(
            titled(picture, f"{escape(record.file_name, 60)}: {pluralize(len(boxes), 'box')}")
        )
    if pictures:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet(pictures).save(path, quality=92)


@dataclass(frozen=True)
class Coverage:
    """Best overlap of each training box with any anchor, at the scale that training sees."""

    best_iou: np.ndarray  # [n]
    size: np.ndarray  # [n] square root of the box's area in px, after the resize
    threshold: float  # IoU from which an anchor answers for a box

    @property
    def num_unreached(self) -> int:
        """Boxes without such an anchor."""
        return int((self.best_iou < self.threshold).sum())

    @property
    def unreached(self) -> float:
        """Share of boxes without such an anchor; 0 where there are no boxes."""
        return self.num_unreached / max(1, len(self.best_iou))


def _coverage(train: Annotations, data: DetectionData, model: ModelConfig) -> Coverage:
    cells = anchor_generator(model.anchor_sizes, model.aspect_ratios).cell_anchors
    return anchor_coverage(
        train, [anchors.numpy() for anchors in cells], data, model.foreground_iou
    )


def anchor_coverage(
    data: Annotations,
    cell_anchors: Sequence[np.ndarray],
    settings: DetectionData,
    threshold: float = 0.5,
) -> Coverage:
    """Which boxes an anchor reaches at the largest of the settings' `min_sizes`, on the canvas of each image's bucket.

    `cell_anchors` are the anchors [a, 4] of each pyramid level, P3 to P7, centred on the origin. Exact without trying
    every anchor: of one shape, the anchor with the nearest centre overlaps most, because the overlap only falls with the
    distance along either axis. Images of unknown size are left out.
    """
    known = [i for i, record in enumerate(data.records) if record.size]
    if not sum(len(data.boxes[i]) for i in known):
        return Coverage(np.zeros(0), np.zeros(0), threshold)
    sizes = np.array([(data.records[i].height, data.records[i].width) for i in known])
    min_size = max(settings.min_sizes)
    buckets = buckets_of(settings, sizes)
    canvases = buckets.padded_shapes[buckets.min_sizes.index(min_size), buckets.of_image]
    resized = np.array([resized_size(h, w, min_size, settings.max_size) for h, w in sizes.tolist()])

    # From here on one column for each box, with rows y and x.
    image = np.repeat(np.arange(len(known)), [len(data.boxes[i]) for i in known])
    boxes = np.concatenate([data.boxes[i] for i in known]).astype(np.float64).T
    scale = (resized / sizes)[image].T
    low, high = boxes[[1, 0]] * scale, boxes[[3, 2]] * scale
    area = (high - low).prod(axis=0)
    best = np.zeros(len(image))
    canvas = canvases[image].T
    grid = canvas // 4
    for anchors in cell_anchors:
        grid = -(
            -grid // 2
        )  # P3 is an eighth of the canvas, each further level half of the one before, rounded up
        stride = canvas // grid  # as torchvision places anchors
        nearest = np.clip(np.round((low + high) / 2 / stride), 0, grid - 1) * stride
        for left, top, right, bottom in anchors.astype(np.float64):
            common = np.minimum(high, nearest + [[bottom], [right]]) - np.maximum(
                low, nearest + [[top], [left]]
            )
            both = common.clip(0).prod(axis=0)
            best = np.maximum(best, both / (area + (right - left) * (bottom - top) - both))
    return Coverage(best, np.sqrt(area), threshold)


def better_anchors(
    train: Annotations, data: DetectionData, model: ModelConfig, now: Coverage
) -> str:
    """Of the usual changes of anchors, each tried on the boxes, the one that leaves the fewest without an anchor."""
    sizes = model.anchor_sizes
    smaller, larger = [
        [[max(1, int(size * factor)) for size in level] for level in sizes] for factor in (0.5, 2)
    ]
    wider = [smaller[0], *sizes[1:-1], larger[-1]]
    ratios = sorted(
        {*model.aspect_ratios, min(model.aspect_ratios) / 2, max(model.aspect_ratios) * 2}
    )
    tried = []
    for anchor_sizes in (
        sizes,
        smaller,
        larger,
        wider,
        [smaller[0], *sizes[1:]],
        [*sizes[:-1], larger[-1]],
    ):
        for aspect_ratios in (model.aspect_ratios, ratios):
            other = replace(model, anchor_sizes=anchor_sizes, aspect_ratios=aspect_ratios)
            changed = [
                key
                for key in ("anchor_sizes", "aspect_ratios")
                if getattr(other, key) != getattr(model, key)
            ]
            settings = [f"model.{key}={getattr(other, key)}".replace(", ", ",") for key in changed]
            tried.append(
                (_coverage(train, data, other).unreached, len(settings), " ".join(settings))
            )
    unreached, _, text = min(tried)
    if unreached > WORTH_DOING * now.unreached:
        return "neither other sizes nor more aspect ratios help: look at the boxes, and at data.min_sizes"
    return f"{unreached:.1%} are left, tried on these boxes, with {text}"


def _format_objects(
    tables: dict[str, Any], images: dict[str, int], output: str | None
) -> list[str]:
    columns = (*SIZES, "all")
    names = sorted(tables["train"], key=lambda name: -tables["train"][name]["all"])
    used = [name for name in names if any(table[name]["all"] for table in tables.values())]
    width = min(NAME_WIDTH, max(map(len, [*used, "all classes"])))

    def row(title: str, counts: list[int]) -> str:
        return f"  {escape(title, width):<{width}}" + "".join(f"{count:>9}" for count in counts)

    rows = [
        row(name, [table[name][column] for table in tables.values() for column in columns])
        for name in used
    ]
    if (
        more := len(rows) - NUM_CLASSES
    ) > 0:  # the rarest are as telling as the most frequent: leave out the middle
        where = "" if output else "; output=FILE.json has all"
        rows[NUM_CLASSES // 2 : -NUM_CLASSES // 2] = [
            f"  ... {pluralize(more, 'more class')}{where}"
        ]
    totals = [
        sum(line[column] for line in table.values())
        for table in tables.values()
        for column in columns
    ]
    heads = [f"{split}, {pluralize(images[split], 'image')}" for split in tables]
    return [
        "Objects by the area of their box in the stored image: small below 32^2 px, large from 96^2 px",
        f"  {'':<{width}}" + "".join(f"{head:>{9 * len(columns)}}" for head in heads),
        f"  {'class':<{width}}" + "".join(f"{column:>9}" for _ in heads for column in columns),
        *rows,
        row("all classes", totals),
    ]


def with_file_sizes(data: Annotations, checks: Sequence[ImageCheck]) -> Annotations:
    """`data` as training reads it: with the files' sizes where the annotations have none."""
    records = [
        replace(r, width=check.size[0], height=check.size[1]) if check.size and not r.size else r
        for r, check in zip(data.records, checks, strict=True)
    ]
    return replace(
        clean(data.coco, records, data.categories),
        warnings=data.warnings,
        box_format=data.box_format,
    )


def box_findings(data: Annotations, split: str) -> list[Finding]:
    """Boxes that training leaves out or changes, crowds, and images without boxes."""
    remedies = {
        "not finite": "fix or remove them: not trained on, and the metric cannot be trusted",
        "reaching out of the image": "clipped to the image in training, left as they are in the metric",
    }
    not_learnt = "fix or remove them: not trained on, and always missed in the metric"
    record_of = {record.image_id: record for record in data.records}
    entries = [entry for entry in data.coco["annotations"] if not entry["iscrowd"]]
    records = [record_of[entry["image_id"]] for entry in entries]
    sizes = np.array([(r.width or np.inf, r.height or np.inf) for r in records]).reshape(-1, 2)
    boxes = np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4)
    findings = []
    for fault, mask in box_faults(boxes, sizes)[1].items():
        examples = []
        for i in np.flatnonzero(mask):
            size = (
                f"{records[i].width} x {records[i].height}"
                if np.isfinite(sizes[i]).all()
                else "an unknown size"
            )
            box = ", ".join(f"{value:g}" for value in boxes[i])
            examples.append(
                f"annotation {entries[i]['id']}: [{box}] in {records[i].file_name} of {size}"
            )
        level: Level = "info" if fault == "reaching out of the image" else "warning"
        findings += _finding(
            level, split, f"boxes {fault}", examples, remedies.get(fault, not_learnt)
        )
    if data.num_crowd:
        remedy = "not trained on; in the metric a detection there is neither right nor wrong"
        findings.append(Finding("info", split, "crowd regions", remedy, data.num_crowd))
    empty = [
        r.file_name for r, boxes in zip(data.records, data.boxes, strict=True) if not len(boxes)
    ]
    if len(empty) < len(data.records):
        remedy = (
            "background to learn from" if split == "train" else "every detection there is wrong"
        )
        return findings + _finding("info", split, "images without boxes", empty, remedy)
    if split == "val":  # `implausible_boxes` judges the training boxes
        remedy = "nothing to measure: is data.val_annotations the right file?"
        findings += _finding("warning", split, "images, and none has a box", empty, remedy)
    return findings


def category_findings(train: Annotations, val: Annotations | None) -> list[Finding]:
    """Categories without boxes, and rare ones."""
    names = train.categories.distinct_names
    learnt, judged = (_images_by_label(part) if part else Counter() for part in (train, val))
    absent = [name for label, name in enumerate(names) if learnt and label not in learnt]
    findings = _finding(
        "warning", "train", "categories without a box", absent, "nothing to learn them from"
    )
    most = max(learnt.values(), default=0)
    few = [
        (names[label], count)
        for label, count in learnt.items()
        if count <= RARE and 10 * count <= most
    ]
    rare = [
        f"{name} (in {pluralize(count, 'image')})"
        for name, count in sorted(few, key=lambda item: item[1])
    ]
    remedy = f"draw their images more often with data.repeat_threshold={min(0.1, 100 / len(train.records)):.2g}"
    findings += _finding("info", "train", "rare classes", rare, remedy)
    if judged:
        absent = [names[label] for label in sorted(learnt.keys() - judged.keys())]
        remedy = "learnt, but not in the metric, which is the mean of the others"
        findings += _finding("warning", "val", "categories of train without a box", absent, remedy)
    return findings


def _images_by_label(data: Annotations) -> Counter[int]:
    return Counter(label for labels in data.labels for label in set(labels.tolist()))


def objects_table(data: Annotations, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Boxes to train on of each label, which `names` name, by COCO's sizes (area of the box in pixels of the stored image)."""
    boxes = np.concatenate([np.zeros((0, 4)), *data.boxes])
    labels = np.concatenate([np.zeros(0, np.int64), *data.labels])
    size = np.searchsorted(
        (SMALL, MEDIUM), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1), side="right"
    )
    counts = np.zeros((data.categories.num_classes, len(SIZES)), dtype=np.int64)
    np.add.at(counts, (labels, size), 1)
    rows = zip(names, counts.tolist(), strict=True)
    return {name: dict(zip(SIZES, row, strict=True)) | {"all": sum(row)} for name, row in rows}


def _finding(
    level: Level, split: str, what: str, examples: Sequence[str], remedy: str
) -> list[Finding]:
    return [Finding(level, split, what, remedy, len(examples), tuple(examples))] if examples else []
