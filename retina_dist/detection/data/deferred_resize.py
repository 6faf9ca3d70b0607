"""Batches that are sent as the files' own pixels, to be flipped and resized by the device.

Data workers then only decode and augment, and what travels is smaller. The result is float32 by torchvision's formula
for its detectors (bilinear, half-pixel centres), where a data worker's resize rounds to whole grey levels. An image that
shrinks comes resized, because this formula does not smooth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from retina_dist.detection.batch import Batch

ResizedBy = Literal["workers", "device"]


def resized_by(setting: str, device: torch.device) -> ResizedBy:
    """Who resizes, by `data.resize`. "auto" is the device if it is a GPU: on a CPU, the workers' uint8 resize is much faster."""
    if setting == "auto":
        return "device" if device.type == "cuda" else "workers"
    return "device" if setting == "device" else "workers"


@dataclass(frozen=True, kw_only=True)
class DeferredResizeBatch(Batch):
    """A batch whose `images` are [B, 3, h, w] as stored; all else is as on the canvas. `to` makes an ordinary batch of it."""

    raw_sizes: Tensor  # [B, 2] int64 (height, width) of each image within `images`
    flips: Tensor  # [B, 2] bool: top to bottom, left to right
    canvas: tuple[int, int]  # (height, width) in pixels

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on `device`, its images float32 on the canvas."""
        there = self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        values = {field.name: getattr(there, field.name) for field in fields(Batch)}
        images = resize_batch(there.images, there.raw_sizes, there.image_sizes, there.flips, self.canvas)
        return Batch(**values | {"images": images})


def resize_batch(images: Tensor, sizes: Tensor, targets: Tensor, flips: Tensor, canvas: tuple[int, int]) -> Tensor:
    """Images of different `sizes` [B, 2] in one tensor [B, 3, h, w] -> [B, 3, H, W] float32, each flipped by `flips` [B, 2]
    and resized to `targets` [B, 2] in the top left corner of the canvas, zeros elsewhere; memory is channels last.

    The formula of `interpolate(mode="bilinear", align_corners=False)`, for all images at once: the number of operations does
    not grow with B, and the host waits for nothing.
    """
    count, _, height, width = images.shape
    top, bottom, down, inside_y = _taps(sizes[:, 0], targets[:, 0], flips[:, 0], canvas[0])  # [B, H] each
    left, right, across, inside_x = _taps(sizes[:, 1], targets[:, 1], flips[:, 1], canvas[1])  # [B, W]

    # where each one begins
    lines = torch.arange(count * height, device=images.device).reshape(count, height, 1) * width
    pixels = images.permute(0, 2, 3, 1).float().reshape(-1, 3)
    rows = pixels.index_select(0, (lines + left[:, None]).flatten()).reshape(count, height, -1, 3)
    rows.lerp_(pixels.index_select(0, (lines + right[:, None]).flatten()).view_as(rows), across[:, None, :, None])

    first = torch.arange(count, device=images.device)[:, None] * height  # row of each image
    rows = rows.flatten(0, 1)  # [B * h, W, 3]
    resized = rows.index_select(0, (first + top).flatten()).reshape(count, -1, *rows.shape[1:])  # [B, H, W, 3]
    resized.lerp_(rows.index_select(0, (first + bottom).flatten()).view_as(resized), down[:, :, None, None])
    resized.mul_((inside_y[:, :, None] & inside_x[:, None])[..., None])
    return resized.permute(0, 3, 1, 2)


def _taps(sizes: Tensor, targets: Tensor, flips: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Along one side, for each of `length` places: the two stored pixels [B, length] it lies between, the share of the second,
    and whether it is within the target.

    Sampled at scale * (i + 0.5) - 0.5, at least 0, rounded once to float32, as `interpolate` does with a fused multiply-add.
    """
    place = torch.arange(length, device=sizes.device)
    last = sizes[:, None] - 1
    scale = (sizes.float() / targets.float()).double()[:, None]
    source = (scale * (place + 0.5) - 0.5).float().clamp(min=0)
    first = torch.minimum(source.long(), last)
    second = torch.minimum(first + 1, last)
    share = source - first
    flips = flips[:, None]
    return (
        torch.where(flips, last - first, first),
        torch.where(flips, last - second, second),
        share,
        place < targets[:, None],
    )
