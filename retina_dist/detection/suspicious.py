"""Labels that a trained detector doubts: objects without a box, boxes of another class, boxes in another place.

A detector learns what most labels say rather than each wrong one, so that it can doubt those it was trained on, too.
"""

from __future__ import annotations

import base64
import html
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pycocotools import mask
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.errors import ImageError
from retina_dist.base.files import write_json, write_text
from retina_dist.data.images import read_image
from retina_dist.detection.detector import Detector
from retina_dist.detection.pictures import draw_boxes
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.reporting.findings import DoctorReport, Finding
from retina_dist.strategies.select import make_strategy
from retina_dist.task.predictor import data_of_checkpoint

if TYPE_CHECKING:
    from retina_dist.doctor import DoctorConfig

Kind = Literal["missing", "wrong", "moved", "extra"]
TITLES: dict[Kind, str] = {
    "missing": "objects that may have no box",
    "wrong": "boxes that may be of another class",
    "moved": "boxes that may be badly placed",
    "extra": "boxes in which nothing was detected",
}
SAME, NEAR, NONE, FULL = 0.5, 0.1, 0.3, 0.7  # IoU
WORTH_LOOKING = 0.5  # least suspicion that is written and shown
SHOWN = 100  # on the page
STYLE = (
    "body{font-family:sans-serif;margin:1em auto;max-width:75em;padding:0 1em;color-scheme:light dark}"
    "main{display:grid;grid-template-columns:repeat(auto-fill,minmax(18em,1fr));gap:1em}figure{margin:0}img{width:100%}"
)


@dataclass(frozen=True)
class Suspect:
    """A label to look at, with what the detector proposes in its place."""

    suspicion: float  # 0 to 1
    kind: Kind
    image_id: int
    category_id: int
    bbox: tuple[float, ...]  # x, y, width, height in px
    replaces: int | None  # the id of the annotation in question, None for a missing one


def examine_labels(config: DoctorConfig) -> DoctorReport:
    """Rank the labels of both splits that the detector of `config.checkpoint` doubts; write suspicious_SPLIT.html and .json."""
    path, folder = str(config.checkpoint), Path(config.output_dir or "suspicious")
    detector = Detector.from_checkpoint(path, precision=config.trainer.precision)
    data = data_of_checkpoint(detector.record, DetectionData, path, root=config.root)
    findings, facts = [], []
    with make_strategy(device=config.strategy.device) as strategy, detector.on(strategy.device):
        for split in ("train", "val"):
            annotations = read_split(data, split, detector.categories)
            if annotations is None:
                continue
            rows, image_ids = detector.evaluator_of(annotations, data, strategy).detect(
                detector.model
            )
            ranked = suspects_of(annotations.coco, rows, image_ids)
            suspects = [each for each in ranked if each.suspicion >= WORTH_LOOKING]
            page = folder / f"suspicious_{split}.html"
            write_proposals(annotations.coco, suspects, page.with_suffix(".json"))
            write_page(annotations, suspects, page, data.max_pixels)
            files = {record.image_id: record.file_name for record in annotations.records}
            for kind, title in TITLES.items():
                own = tuple(
                    files.get(each.image_id, str(each.image_id))
                    for each in suspects
                    if each.kind == kind
                )
                if own:
                    findings.append(
                        Finding("warning", split, title, f"look at {page}", len(own), own)
                    )
            facts.append(
                f"{len(suspects)} labels of {split} to look at, the most suspicious first: {page}"
            )
    return DoctorReport(facts, findings)


def suspects_of(coco: dict[str, Any], rows: np.ndarray, image_ids: Sequence[int]) -> list[Suspect]:
    """The labels of these images that detection `rows` [n, 7] on them contradict, the most suspicious first.

    Agreement with a label is the score of a detection of its class, less below an IoU of .70 and none at .30. What contradicts it
    is the score of a detection of another class at its place (IoU .50), or of one of its class beside it (.10) that overlaps
    no label. A label is suspicious by (1 - agreement) (1 + contradiction) / 2; an object without one by its score, times
    the agreement with the label of its class beside it, if there is one.
    """
    truth: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in coco["annotations"]:
        truth[entry["image_id"]].append(entry)
    suspects: list[Suspect] = []
    rows = rows[np.lexsort((-rows[:, 5], rows[:, 0]))]  # by image, then by falling score
    images, starts = np.unique(rows[:, 0], return_index=True)
    of_image = dict(zip(images.astype(np.int64).tolist(), np.split(rows, starts)[1:], strict=True))
    for image_id in image_ids:
        suspects += _of_image(image_id, truth[image_id], of_image.get(image_id, rows[:0]))
    return sorted(suspects, key=lambda each: -each.suspicion)


