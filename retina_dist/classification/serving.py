"""What the server answers for a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retina_dist.classification.classifier import ImageResult, TrainedClassifier
from retina_dist.serving.scoring import Prepared, Scorer
from retina_dist.serving.settings import ServeConfig


class ClassificationScorer(Scorer[Tensor]):
    """Answers with the most probable classes of each image; those below `score_threshold` are left out."""

    result = ImageResult

    def __init__(self, classifier: TrainedClassifier, *, score_threshold: float = 0.0, **limits: int) -> None:
        super().__init__(**limits)
        self.classifier, self.score_threshold = classifier, score_threshold

    def to_input(self, pixels: Tensor) -> Tensor:
        return self.classifier.prepare(pixels)

    def predict(self, images: Sequence[Prepared[Tensor]]) -> list[dict[str, Any]]:
        outputs = self.classifier.run([image.input for image in images])
        return [
            {"width": image.width, "height": image.height, **self.classifier.answer(output, self.score_threshold)}
            for image, output in zip(images, outputs, strict=True)
        ]


def load_scorer(config: ServeConfig, device: torch.device, **limits: int) -> ClassificationScorer:
    """The classifier of a checkpoint, loaded and warm: the first pass is the slowest."""
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    classifier.predict([torch.zeros(3, 480, 640, dtype=torch.uint8)])
    return ClassificationScorer(classifier, score_threshold=config.score_threshold, **limits)
