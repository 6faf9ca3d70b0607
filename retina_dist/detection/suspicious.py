"""Labels that a trained detector doubts: objects without a box, boxes of another class, boxes in
another place.

A detector learns what most labels say rather than each wrong one, so that it can doubt those it was
trained on, too.
"""

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pycocotools import mask
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import ImageError
from retina_dist.base.files import write_json, write_text
from retina_dist.data.images import read_image
from retina_dist.detection.ap_intervals import Scene, scenes
from retina_dist.detection.detector import Detector
from retina_dist.detection.pictures import draw_boxes
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Entry
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split
from retina_dist.reporting.findings import DoctorReport, listed
from retina_dist.strategies.select import make_strategy
from retina_dist.task.predictor import data_of_checkpoint
from retina_dist.task.settings import DoctorConfig

Kind = Literal["missing", "wrong", "moved", "extra"]
TITLES: dict[Kind, str] = {
    "missing": "objects that may have no box",
    "wrong": "boxes that may be of another class",
    "moved": "boxes that may be badly placed",
    "extra": "boxes in which nothing was detected",
}
# IoU
SAME = 0.5
NEAR = 0.1
NONE = 0.3
FULL = 0.7
MIN_SUSPICION = 0.5  # that is written and shown
SHOWN = 100  # on the page
STYLE = (
    "body{font-family:sans-serif;margin:1em auto;max-width:75em;padding:0 1em;"
    "color-scheme:light dark}main{display:grid;gap:1em;"
    "grid-template-columns:repeat(auto-fill,minmax(18em,1fr))}figure{margin:0}img{width:100%}"
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


@heartbeat()
def examine_labels(config: DoctorConfig) -> DoctorReport:
    """Rank the labels of both splits that the detector of `config.checkpoint` doubts.

    Writes suspicious_SPLIT.html and suspicious_SPLIT.json.
    """
    path = str(config.checkpoint)
    folder = Path(config.output_dir or "suspicious")
    detector = Detector.from_checkpoint(path, precision=config.trainer.precision)
    data = data_of_checkpoint(detector.record, DetectionData, path, root=config.root)
    findings = []
    facts = []
    with make_strategy(device=config.strategy.device) as strategy, detector.on(strategy.device):
        for split in ("train", "val"):
            annotations = read_split(data, split, detector.categories)
            if annotations is None:
                continue
            evaluator = detector.evaluator_of(annotations, data, strategy)
            rows, image_ids = evaluator.detect(detector.model)
            coco = annotations.coco
            ranked = suspects_of(coco, rows, image_ids)
            suspects = [each for each in ranked if each.suspicion >= MIN_SUSPICION]
            page = folder / f"suspicious_{split}.html"
            write_proposals(coco, suspects, page.with_suffix(".json"))
            write_page(annotations, suspects, page, data.max_pixels)

            records = annotations.by_id
            for kind, title in TITLES.items():
                names = [records[each.image_id].file_name for each in suspects if each.kind == kind]
                findings += listed("warning", split, title, names, f"look at {page}")
            facts.append(
                f"{len(suspects)} labels of {split} to look at, the most suspicious first: {page}"
            )
    return DoctorReport(facts, findings)


def suspects_of(coco: Entry, rows: np.ndarray, image_ids: Sequence[int]) -> list[Suspect]:
    """The labels of these images that detection `rows` [n, 7] contradict, most suspicious first.

    Agreement with a label is the score of a detection of its class, less below an IoU of .70 and
    none at .30. What contradicts it is the score of a detection of another class at its place
    (IoU .50), or of one of its class beside it (.10) that overlaps no label. A label is suspicious
    by (1 - agreement) (1 + contradiction) / 2; an object without one by its score, times the
    agreement with the label of its class beside it, if there is one.
    """
    rows = rows[np.lexsort((-rows[:, 5], rows[:, 0]))]  # by image, then by falling score
    suspects = chain.from_iterable(map(_of_image, scenes(coco, rows, image_ids)))
    return sorted(suspects, key=lambda each: -each.suspicion)


def _of_image(scene: Scene) -> Iterator[Suspect]:
    ious = scene.ious  # [D, G]
    same = scene.same
    boxes = scene.rows[:, 1:5]
    scores = scene.rows[:, 5:6]
    categories = scene.rows[:, 6].astype(np.int64).tolist()
    free = np.asarray((ious < SAME).all(axis=1))
    agreement = scores * same * np.clip((ious - NONE) / (FULL - NONE), 0, 1)
    agreement = agreement.max(axis=0, initial=0)  # [G]
    other = scores * (~same & (ious >= SAME))
    beside = scores * (same & (ious >= NEAR) & free[:, None])
    for g in np.flatnonzero(~scene.crowd).tolist():
        kind: Kind = "moved"
        against = beside[:, g]
        if other[:, g].max(initial=0) > against.max(initial=0):
            kind = "wrong"
            against = other[:, g]
        contradiction = against.max(initial=0)
        doubt = float((1 - agreement[g]) * (1 + contradiction) / 2)
        label = scene.labels[g]
        category = label["category_id"]
        box = label["bbox"]
        if contradiction > 0:
            d = int(against.argmax())
            category = categories[d]
            box = boxes[d]
        else:  # nothing is there, as far as the detector sees
            kind = "extra"
        place = tuple(map(float, box))
        yield Suspect(doubt, kind, scene.image_id, category, place, label["id"])

    kept = boxes[:0]  # one detection for each place, the best
    for d in np.flatnonzero(free).tolist():
        box = boxes[d : d + 1]
        if not len(kept) or mask.iou(box, kept, np.zeros(len(kept), np.uint8)).max() < SAME:
            kept = np.concatenate((kept, box))
            doubt = float(
                scores[d, 0] * agreement[same[d] & (ious[d] >= NEAR) & ~scene.crowd].min(initial=1)
            )
            place = tuple(boxes[d].tolist())
            yield Suspect(doubt, "missing", scene.image_id, categories[d], place, None)


def write_proposals(coco: Entry, suspects: Sequence[Suspect], path: Path) -> None:
    """A COCO json of the proposed boxes alone, each with the values of its `Suspect`."""
    proposals = []
    for i, each in enumerate(suspects, start=1):
        proposals.append(
            {"id": i, "area": each.bbox[2] * each.bbox[3], "iscrowd": 0, **asdict(each)}
        )
    write_json(
        path,
        {
            "images": coco["images"],
            "categories": coco["categories"],
            "annotations": proposals,
        },
    )


def write_page(
    annotations: Annotations, suspects: Sequence[Suspect], path: Path, max_pixels: int
) -> None:
    """One self-contained page of the first suspects: the label in question, and the proposal."""
    records = annotations.by_id
    coco = annotations.coco
    labels = {entry["id"]: entry for entry in coco["annotations"]}
    names = {each["id"]: each["name"] for each in coco["categories"]}
    parts = []
    for each in suspects[:SHOWN]:
        record = records[each.image_id]
        try:
            image = read_image(record.path, record.size, max_pixels)
        except ImageError:
            continue
        texts = [f"proposed: {names[each.category_id]}"]
        boxes = torch.tensor([each.bbox])
        label = labels.get(each.replaces)
        if label:
            texts.insert(0, f"label: {names[label['category_id']]}")
            boxes = torch.tensor([label["bbox"], each.bbox], dtype=torch.float32)
        boxes[:, 2:] += boxes[:, :2]

        picture = draw_boxes(image, boxes, torch.arange(len(texts)), texts)
        data = io.BytesIO()
        to_pil_image(picture).save(data, "JPEG", quality=80)
        source = base64.b64encode(data.getvalue()).decode()
        words = html.escape(f"{each.suspicion:.2f} {each.kind}: {record.file_name}")
        shown = f'<img alt="{words}" src="data:image/jpeg;base64,{source}">'
        parts.append(f"<figure>{shown}<figcaption>{words}</figcaption></figure>")

    title = f"{len(suspects):,} suspicious labels"
    if len(suspects) > SHOWN:
        title = f"{SHOWN} of {title}"
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    write_text(
        path,
        f'<!doctype html><html lang="en">{head}<title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><main>{''.join(parts)}</main></html>\n",
        errors="backslashreplace",
    )
