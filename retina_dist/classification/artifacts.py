"""Files that a training leaves for its user: the first batch, drawn, and metrics.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from retina_dist.classification.dataset import ClassificationDataModule, resized
from retina_dist.classification.metrics import ClassificationResult
from retina_dist.files import write_json
from retina_dist.reporting.pictures import sheet, titled

NUM_IMAGES, COLUMNS, SIDE = 24, 6, 192


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


def write_result(result: ClassificationResult, folder: Path) -> None:
    """`folder`/metrics.json."""
    write_json(folder / "metrics.json", result.to_dict())
