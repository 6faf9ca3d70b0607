"""What the server answers for a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.serving.scoring import Prepared, Scorer
from retina_dist.serving.settings import ServeConfig

MOST_CLASSES = 5  # in an answer


class ClassScore(TypedDict):
    """A class and its probability."""

    name: str
    score: float


class ImageResult(TypedDict):
    """The most probable classes of one image, best first."""

    width: int
    height: int
    classes: list[ClassScore]


class ClassificationScorer(Scorer[Tensor]):
    """Answers with the most probable classes of each image; those below `score_threshold` are left out."""

    result = ImageResult

    def __init__(self, classifier: TrainedClassifier, *, score_threshold: float = 0.0, **limits: int) -> None:
        super().__init__(**limits)
        self.classifier, self.score_threshold = classifier, score_threshold

    def to_input(self, pixels: Tensor) -> Tensor:
        return self.classifier.prepare(pixels)

    def predict(self, images: Sequence[Prepared[Tensor]]) -> list[dict[str, Any]]:
        """An `ImageResult` of each image. The network gets one image at a time, so that no answer depends on another image."""
        results = []
        for image in images:
            best = self.classifier.probabilities(image.input)[0].topk(min(MOST_CLASSES, len(self.classifier.classes)))
            rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            classes = [
                {"name": self.classifier.classes[i], "score": score}
                for i, score in rows
                if score >= self.score_threshold
            ]
            results.append({"width": image.width, "height": image.height, "classes": classes})
        return results


def load_scorer(config: ServeConfig, device: torch.device, **limits: int) -> ClassificationScorer:
    """The classifier of a checkpoint, loaded and warm: the first pass is the slowest."""
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    classifier.predict([torch.zeros(3, 480, 640, dtype=torch.uint8)])
    return ClassificationScorer(classifier, score_threshold=config.score_threshold, **limits)
