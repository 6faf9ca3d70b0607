"""The classifier as an ONNX, PT2 or state_dict file, compared with the original before that."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.base.redaction import redacted
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.drawn import CLASSES, draw_shape
from retina_dist.classification.evaluation import refuse_settings_of_detectors
from retina_dist.classification.model import model_options
from retina_dist.data.images import AnyImage
from retina_dist.model.networks import network_builder
from retina_dist.task.export_formats import (
    Exporter,
    Runner,
    check_ending,
    describe_export,
    images_to_compare,
)
from retina_dist.task.settings import ExportConfig


class ExportableClassifier(nn.Module):
    """uint8 RGB [1, 3, S, S], resized and cropped -> probabilities [1, K]."""

    def __init__(self, classifier: TrainedClassifier) -> None:
        super().__init__()
        self.classifier = classifier.model
        self.temperature = classifier.temperature

    def forward(self, image: Tensor) -> Tensor:
        return (self.classifier.logits(image) / self.temperature).softmax(1)


def export(config: ExportConfig) -> float:
    """Write `output` if it agrees with the checkpoint's classifier.

    Returns the largest difference of a probability. Raises UserError where it is too large.
    """
    output = Path(config.output)
    check_ending(output)
    refuse_settings_of_detectors(replace(config, images=None))  # here they are to compare on
    if config.size is not None:
        raise ConfigError(
            f"size={config.size} is for detectors; leave it out, and a classifier takes its "
            "validation's size."
        )
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint)
    side = max(16, classifier.short_side)

    def draw(rng: np.random.Generator, number: int) -> AnyImage:
        return draw_shape(rng, CLASSES[number % len(CLASSES)], side)

    inputs = list(map(classifier.prepare, images_to_compare(config, draw)))
    worst = torch.zeros(())

    def compare(run: Runner) -> None:
        for image in inputs:
            apart = (run(image)[0] - classifier.probabilities(image)).abs()
            worst.copy_(torch.maximum(worst, apart.max()))  # NaN stays
        if not worst <= config.score_tolerance:
            raise UserError(
                f"{output} was not written: its probabilities differ by {worst:.3g}; "
                f"raise score_tolerance={config.score_tolerance}."
            )

    exporter_of(classifier, config.checkpoint).write(output, compare)
    summary = f"largest difference of a probability on {len(inputs)} images: {worst:.2g}"
    describe_export(classifier, config, summary)
    return float(worst)


def exporter_of(classifier: TrainedClassifier, checkpoint: str) -> Exporter:
    """The exporter of a classifier."""
    side = classifier.image_size
    example = torch.zeros(1, 3, side, side, dtype=torch.uint8)
    return Exporter(
        graph=partial(torch.export.export, ExportableClassifier(classifier).eval(), (example,)),
        input_name="image",
        output_names=["probabilities"],
        state=classifier.model.model.state_dict(),
        with_state=partial(_with_state, classifier),
        metadata={**classifier.metadata(), "checkpoint": redacted(checkpoint)},
    )


def _with_state(classifier: TrainedClassifier, state: Mapping[str, Tensor]) -> Runner:
    """torchvision's own class with these weights, whose batch norms are not ours."""
    name = classifier.arguments["architecture"]
    extra = model_options(name, classifier.arguments["image_size"])
    theirs = network_builder(name)(weights=None, num_classes=len(classifier.classes), **extra)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    for key in missing:
        assert key.endswith("num_batches_tracked")  # which a frozen norm does not count
    theirs.eval()

    def run(image: Tensor) -> list[Tensor]:
        logits = theirs(classifier.model.normalized(image))
        return [(logits / classifier.temperature).softmax(1)]

    return run
