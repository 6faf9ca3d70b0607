"""From a stored image and its boxes to what lies on the canvas, on uint8 tensors; the model
normalises.

Random numbers come from torch's CPU generator seeded by a key, so the result depends on the key
only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.base.seeding import torch_seed
from retina_dist.data.buckets import resize_scale, scaled_size

Key: TypeAlias = tuple[int | str, ...]  # a seed for the random numbers of one image
Shape: TypeAlias = tuple[int, int]  # (height, width) in pixels
Sample: TypeAlias = tuple[Tensor, Tensor, Tensor]  # image, boxes, labels

# pixels after the resize; a box with a shorter side has no image left to learn from
MIN_BOX_SIDE = 1.0


@dataclass(kw_only=True)
class Transform:
    """Augments, resizes, and leaves out boxes that augmentation has cut away or made smaller than a
    pixel; by default it only resizes, as in an evaluation.

    Takes and returns (image [3, h, w] uint8, boxes [n, 4] float32 xyxy, labels [n]); boxes are in
    pixels of the image they come with. The image returned is never larger than `canvas`, a (height,
    width) in pixels.

    The order is: horizontal and vertical flip, photometric distortion (SSD, Liu et al. 2016,
    section 2.2, https://arxiv.org/abs/1512.02325), resize. `hflip`, `vflip` and `photometric` are
    probabilities. `scale_jitter` is a range of factors: the resize is multiplied by one of them,
    drawn uniformly, and what then exceeds the canvas is cut off at a random place (Ghiasi et al.
    2021, https://arxiv.org/abs/2012.07177). The same `key` gives the same result in every process.
    """

    max_size: int
    hflip: float = 0.0
    vflip: float = 0.0
    photometric: float = 0.0
    scale_jitter: Sequence[float] | None = None

    def __call__(
        self,
        image: Tensor,
        boxes: Tensor,
        labels: Tensor,
        *,
        min_size: int,
        canvas: Shape,
        key: Key = (),
    ) -> Sample:
        with torch_seed(*key):
            hflip = _happens(self.hflip)
            vflip = _happens(self.vflip)
            if self.photometric:
                image = v2.RandomApply([v2.RandomPhotometricDistort()], p=self.photometric)(image)
            image, boxes = _flipped(image, boxes, hflip, vflip)
            scale = _fitting_scale(image, min_size, self.max_size, canvas)
            if self.scale_jitter is not None:
                low, high = self.scale_jitter
                scale *= low + (high - low) * torch.rand(()).item()
                image, boxes = _random_window(image, boxes, scale, canvas)
        return _resized(image, boxes, labels, scale, canvas)


def _happens(probability: float) -> bool:
    """True with `probability`; draws as many numbers as torchvision's RandomApply of a
    RandomFlip(p=1).
    """
    return probability > 0 and bool(torch.rand(1) < probability) and bool(torch.rand(1) < 1)


def _flipped(image: Tensor, boxes: Tensor, hflip: bool, vflip: bool) -> tuple[Tensor, Tensor]:
    boxes = boxes.clone()
    if vflip:
        image = image.flip(1)
        boxes[:, [1, 3]] = image.shape[1] - boxes[:, [3, 1]]
    if hflip:
        image = image.flip(2)
        boxes[:, [0, 2]] = image.shape[2] - boxes[:, [2, 0]]
    return image, boxes


def _fitting_scale(image: Tensor, min_size: int, max_size: int, canvas: Shape) -> float:
    """The usual scale, or less where the result would not fit on the canvas."""
    height, width = image.shape[-2:]
    scale = resize_scale(height, width, min_size, max_size)
    resized = scaled_size(height, width, scale)
    if resized[0] > canvas[0] or resized[1] > canvas[1]:
        scale = min(canvas[0] / height, canvas[1] / width)
    return scale


def _random_window(
    image: Tensor, boxes: Tensor, scale: float, canvas: Shape
) -> tuple[Tensor, Tensor]:
    """The part of the image, at a random place, that fills the canvas after scaling; cut first,
    which makes the resize cheaper.
    """
    starts = []
    sides = []
    for length, room in zip(image.shape[-2:], canvas, strict=True):
        sides.append(min(length, max(1, math.floor(room / scale))))
        starts.append(int(torch.randint(length - sides[-1] + 1, ())))
    height, width = sides
    top, left = starts
    boxes = (boxes - boxes.new_tensor([left, top, left, top])).clamp(min=0)
    boxes = boxes.minimum(boxes.new_tensor([width, height, width, height]))
    return image[:, top : top + height, left : left + width], boxes


def _resized(image: Tensor, boxes: Tensor, labels: Tensor, scale: float, canvas: Shape) -> Sample:
    """Image and boxes on the canvas, smoothed where the image shrinks."""
    height, width = image.shape[-2:]
    size = list(map(min, scaled_size(height, width, scale), canvas))
    # by the sizes in whole pixels, not by the scale, as torchvision's `resize_boxes` does
    boxes = boxes * boxes.new_tensor([size[1] / width, size[0] / height]).repeat(2)
    keep = ((boxes[:, 2:] - boxes[:, :2]) >= MIN_BOX_SIDE).all(dim=1)
    # channels last, as decoders write them: three times as fast as planes
    image = image[None].contiguous(memory_format=torch.channels_last)[0]
    return F.resize_image(image, size, antialias=True), boxes[keep], labels[keep]
