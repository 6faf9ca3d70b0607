"""The values that travel between data, model, evaluator and trainer.

Letters in shape comments, here and in the whole package: B images of a batch, A anchors, M boxes an image
is padded to, N detections, K classes, H and W the canvas in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from torch import Tensor

from retina_dist.data.module import TensorBatch


class Detections(TypedDict):
    """Detected objects of one image, best score first."""

    boxes: Tensor  # [N, 4] float32 xyxy, pixels of the stored image (EXIF orientation applied)
    scores: Tensor  # [N] float32 in 0..1
    labels: Tensor  # [N] int64, contiguous labels (not COCO category ids)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """B images on one canvas, with their boxes padded to a common number.

    `weight` is the batch's share in the optimizer step: the trainer multiplies the mean loss over its real images by it, so
    that micro-batches and ranks of unequal size add up to the mean over the whole step. Fillers, black images without boxes
    at the end of the batch, keep its shape; they are in no loss, no gradient and no statistic.
    """

    images: Tensor  # [B, 3, H, W] RGB, 0 to 255, uint8 or float32, each image in the top left corner, zeros elsewhere
    image_sizes: Tensor  # [B, 2] int64 (height, width) of the image within the canvas
    original_sizes: Tensor  # [B, 2] int64 (height, width) of the stored image
    image_ids: Tensor  # [B] int64
    boxes: Tensor  # [B, M, 4] float32 xyxy in canvas pixels; rows past num_boxes are the unit box 0, 0, 1, 1
    labels: Tensor  # [B, M] int64; rows past num_boxes are 0
    num_boxes: Tensor  # [B] int64
    weight: float = 1.0
    real: Tensor | None = None  # [B] bool, False for a filler; None: there is no filler
