"""The classifier as an ONNX, PT2 or state_dict file, compared with the original before the file is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import models

from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.data.drawn import CLASSES, draw_shape
from retina_dist.classification.model import model_options
from retina_dist.config.commands import ExportConfig
from retina_dist.data.images import find_images, read_image
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import write_atomically
from retina_dist.model import exporters
from retina_dist.redaction import redacted
from retina_dist.torch_files import load_torch

INPUT, OUTPUT = "image", "probabilities"
Runner = Callable[[Tensor], Tensor]  # [1, 3, S, S] uint8 -> [1, K] probabilities


class ExportedClassifier(nn.Module):
    """uint8 RGB [1, 3, S, S], resized and cropped -> probabilities [1, K]."""

    def __init__(self, classifier: TrainedClassifier) -> None:
        super().__init__()
        self.classifier = classifier.model

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier.logits(image).softmax(1)


def export(config: ExportConfig) -> float:
    """Write `output` if it finds what the checkpoint's classifier finds, and return the largest difference of a probability."""
    output = Path(config.output)
    if output.suffix not in WRITERS:
        raise ConfigError(f"output={output} has no known ending; use one of {', '.join(WRITERS)}.")
    if config.size is not None:
        raise ConfigError(f"size={config.size} is for detectors; a classifier has the size of its validation.")
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint)
    images = [classifier.prepare(pixels) for pixels in _images(config, classifier)]
    write, reopen = WRITERS[output.suffix]
    worst = 0.0

    def make(temporary: Path) -> None:
        nonlocal worst
        with exporters.quiet():
            write(classifier, temporary, config)
            run = reopen(classifier, temporary)
            worst = max(float((run(image) - classifier.probabilities(image)).abs().max()) for image in images)
        if not worst <= config.score_tolerance:
            raise UserError(
                f"{output} was not written: its probabilities differ by up to {worst:.3g}, more than {config.score_tolerance}; "
                "report it, or raise score_tolerance if that is good enough."
            )

    write_atomically(output, make)
    size = output.stat().st_size / 1e6
    print(f"{output}: {size:.1f} MB; largest difference of a probability on {len(images)} images: {worst:.2g}")
    return worst


def _images(config: ExportConfig, classifier: TrainedClassifier) -> list[Tensor]:
    if config.images:
        return [read_image(file) for file in find_images(config.images)[: config.num_images]]
    rng, side = np.random.default_rng(0), max(16, classifier.short_side)
    drawn = [draw_shape(rng, CLASSES[i % len(CLASSES)], side) for i in range(config.num_images)]
    return [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in drawn]


def _metadata(classifier: TrainedClassifier, config: ExportConfig) -> dict[str, str]:
    """What the file says of itself, each value as JSON."""
    values = {
        "classes": list(classifier.classes),
        "input": "uint8 RGB [1, 3, image_size, image_size]: shorter side resized to short_side, then the centre",
        "image_size": classifier.image_size,
        "short_side": classifier.short_side,
        "checkpoint": redacted(config.checkpoint),
        "versions": exporters.versions(),
    }
    return {name: json.dumps(value) for name, value in values.items()}


def _example(classifier: TrainedClassifier) -> Tensor:
    return torch.zeros((1, 3, classifier.image_size, classifier.image_size), dtype=torch.uint8)


def _write_onnx(classifier: TrainedClassifier, path: Path, config: ExportConfig) -> None:
    exporters.require_onnx()
    exporters.save_onnx(
        ExportedClassifier(classifier).eval(),
        path,
        arguments=(_example(classifier),),
        input_name=INPUT,
        output_names=[OUTPUT],
        metadata=_metadata(classifier, config),
    )


def _load_onnx(classifier: TrainedClassifier, path: Path) -> Runner:
    run = exporters.load_onnx(path, INPUT, [OUTPUT])
    return lambda image: run(image)[0]


def _write_pt2(classifier: TrainedClassifier, path: Path, config: ExportConfig) -> None:
    program = torch.export.export(ExportedClassifier(classifier).eval(), (_example(classifier),))
    exporters.save_pt2(program, path, _metadata(classifier, config))


def _load_pt2(classifier: TrainedClassifier, path: Path) -> Runner:
    return exporters.load_pt2(path)


def _write_state_dict(classifier: TrainedClassifier, path: Path, config: ExportConfig) -> None:
    torch.save(classifier.model.model.state_dict(), path)


def _load_state_dict(classifier: TrainedClassifier, path: Path) -> Runner:
    """In torchvision's own class, whose batch norms are not ours."""
    state, _ = load_torch(path)
    arguments = classifier.arguments
    extra = model_options(arguments["architecture"], arguments["image_size"])
    theirs = models.get_model(arguments["architecture"], weights=None, num_classes=len(classifier.classes), **extra)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)  # which a frozen norm does not count
    theirs.eval()

    @torch.inference_mode()
    def run(image: Tensor) -> Tensor:
        return theirs(classifier.model.normalized(image)).softmax(1)

    return run


WRITERS: dict[
    str,
    tuple[Callable[[TrainedClassifier, Path, ExportConfig], None], Callable[[TrainedClassifier, Path], Runner]],
] = {
    ".onnx": (_write_onnx, _load_onnx),
    ".pt2": (_write_pt2, _load_pt2),
    ".pt": (_write_state_dict, _load_state_dict),
}
