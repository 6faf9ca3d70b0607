"""The classes of images: a CSV file, and the images with their class and probability."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from retina_dist.classification.artifacts import labelled
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.files import write_atomically
from retina_dist.predictor import predict_files

if TYPE_CHECKING:
    from retina_dist.predict import PredictConfig


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image and `output_dir`/predictions.csv; return the folder.

    A row has the file, its class, that one's probability and those of all classes. A file that cannot be read is named and left
    out; with none left, DataError.
    """

    def draw(classifier: TrainedClassifier, pixels: Tensor, output: Tensor) -> tuple[Image.Image, str]:
        best = int(output.argmax())
        words = f"{classifier.classes[best]} {float(output[best]):.3f}"
        return labelled(pixels, words), words

    classifier, outputs = predict_files(config, TrainedClassifier, draw)
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
