"""Boxes on images: the first batch, predictions beside the ground truth, and the pictures of `predict`."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.utils import draw_bounding_boxes

from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.reporting.pictures import enlarged, font_file, font_size, sheet, titled
from retina_dist.text import pluralize

NUM_IMAGES = 12
MIN_SCORE = 0.3  # of a detection in predictions.jpg


def class_color(label: int) -> tuple[int, int, int]:
    """A bright colour for each class; steps of the golden ratio spread the hues evenly, however many there are."""
    saturation, brightness = ((0.9, 1.0), (0.5, 1.0), (0.9, 0.75))[label % 3]
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1, saturation, brightness)
    return round(red * 255), round(green * 255), round(blue * 255)


def draw_boxes(
    image: Tensor, boxes: Tensor, labels: Tensor, names: Sequence[str], scores: Tensor | None = None
) -> Tensor:
    """`image` [3, h, w] RGB, 0 to 255, with `boxes` [n, 4] xyxy in its pixels, small ones on top -> uint8, enlarged if small.

    A box shows its class's name, or its label if that has none, and its score. Boxes are cut at the image's border; those that
    are not finite are left out.
    """
    picture = enlarged(image)
    boxes = boxes.detach().cpu().float()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    order = [i for i in (-area).argsort(stable=True).tolist() if boxes[i].isfinite().all()]
    if not order:
        return picture
    (height, width), scale = picture.shape[-2:], picture.shape[-1] / image.shape[-1]
    corners = (boxes[order] * scale).round().clamp(min=0).minimum(torch.tensor([width, height] * 2) - 1)
    corners = torch.cat((corners[:, :2], corners[:, 2:].maximum(corners[:, :2])), dim=1)
    classes = labels[order].tolist()
    texts = [(names[label] if 0 <= label < len(names) else "") or str(label) for label in classes]
    if scores is not None:
        texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores[order].tolist(), strict=True)]
    drawn: Tensor = draw_bounding_boxes(
        picture,
        corners,
        texts,
        [class_color(label) for label in classes],
        width=max(1, round(min(height, width) / 300)),
        font=font_file(),
        font_size=font_size(picture) if font_file() else None,
        label_colors="black",
        fill_labels=True,
    )
    return drawn


def draw_first_batch(data: CocoDataModule, step: int, names: Sequence[str], path: Path) -> None:
    """The images of one step after augmentation, with the boxes that the loss will see."""
    spec = data.train_sampler.step(step)[0]
    batch = data.train_dataset[replace(spec, indices=spec.indices[:NUM_IMAGES], size=1)].to("cpu")
    pictures = []
    for i in range(len(batch)):
        image, boxes, labels = _on_canvas(batch, i)
        title = f"image {int(batch.image_ids[i])}, {image.shape[2]} x {image.shape[1]}: {pluralize(len(boxes), 'box')}"
        pictures.append(titled(draw_boxes(image, boxes, labels, names), title))
    sheet(pictures).save(path, quality=92)


def draw_predictions(
    model: nn.Module, batches: Iterable[Batch], device: torch.device, names: Sequence[str], folder: Path
) -> None:
    """`folder`/predictions.jpg: ground truth and predictions side by side, of the first images of `batches`."""
    pictures: list[Tensor] = []
    for batch in islice(batches, NUM_IMAGES):
        batch = batch.to("cpu")
        with torch.inference_mode():
            detections: list[Detections] = model(batch.to(device))
        for i, detected in enumerate(detections):
            image, boxes, labels = _on_canvas(batch, i)
            pictures.append(
                titled(draw_boxes(image, boxes, labels, names), f"annotated: {pluralize(len(boxes), 'box')}")
            )
            kept = detected["scores"] >= MIN_SCORE
            scores, labels = detected["scores"][kept].cpu(), detected["labels"][kept].cpu()
            boxes = detected["boxes"][kept].cpu() * (batch.image_sizes[i] / batch.original_sizes[i]).flip(0).repeat(2)
            title = f"predicted: {pluralize(len(boxes), 'box')}, score {MIN_SCORE} and above"
            pictures.append(titled(draw_boxes(image, boxes, labels, names, scores), title))
        if len(pictures) >= 2 * NUM_IMAGES:
            break
    sheet(pictures[: 2 * NUM_IMAGES], columns=2).save(folder / "predictions.jpg", quality=92)


def _on_canvas(batch: Batch, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """Image `i` of a batch without padding, its boxes and their labels."""
    height, width = batch.image_sizes[i].tolist()
    count = int(batch.num_boxes[i])
    return batch.images[i, :, :height, :width], batch.boxes[i, :count], batch.labels[i, :count]
