"""Classification's commands; a training imports none of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor

from retina_dist.classification.artifacts import labelled
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.doctor import examine as examine
from retina_dist.classification.evaluation import evaluate_as_text as evaluate  # noqa: F401  a command of this module
from retina_dist.classification.export import export as export
from retina_dist.classification.splits import read_splits
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.data.sources import sizes_of
from retina_dist.files import write_atomically
from retina_dist.predictor import predict_files, refuse_tile
from retina_dist.reporting.console import print_redacted

if TYPE_CHECKING:
    from retina_dist.predict import PredictConfig


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image and `output_dir`/predictions.csv; return the folder.

    A row has the file, its class, that one's probability and those of all classes. A file that cannot be read is named and left
    out; with none left, DataError.
    """

    refuse_tile(config.tile)

    def draw(classifier: TrainedClassifier, pixels: Tensor, output: Tensor) -> tuple[Image.Image, str]:
        best = int(output.argmax())
        words = f"{classifier.classes[best]} {float(output[best]):.3f}"
        return labelled(pixels, words), words

    classifier, outputs = predict_files(config, TrainedClassifier.from_checkpoint, draw)
    folder = Path(config.output_dir)
    rows = [["file", "class", "probability", *classifier.classes]]
    for file, output in outputs.values():
        shares, best = output.tolist(), int(output.argmax())
        rows.append([str(file), classifier.classes[best], *(f"{s:.6f}" for s in (shares[best], *shares))])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_atomically(
        folder / "predictions.csv",
        lambda temporary: temporary.write_text(table.getvalue(), encoding="utf-8", errors="surrogateescape"),
    )
    print(f"{len(rows) - 1} images and predictions.csv in {folder}")
    return folder


def write_shards(config: Any) -> dict[str, int]:
    """Write both splits to `output`; return how many shards of each were written, not counting those that were there."""
    parts = zip(("train", "val"), read_splits(config.data), strict=True)
    splits = {split: _split(part) for split, part in parts if part is not None}
    return write_splits(config.output, splits, shard_mb=config.shard_mb, report=print_redacted)


def _split(part: Samples) -> ShardSplit:
    members = [Member(i, *facts) for i, facts in enumerate(zip(part.sources, sizes_of(part.sources), strict=True))]
    return ShardSplit(members, lambda: _annotations(part), part.warnings)


def _annotations(part: Samples) -> bytes:
    """COCO's form of a list of images, with a label for each."""
    rows = enumerate(zip(part.names, part.labels.tolist(), strict=True))
    images = [{"id": i, "file_name": name, "label": part.classes[label]} for i, (name, label) in rows]
    return (json.dumps({"images": images}) + "\n").encode()
