"""The values that travel between data, model, evaluator and trainer.

Layer 0. Letters in shape comments, here and in the whole package: B images of a batch, A anchors, M boxes an image
is padded to, N detections, K classes, H and W the canvas in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor

AnyBatch = TypeVar("AnyBatch", bound="Batch")


class Detections(TypedDict):
    """What a model found in one image, best score first."""

    boxes: Tensor  # [N, 4] float32 xyxy, pixels of the stored image (EXIF orientation applied)
    scores: Tensor  # [N] float32 in 0..1
    labels: Tensor  # [N] int64, contiguous labels (not COCO category ids)


@dataclass(frozen=True)
class Batch:
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

    def __len__(self) -> int:
        return self.images.shape[0]

    def real_rows(self) -> list[int]:
        """The numbers of the images that are no fillers; on a GPU the host waits for them."""
        return list(range(len(self))) if self.real is None else self.real.nonzero().flatten().tolist()

    def image(self: AnyBatch, i: int) -> AnyBatch:
        """Its image `i` alone, on the same canvas."""
        return self._map(lambda tensor: tensor[i : i + 1])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: AnyBatch) -> AnyBatch:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self: AnyBatch, function: Any) -> AnyBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: function(v) for k, v in values.items() if isinstance(v, Tensor)})
