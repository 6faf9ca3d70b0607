"""Samples of different sizes -> one `Batch` on a canvas.

Layer 1. Imports nothing from retina_dist but the two kinds of batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retina_dist.data.raw import RawBatch
from retina_dist.types import Batch

BOX_MULTIPLE = 8  # few different M, so that kernels and graphs made for one M are used again
RAW_MULTIPLE = 64  # pixels; few different shapes, so that memory made for one is used again


class Sample(NamedTuple):
    """One image as it goes onto the canvas, or into a raw batch."""

    image: Tensor  # [3, h, w] uint8
    boxes: Tensor  # [n, 4] float32 xyxy, canvas pixels
    labels: Tensor  # [n] int64
    image_id: int
    original_size: tuple[int, int]  # (height, width) of the stored image
    size: tuple[int, int] | None = None  # (height, width) on the canvas; None: that of `image`
    flips: tuple[bool, bool] = (False, False)  # still to be made: top to bottom, left to right


def collate(
    samples: Sequence[Sample], canvas: tuple[int, int], weight: float = 1.0, warnings: Sequence[str] = ()
) -> Batch:
    """At least one sample -> their batch; no image may be larger than `canvas`, a (height, width) in pixels.

    M is the largest number of boxes, but at least 1, rounded up to a multiple of 8. The images' shape is [B,
    3, H, W], their memory is channels last: samples come so from the resize, and convolutions like it best.
    """
    sizes = _sizes(samples)
    return Batch(
        images=_side_by_side(samples, canvas),
        image_sizes=sizes,
        weight=weight,
        warnings=tuple(warnings),
        **_rest(samples),
    )


def collate_raw(
    samples: Sequence[Sample], canvas: tuple[int, int], weight: float = 1.0, warnings: Sequence[str] = ()
) -> RawBatch:
    """As `collate`, of images that are still to be flipped and resized; those lie on a canvas of their own."""
    raw_sizes = _sizes(samples)
    height, width = (-(-side // RAW_MULTIPLE) * RAW_MULTIPLE for side in raw_sizes.amax(dim=0).tolist())
    return RawBatch(
        images=_side_by_side(samples, (height, width)),
        image_sizes=torch.tensor([sample.size or tuple(sample.image.shape[-2:]) for sample in samples]),
        raw_sizes=raw_sizes,
        flips=torch.tensor([sample.flips for sample in samples]),
        canvas=canvas,
        weight=weight,
        warnings=tuple(warnings),
        **_rest(samples),
    )


def _sizes(samples: Sequence[Sample]) -> Tensor:
    return torch.tensor([tuple(sample.image.shape[-2:]) for sample in samples])


def _side_by_side(samples: Sequence[Sample], canvas: tuple[int, int]) -> Tensor:
    images = torch.zeros(len(samples), *canvas, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    for image, sample in zip(images, samples, strict=True):
        height, width = sample.image.shape[-2:]
        image[:, :height, :width] = sample.image
    return images


def _rest(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """What both kinds of batch have beside images."""
    counts = [len(sample.labels) for sample in samples]
    most = -(-max(1, *counts) // BOX_MULTIPLE) * BOX_MULTIPLE
    boxes = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(len(samples), most, 1)  # [B, M, 4]
    labels = torch.zeros(len(samples), most, dtype=torch.int64)
    for i, (sample, count) in enumerate(zip(samples, counts, strict=True)):
        boxes[i, :count] = sample.boxes
        labels[i, :count] = sample.labels
    return {
        "original_sizes": torch.tensor([sample.original_size for sample in samples]),
        "image_ids": torch.tensor([sample.image_id for sample in samples]),
        "boxes": boxes,
        "labels": labels,
        "num_boxes": torch.tensor(counts),
    }
