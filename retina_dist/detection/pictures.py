"""Boxes on images: the first batch, and the pictures of `predict` and `doctor`."""

import colorsys
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import ImageDraw
from torch import Tensor
from torchvision.ops import box_area
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from retina_dist.base.text import escape, pluralize
from retina_dist.data.file_checks import DARK
from retina_dist.data.images import read_image
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Entry
from retina_dist.reporting.pictures import (
    enlarged,
    font_of,
    font_size,
    sheet,
    titled,
    write_details,
)

NUM_IMAGES = 12


def class_color(label: int) -> tuple[int, int, int]:
    """A bright colour for each class.

    Steps of the golden ratio spread the hues evenly, however many there are.
    """
    saturation, brightness = ((0.9, 1.0), (0.5, 1.0), (0.9, 0.75))[label % 3]
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1, saturation, brightness)
    return round(red * 255), round(green * 255), round(blue * 255)


def draw_boxes(
    image: Tensor, boxes: Tensor, labels: Tensor, names: Sequence[str], scores: Tensor | None = None
) -> Tensor:
    """`image` with boxes, small ones on top -> uint8, enlarged if small.

    A box shows its class's name, or its label if that has none, and its score. Boxes are cut at
    the image's border; those that are not finite are left out.

    Args:
        image: [3, h, w] RGB, 0 to 255.
        boxes: [n, 4] xyxy in its pixels.
        labels: [n].
        names: the name of each label.
        scores: [n].
    """
    picture = enlarged(image)
    boxes = boxes.detach().cpu().float()
    height, width = picture.shape[-2:]
    corners = (boxes * (width / image.shape[-1])).round()
    corners = corners.clamp(min=0).minimum(torch.tensor([width - 1, height - 1]).repeat(2))
    corners[:, 2:] = corners[:, 2:].maximum(corners[:, :2])
    drawn = to_pil_image(picture)
    pen = ImageDraw.Draw(drawn)
    font = font_of(font_size(picture))
    line = max(1, round(min(height, width) / 300))
    for i in box_area(boxes).argsort(descending=True, stable=True).tolist():
        if not boxes[i].isfinite().all():
            continue
        place = corners[i].tolist()
        label = int(labels[i])
        text = str(label)
        if 0 <= label < len(names) and names[label]:
            text = names[label]
        if scores is not None:
            text += f" {float(scores[i]):.2f}"
        start = (place[0] + line, place[1] + line)
        pen.rectangle(place, outline=class_color(label), width=line)
        pen.rectangle(pen.textbbox(start, text, font=font), fill=class_color(label))
        pen.text(start, text, font=font, fill="black")
    return pil_to_tensor(drawn)


def titled_boxes(
    image: Tensor, boxes: Tensor, labels: Tensor, names: Sequence[str], title: str
) -> Tensor:
    """`draw_boxes` below a title with their number."""
    return titled(
        draw_boxes(image, boxes, labels, names), f"{title}: {pluralize(len(boxes), 'box')}"
    )


def draw_first_batch(
    data: CocoDataModule, names: Sequence[str], files: Mapping[int, str], path: Path
) -> None:
    """The images of the first step after augmentation, with the boxes that the loss will see.

    `files` has the file name of each image id. Without images no file is written.
    """
    path.unlink(missing_ok=True)  # of an earlier part of the run
    spec = data.train_sampler.step(0)[0]
    batch = data.train_dataset[replace(spec, indices=spec.indices[:NUM_IMAGES], size=1)].to("cpu")
    pictures = []
    for i in batch.real_rows():
        height, width = batch.image_sizes[i].tolist()
        count = int(batch.num_boxes[i])
        title = f"{escape(files[int(batch.image_ids[i])], 60)}, {width} x {height}"
        image = batch.images[i, :, :height, :width]
        pictures.append(
            titled_boxes(image, batch.boxes[i, :count], batch.labels[i, :count], names, title)
        )
    if not pictures:
        return

    if batch.images.max() <= DARK:
        logging.getLogger(__name__).warning(
            "the images of the first step are nearly black; store them with 8 bits, scaled to 255"
        )
    sheet(pictures).save(path, quality=92)


def write_report_details(
    result: CocoResult, annotations: Annotations, folder: Path, max_pixels: int
) -> None:
    """`folder`/details.json: precision over recall, and images with their objects and predictions.

    The images are those that analysis.json lists, the predictions those at and above the
    threshold of best F1.
    """
    records = annotations.by_id
    coco = annotations.coco
    names = {each["id"]: each["name"] for each in coco["categories"]}

    def read(image_id: int) -> Tensor:
        record = records[image_id]
        return read_image(record.path, record.size, max_pixels)

    def marks(image_id: int, analysis: Mapping[str, Any]) -> list[Entry]:
        found = []
        for entry in coco["annotations"]:
            if entry["image_id"] == image_id:
                found.append(
                    {"kind": "object", "place": entry["bbox"], "text": names[entry["category_id"]]}
                )
        least = (analysis.get("threshold") or {}).get("threshold") or 0.0
        for row in result.rows[(result.rows[:, 0] == image_id) & (result.rows[:, 5] >= least)]:
            found.append(
                {
                    "kind": "prediction",
                    "place": row[1:5].round(1).tolist(),
                    "text": f"{names[row[6]]} {row[5]:.2f}",
                }
            )
        return found

    write_details(folder, read, marks, precision_recall=result.precision_recall())
