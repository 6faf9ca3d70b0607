"""What the server answers for a detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from retina_dist.detection.batch import Batch
from retina_dist.detection.detector import Detector
from retina_dist.serving.scoring import Prepared, Scorer
from retina_dist.serving.settings import ServeConfig


class Detection(TypedDict):
    """One object; `bbox` is x, y, width, height in pixels of the image as it is displayed (EXIF orientation applied)."""

    category_id: int
    category_name: str
    bbox: tuple[float, float, float, float]
    score: float


class ImageResult(TypedDict):
    """What was found in one image, best first."""

    width: int
    height: int
    detections: list[Detection]


class DetectionScorer(Scorer[Batch]):
    """Answers with the objects in each image; those below `score_threshold` and those without a category are left out."""

    result = ImageResult

    def __init__(self, detector: Detector, *, score_threshold: float = 0.0, **limits: int) -> None:
        super().__init__(**limits)
        self.detector, self.score_threshold = detector, score_threshold

    def to_input(self, pixels: Tensor) -> Batch:
        return self.detector.prepare(pixels)

    def predict(self, images: Sequence[Prepared[Batch]]) -> list[dict[str, Any]]:
        categories = self.detector.categories
        results = []
        for image, found in zip(images, self.detector.detect([image.input for image in images]), strict=True):
            boxes = found["boxes"].to(torch.float64)
            boxes[:, 2:] -= boxes[:, :2]  # x, y, width, height
            rows = zip(boxes.tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)
            detections = [
                {
                    "category_id": categories.category_id_of(label),
                    "category_name": categories.name_of(label),
                    "bbox": box,
                    "score": score,
                }
                for box, score, label in rows
                if score >= self.score_threshold and categories.category_id_of(label) >= 0
            ]
            results.append({"width": image.width, "height": image.height, "detections": detections})
        return results


def load_scorer(config: ServeConfig, device: torch.device, **limits: int) -> DetectionScorer:
    """The detector of a checkpoint, loaded and warm: the first pass is the slowest."""
    detector = Detector.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    detector.predict([torch.zeros(3, 480, 640, dtype=torch.uint8)])
    return DetectionScorer(detector, score_threshold=config.score_threshold, **limits)
