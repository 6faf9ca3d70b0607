"""Files that a training leaves for its user: the first batch, the confusion matrix, and mistakes, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from retina_dist.classification.dataset import ClassificationDataModule, eval_transform, resized
from retina_dist.classification.metrics import ClassificationResult
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.data.images import read_image
from retina_dist.errors import ImageError
from retina_dist.files import write_json
from retina_dist.reporting.pictures import sheet, titled
from retina_dist.reporting.plots import new_figure

NUM_IMAGES, COLUMNS, SIDE = 24, 6, 192
MOST_CLASSES = 40  # in a drawn confusion matrix


def _draw_mosaic(images: Sequence[Tensor], texts: Sequence[str], path: Path) -> None:
    """Images [3, h, w] uint8 with a line of text above each; no file of no images."""
    path.unlink(missing_ok=True)  # of an earlier part of the run
    if images:
        tiles = [titled(resized(image.cpu(), SIDE, SIDE), text) for image, text in zip(images, texts, strict=True)]
        sheet(tiles, COLUMNS).save(path, quality=92)


def draw_first_batch(data: ClassificationDataModule, classes: Sequence[str], path: Path) -> None:
    """The images of the first step after augmentation, with their targets."""
    batch = next(iter(data.train_steps(0, 1)))[0]
    texts = []
    for i in batch.real_rows()[:NUM_IMAGES]:
        share, text = float(batch.share[i]), classes[int(batch.labels[i])]
        texts.append(text if share == 1 else f"{share:.2f} {text} + {classes[int(batch.other_labels[i])]}")
    _draw_mosaic(list(batch.images[: len(texts)]), texts, path)


def draw_mistakes(rows: np.ndarray, samples: Samples, settings: ClassificationData, path: Path) -> None:
    """The wrongly classified images with the highest loss, with their class and the prediction."""
    wrong = rows[rows[:, 3] >= 1]
    images, texts = [], []
    for row in wrong[np.argsort(-wrong[:, 4], kind="stable")][:NUM_IMAGES]:
        try:
            pixels = read_image(samples.sources[int(row[0])], None, settings.max_pixels)
        except ImageError:
            continue
        images.append(eval_transform(pixels, settings.val_size, settings.val_short_side))
        texts.append(f"{samples.classes[int(row[1])]}, not {samples.classes[int(row[2])]}")
    _draw_mosaic(images, texts, path)


def write_result(result: ClassificationResult, folder: Path) -> None:
    """`folder`/metrics.json and, of at most 40 classes, confusion.png."""
    write_json(folder / "metrics.json", result.to_dict())
    count = len(result.classes)
    if count > MOST_CLASSES:
        return
    shares = result.confusion / np.maximum(1, result.confusion.sum(axis=1, keepdims=True))
    side = max(3.0, 0.45 * count + 2)
    with new_figure(folder / "confusion.png", (side, side)) as figure:
        axes = figure.subplots()
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(result.confusion).tolist():
            colour = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, str(result.confusion[i, j]), ha="center", va="center", color=colour, fontsize=8)
        axes.grid(visible=False)
        axes.set_xticks(range(count), result.classes, rotation=90)
        axes.set_yticks(range(count), result.classes)
        axes.set(xlabel="predicted", ylabel="class")
