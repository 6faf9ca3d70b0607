"""Samples of different sizes -> one `Batch` on a canvas.

Layer 1. Imports nothing from retina_dist but types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retina_dist.types import Batch

BOX_MULTIPLE = 8  # few different M, so that kernels and graphs made for one M are used again


class Sample(NamedTuple):
    """One image as it goes onto the canvas."""

    image: Tensor  # [3, h, w] uint8
    boxes: Tensor  # [n, 4] float32 xyxy, pixels of `image`
    labels: Tensor  # [n] int64
    image_id: int
    original_size: tuple[int, int]  # (height, width) of the stored image


def collate(
    samples: Sequence[Sample], canvas: tuple[int, int], weight: float = 1.0, warnings: Sequence[str] = ()
) -> Batch:
    """At least one sample -> their batch; no image may be larger than `canvas`, a (height, width) in pixels.

    M is the largest number of boxes, but at least 1, rounded up to a multiple of 8. The images' shape is [B,
    3, H, W], their memory is channels last: samples come so from the resize, and convolutions like it best.
    """
    counts = [len(sample.labels) for sample in samples]
    most = -(-max(1, *counts) // BOX_MULTIPLE) * BOX_MULTIPLE
    images = torch.zeros(len(samples), *canvas, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    boxes = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(len(samples), most, 1)  # [B, M, 4]
    labels = torch.zeros(len(samples), most, dtype=torch.int64)
    for i, (sample, count) in enumerate(zip(samples, counts, strict=True)):
        height, width = sample.image.shape[-2:]
        images[i, :, :height, :width] = sample.image
        boxes[i, :count] = sample.boxes
        labels[i, :count] = sample.labels
    return Batch(
        images=images,
        image_sizes=torch.tensor([tuple(sample.image.shape[-2:]) for sample in samples]),
        original_sizes=torch.tensor([sample.original_size for sample in samples]),
        image_ids=torch.tensor([sample.image_id for sample in samples]),
        boxes=boxes,
        labels=labels,
        num_boxes=torch.tensor(counts),
        weight=weight,
        warnings=tuple(warnings),
    )
