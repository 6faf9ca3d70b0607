"""Classification's commands; a training imports none of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models

from retina_dist.classification.artifacts import labelled
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.data.drawn import CLASSES, draw_shape
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.doctor import examine as examine
from retina_dist.classification.evaluation import evaluate_as_text as evaluate  # noqa: F401  a command of this module
from retina_dist.classification.model import model_options
from retina_dist.classification.task import read_splits
from retina_dist.data.images import AnyImage, find_images
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.data.sources import sizes_of
from retina_dist.errors import ConfigError, UserError
from retina_dist.exporters import Exporter, Runner, check_ending
from retina_dist.files import write_atomically
from retina_dist.predictor import predict_files, refuse_tile
from retina_dist.redaction import redacted
from retina_dist.reporting.console import print_redacted

if TYPE_CHECKING:
    from retina_dist.export import ExportConfig
    from retina_dist.predict import PredictConfig
    from retina_dist.serving.settings import ServeConfig


def predictor_of(config: PredictConfig | ServeConfig, device: str | torch.device) -> TrainedClassifier:
    """The classifier of `config.checkpoint`."""
    refuse_tile(config.tile)
    return TrainedClassifier.from_checkpoint(config.checkpoint, device=device, precision=config.precision)


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image and `output_dir`/predictions.csv; return the folder.

    A row has the file, its class, that one's probability and those of all classes. A file that cannot be read is named and left
    out; with none left, DataError.
    """

    def draw(classifier: TrainedClassifier, pixels: Tensor, output: Tensor) -> tuple[Image.Image, str]:
        best = int(output.argmax())
        words = f"{classifier.classes[best]} {float(output[best]):.3f}"
        return labelled(pixels, words), words

    classifier, outputs = predict_files(config, predictor_of, draw)
    folder = Path(str(config.output_dir))
    rows = [["file", "class", "probability", *classifier.classes]]
    for file, output in outputs.values():
        shares, best = output.tolist(), int(output.argmax())
        rows.append([str(file), classifier.classes[best], *(f"{s:.6f}" for s in (shares[best], *shares))])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    content = table.getvalue().encode(errors="surrogateescape")
    write_atomically(folder / "predictions.csv", lambda temporary: temporary.write_bytes(content))
    print(f"{len(rows) - 1} images and predictions.csv in {folder}")
    return folder


def write_shards(config: Any) -> dict[str, int]:
    """Write both splits to `output`; return how many shards of each were written, not counting those that were there."""

    def split(part: Samples) -> ShardSplit:
        files = zip(part.sources, sizes_of(part.sources), strict=True)
        rows = enumerate(zip(part.names, part.labels.tolist(), strict=True))
        images = [{"id": i, "file_name": name, "label": part.classes[label]} for i, (name, label) in rows]
        annotations = (json.dumps({"images": images}) + "\n").encode()
        return ShardSplit([Member(i, *file) for i, file in enumerate(files)], lambda: annotations, part.warnings)

    parts = zip(("train", "val"), read_splits(config.data), strict=True)
    splits = {name: split(part) for name, part in parts if part is not None}
    return write_splits(config.output, splits, shard_mb=config.shard_mb, report=print_redacted)


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
        raise ConfigError(f"size={config.size} is for detectors; a classifier takes its validation's size.")
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint)
    rng, side = np.random.default_rng(0), max(16, classifier.short_side)
    files = find_images(config.images)[: config.num_images] if config.images else None
    images: Sequence[AnyImage] = files or [
        draw_shape(rng, CLASSES[i % len(CLASSES)], side) for i in range(config.num_images)
    ]
    inputs = [classifier.prepare(image) for image in images]
    worst = 0.0

    def compare(run: Runner) -> None:
        nonlocal worst
        worst = max(float((run(image)[0] - classifier.probabilities(image)).abs().max()) for image in inputs)
        if not worst <= config.score_tolerance:
            raise UserError(
                f"{output} was not written: its probabilities differ by up to {worst:.3g}, more than {config.score_tolerance}; "
                "report it, or raise score_tolerance if that is good enough."
            )

    Exporter(
        graph=lambda: torch.export.export(ExportedClassifier(classifier).eval(), (torch.zeros_like(inputs[0]),)),
        input_name="image",
        output_names=["probabilities"],
        state=classifier.model.model.state_dict(),
        with_state=partial(_with_state, classifier),
        about={
            "classes": list(classifier.classes),
            "input": "uint8 RGB [1, 3, image_size, image_size]: shorter side resized to short_side, then the centre",
            "image_size": classifier.image_size,
            "short_side": classifier.short_side,
            "checkpoint": redacted(config.checkpoint),
        },
    ).write(output, compare)
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
