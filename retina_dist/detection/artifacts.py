"""Files that a training leaves for its user: the first batch, curves of the metrics, and predictions, drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from retina_dist.detection.batch import Batch
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.data.module import CocoDataModule
from retina_dist.detection.draw_boxes import batch_mosaic, mosaic, side_by_side
from retina_dist.detection.plots import plot_per_class, plot_pr
from retina_dist.files import write_atomically

NUM_IMAGES = 12


def draw_first_batch(data: CocoDataModule, step: int, names: Sequence[str], path: Path) -> None:
    """The images of one step after augmentation, with the boxes that the loss will see."""
    spec = data.train_sampler.step(step)[0]
    batch = data.train_dataset[replace(spec, indices=spec.indices[:NUM_IMAGES], size=1)].to("cpu")
    batch_mosaic(batch, names).save(path, quality=92)


def draw_metrics(result: CocoResult, folder: Path) -> None:
    """`folder`/pr_curve.png and per_class_ap.png."""
    plot_pr(result.precision, list(result.per_class), folder / "pr_curve.png")
    plot_per_class(result.per_class, folder / "per_class_ap.png")


def write_metrics(result: CocoResult, folder: Path) -> None:
    """`folder`/metrics.json and the plots of `draw_metrics`."""
    text = json.dumps(result.to_dict(), indent=1) + "\n"
    write_atomically(folder / "metrics.json", lambda temporary: temporary.write_text(text))
    draw_metrics(result, folder)


def draw_predictions(
    model: nn.Module, batches: Iterable[Batch], device: torch.device, names: Sequence[str], folder: Path
) -> None:
    """`folder`/predictions.jpg: ground truth and predictions side by side, of the first images of `batches`."""
    drawings = []
    for batch in islice(batches, NUM_IMAGES):
        batch = batch.to("cpu")  # where it is drawn, as it lies on the canvas
        with torch.inference_mode():
            detections = model(batch.to(device))
        for i, found in enumerate(detections):
            height, width = batch.image_sizes[i].tolist()
            scale = (batch.image_sizes[i] / batch.original_sizes[i]).flip(0).repeat(2)
            on_canvas = {k: v.cpu() for k, v in found.items()}
            on_canvas["boxes"] = on_canvas["boxes"] * scale
            n = int(batch.num_boxes[i])
            drawings.append(
                side_by_side(
                    batch.images[i, :, :height, :width],
                    batch.boxes[i, :n],
                    batch.labels[i, :n],
                    on_canvas,  # type: ignore[arg-type]
                    names,
                )
            )
        if len(drawings) >= NUM_IMAGES:
            break
    mosaic(drawings[:NUM_IMAGES], columns=2).save(folder / "predictions.jpg", quality=92)
