"""The certificate of a detector's exported files: how far boxes and scores are apart, and AP."""

import hashlib
import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torchvision.ops import box_convert
from torchvision.transforms import InterpolationMode

from retina_dist.base.errors import UserError
from retina_dist.data.buckets import resized_size
from retina_dist.detection.ap_intervals import resample
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.coco_metrics import detections_to_rows, evaluate_rows
from retina_dist.detection.detector import Detector
from retina_dist.detection.evaluation import opened
from retina_dist.detection.export import (
    differences,
    exporter_of,
    is_matrix,
    prepare_stretched,
    run_exported,
    with_hard_nms,
)
from retina_dist.detection.readers.categories import Categories
from retina_dist.task import certificate
from retina_dist.task.certificate import Entry
from retina_dist.task.export_formats import Runner, input_size
from retina_dist.task.predictor import LIMITS, Predictor, changed
from retina_dist.task.settings import EvaluateConfig

# Detections of one label that are nearer are the same one.
NEAR_PX = 1.0
NEAR_SCORE = 0.01
# Tolerances. Rounding can move a detection over a threshold: at most this share of all.
BOX_PX = 0.02
SCORE = 1e-4
UNMATCHED = 1e-3


class Certifier(certificate.Certifier):
    """Boxes, scores and AP."""

    metric = "AP"

    def __init__(self, config: EvaluateConfig) -> None:
        super().__init__(config, opened, exporter_of)
        records = self.val.records[: config.num_images]
        self.sources = [record.path for record in records]
        self.image_ids = [record.image_id for record in records]
        self.coco = self.val.coco
        self.truth = hashlib.sha256(json.dumps(self.coco, sort_keys=True).encode()).hexdigest()
        self.tolerances = {"box_px": BOX_PX, "score": SCORE, "unmatched": UNMATCHED}

    def exported(self, predictor: Predictor, run: Runner, pixels: Tensor) -> Detections:
        return run_exported(run, predictor.prepare(pixels))

    def reference(self, file: str) -> tuple[str, Predictor]:
        """That of the file's only image size, or of torchvision's NMS."""
        path = Path(file)
        size = input_size(path)
        if size:
            stretched = partial(prepare_stretched, self.predictor, size)
            return (
                f"PyTorch, {size[0]} x {size[1]} px",
                changed(self.predictor, prepare=stretched),
            )
        if path.suffix == ".pt" and is_matrix(self.predictor):
            return "PyTorch, nms=hard", with_hard_nms(self.predictor)
        return super().reference(file)

    def judge(self, answers: list[Entry]) -> Entry:
        found = list(map(self._detections, answers))
        image_ids = [self.image_ids[number] for number in self.seen]
        rows = detections_to_rows(found, image_ids, self.predictor.categories)
        result = evaluate_rows(self.coco, rows, image_ids=image_ids)
        return resample(result).interval("coco/AP").to_dict()

    def differences(self, expected: list[Entry], others: list[Entry]) -> dict[str, float]:
        """`box_px` and `score` of counterparts, and `unmatched`, the share without one.

        As in an export's comparison, detections that the other side may lack do not count. Raises
        UserError where nothing is detected, so that there is nothing to compare.
        """
        parts = [torch.zeros(1, 2)]
        for pair in zip(
            map(self._detections, expected), map(self._detections, others), strict=True
        ):
            parts.append(differences(self.predictor, *pair, SCORE))
        apart = torch.cat(parts)
        if len(apart) == 1:
            raise UserError(
                f"{self.predictor.source} detects nothing in {len(expected)} images; train it for "
                "longer, or evaluate more images."
            )
        near = (apart <= torch.tensor([NEAR_PX, NEAR_SCORE])).all(dim=1)
        box, score = apart[near].amax(dim=0).tolist()
        return {"box_px": box, "score": score, "unmatched": float((~near).double().mean())}

    def _detections(self, answer: Entry) -> Detections:
        found = answer["detections"]
        labels = {i: label for label, i in enumerate(self.predictor.categories.ids)}
        boxes = torch.tensor([d["bbox"] for d in found], dtype=torch.float64).reshape(-1, 4)
        return Detections(
            boxes=box_convert(boxes, "xywh", "xyxy").float(),
            scores=torch.tensor([d["score"] for d in found]),
            labels=torch.tensor([labels[d["category_id"]] for d in found], dtype=torch.int64),
        )

    def faults(self) -> dict[str, Predictor]:
        sound = self.predictor
        names = sound.categories
        sizes = {"min_size": round(0.9 * sound.min_size), "max_size": round(0.9 * sound.max_size)}
        faults = {
            **super().faults(),
            "resized to 90 %": changed(sound, **sizes),
            "bicubic resize": changed(sound, prepare=partial(_prepare_bicubic, sound)),
            "classes in another order": changed(
                sound, categories=Categories(names.ids[::-1], names.names[::-1])
            ),
        }
        if LIMITS["nms_threshold"] in vars(sound.model):
            threshold = 0.9 * sound.model.nms_thresh
            other = changed(sound, model=changed(sound.model))
            faults[f"nms_threshold={threshold:g}"] = other.set_limits(nms_threshold=threshold)
        return faults


def _prepare_bicubic(detector: Detector, pixels: Tensor) -> Batch:
    _, height, width = pixels.shape
    size = resized_size(height, width, detector.min_size, detector.max_size)
    return prepare_stretched(detector, size, pixels, InterpolationMode.BICUBIC)


certify = partial(certificate.certify, Certifier)