def _of_image(image_id: int, labels: Sequence[dict[str, Any]], rows: np.ndarray) -> list[Suspect]:
    scores, categories = rows[:, 5:6], rows[:, 6].astype(np.int64)
    boxes = np.array([entry["bbox"] for entry in labels], float).reshape(-1, 4)
    crowd = np.array([bool(entry.get("iscrowd")) for entry in labels], bool)
    ious = np.zeros((len(rows), len(labels)))  # [D, G]
    if ious.size:
        ious = mask.iou(rows[:, 1:5], boxes, crowd.astype(np.uint8))
    same = categories[:, None] == np.array([entry["category_id"] for entry in labels], np.int64)
    free = np.asarray((ious < SAME).all(axis=1))
    agreement = (scores * same * np.clip((ious - NONE) / (FULL - NONE), 0, 1)).max(
        axis=0, initial=0
    )  # [G]
    other, beside = (
        scores * (~same & (ious >= SAME)),
        scores * (same & (ious >= NEAR) & free[:, None]),
    )
    suspects: list[tuple[float, Kind, int, np.ndarray, int | None]] = []
    for g in np.flatnonzero(~crowd).tolist():
        kind: Kind = (
            "wrong" if other[:, g].max(initial=0) > beside[:, g].max(initial=0) else "moved"
        )
        against = other[:, g] if kind == "wrong" else beside[:, g]
        contradiction = against.max(initial=0)
        entry, doubt = labels[g], (1 - agreement[g]) * (1 + contradiction) / 2
        if contradiction > 0:
            d = int(against.argmax())
            suspects.append((doubt, kind, categories[d], rows[d, 1:5], entry["id"]))
        else:  # nothing is there, as far as the detector sees
            suspects.append((doubt, "extra", entry["category_id"], boxes[g], entry["id"]))
    kept: list[int] = []  # one detection for each place, the best
    for d in np.flatnonzero(free).tolist():
        if kept and mask.iou(rows[d : d + 1, 1:5], rows[kept, 1:5], [0] * len(kept)).max() >= SAME:
            continue
        kept.append(d)
        known = agreement[same[d] & (ious[d] >= NEAR) & ~crowd].min(initial=1)
        suspects.append((scores[d, 0] * known, "missing", categories[d], rows[d, 1:5], None))
    return [
        Suspect(float(suspicion), kind, image_id, int(category), tuple(box.tolist()), replaces)
        for suspicion, kind, category, box, replaces in suspects
    ]


def write_proposals(coco: dict[str, Any], suspects: Sequence[Suspect], path: Path) -> None:
    """A COCO json of the proposed boxes alone, each with the values of its `Suspect`."""
    extra = (
        {"id": i, "area": each.bbox[2] * each.bbox[3], "iscrowd": 0}
        for i, each in enumerate(suspects, 1)
    )
    proposals = [more | asdict(each) for more, each in zip(extra, suspects, strict=True)]
    write_json(
        path, {"images": coco["images"], "categories": coco["categories"], "annotations": proposals}
    )


def write_page(
    annotations: Annotations, suspects: Sequence[Suspect], path: Path, max_pixels: int
) -> None:
    """One self-contained page with an image for each of the first suspects: the label in question, and the proposal."""
    records = {record.image_id: record for record in annotations.records}
    labels = {entry["id"]: entry for entry in annotations.coco["annotations"]}
    names = {each["id"]: each["name"] for each in annotations.coco["categories"]}
    parts = []
    for each in suspects[:SHOWN]:
        record, label = records[each.image_id], labels.get(each.replaces)
        try:
            image = read_image(record.path, (record.width, record.height), max_pixels)
        except ImageError:
            continue
        marked = [(label["bbox"], f"label: {names[label['category_id']]}")] if label else []
        marked.append((each.bbox, f"proposed: {names[each.category_id]}"))
        boxes = torch.tensor([box for box, _ in marked], dtype=torch.float32)
        boxes[:, 2:] += boxes[:, :2]
        picture, data = (
            draw_boxes(image, boxes, torch.arange(len(marked)), [text for _, text in marked]),
            io.BytesIO(),
        )
        to_pil_image(picture).save(data, "JPEG", quality=80)
        source = base64.b64encode(data.getvalue()).decode()
        words = html.escape(f"{each.suspicion:.2f} {each.kind}: {record.file_name}")
        shown = f'<img alt="{words}" src="data:image/jpeg;base64,{source}">'
        parts.append(f"<figure>{shown}<figcaption>{words}</figcaption></figure>")
    title = f"{SHOWN} of " * (len(suspects) > SHOWN) + f"{len(suspects):,} suspicious labels"
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1><main>{''.join(parts)}</main></html>\n"
    )
    write_text(path, text, errors="backslashreplace")
