"""What the server answers for a detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retina_dist.detection.batch import Batch
from retina_dist.detection.detector import Detector, ImageResult
from retina_dist.serving.scoring import Prepared, Scorer
from retina_dist.serving.settings import ServeConfig


class DetectionScorer(Scorer[Batch]):
    """Answers with the objects in each image; those below `score_threshold` and those without a category are left out."""

    result = ImageResult

    def __init__(self, detector: Detector, *, score_threshold: float = 0.0, **limits: int) -> None:
        super().__init__(**limits)
        self.detector, self.score_threshold = detector, score_threshold

    def to_input(self, pixels: Tensor) -> Batch:
        return self.detector.prepare(pixels)

    def predict(self, images: Sequence[Prepared[Batch]]) -> list[dict[str, Any]]:
        outputs = self.detector.run([image.input for image in images])
        return [
            {"width": image.width, "height": image.height, **self.detector.answer(output, self.score_threshold)}
            for image, output in zip(images, outputs, strict=True)
        ]


def load_scorer(config: ServeConfig, device: torch.device, **limits: int) -> DetectionScorer:
    """The detector of a checkpoint, loaded and warm: the first pass is the slowest."""
    detector = Detector.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    detector.predict([torch.zeros(3, 480, 640, dtype=torch.uint8)])
    return DetectionScorer(detector, score_threshold=config.score_threshold, **limits)
