"""The classifier as an ONNX, PT2 or state_dict file, compared with the original before the file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import models

from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.data.drawn import CLASSES, draw_shape
from retina_dist.classification.model import model_options
from retina_dist.data.images import AnyImage, find_images
from retina_dist.errors import ConfigError, UserError
from retina_dist.exporters import Exporter, Runner, check_ending
from retina_dist.redaction import redacted

if TYPE_CHECKING:
    from retina_dist.export import ExportConfig

INPUT, OUTPUT = "image", "probabilities"


class ExportedClassifier(nn.Module):
    """uint8 RGB [1, 3, S, S], resized and cropped -> probabilities [1, K]."""

    def __init__(self, classifier: TrainedClassifier) -> None:
        super().__init__()
        self.classifier = classifier.model

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier.logits(image).softmax(1)


def export(config: ExportConfig) -> float:
    """Write `output` if it gives what the checkpoint's classifier gives, and return the largest difference of a probability."""
    output = Path(config.output)
    check_ending(output)
    if config.size is not None:
        raise ConfigError(f"size={config.size} is for detectors; a classifier has the size of its validation.")
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint)
    rng, side = np.random.default_rng(0), max(16, classifier.short_side)
    images: Sequence[AnyImage] = [draw_shape(rng, CLASSES[i % len(CLASSES)], side) for i in range(config.num_images)]
    if config.images:
        images = find_images(config.images)[: config.num_images]
    inputs = [classifier.prepare(image) for image in images]
    example = torch.zeros_like(inputs[0])
    worst = 0.0

    def compare(run: Runner) -> None:
        nonlocal worst
        worst = max(float((run(image)[0] - classifier.probabilities(image)).abs().max()) for image in inputs)
        if not worst <= config.score_tolerance:
            raise UserError(
                f"{output} was not written: its probabilities differ by up to {worst:.3g}, more than {config.score_tolerance}; "
                "report it, or raise score_tolerance if that is good enough."
            )

    exporter = Exporter(
        graph=lambda: torch.export.export(ExportedClassifier(classifier).eval(), (example,)),
        input_name=INPUT,
        output_names=[OUTPUT],
        state=classifier.model.model.state_dict(),
        with_state=partial(_with_state, classifier),
        about={
            "classes": list(classifier.classes),
            "input": "uint8 RGB [1, 3, image_size, image_size]: shorter side resized to short_side, then the centre",
            "image_size": classifier.image_size,
            "short_side": classifier.short_side,
            "checkpoint": redacted(config.checkpoint),
        },
    )
    exporter.write(output, compare)
    size = output.stat().st_size / 1e6
    print(f"{output}: {size:.1f} MB; largest difference of a probability on {len(inputs)} images: {worst:.2g}")
    return worst


def _with_state(classifier: TrainedClassifier, state: Mapping[str, Tensor]) -> Runner:
    """torchvision's own class with these weights, whose batch norms are not ours."""
    arguments = classifier.arguments
    extra = model_options(arguments["architecture"], arguments["image_size"])
    theirs = models.get_model(arguments["architecture"], weights=None, num_classes=len(classifier.classes), **extra)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)  # which a frozen norm does not count
    theirs.eval()
    return lambda image: [theirs(classifier.model.normalized(image)).softmax(1)]
