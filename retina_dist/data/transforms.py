"""From a stored image and its boxes to what lies on the canvas.

Layer 1. Everything happens on uint8 tensors by torchvision's v2 kernels; normalising is the model's work.
Whatever is random is drawn from torch's CPU generator seeded by a key, so the result depends on the key and
on nothing else. An operation that is switched off costs nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.errors import ConfigError
from retina_dist.seeding import torch_seed

MIN_BOX_SIDE = 1.0  # pixels on the canvas; a box with a shorter side has no picture left to learn from


def resize_scale(height: int, width: int, min_size: int, max_size: int) -> float:
    """The factor that makes the short side `min_size`, or less where the long side would pass `max_size`."""
    return min(min_size / min(height, width), max_size / max(height, width))


def resized_size(height: int, width: int, min_size: int, max_size: int) -> tuple[int, int]:
    """(height, width) after the resize of torchvision's `GeneralizedRCNNTransform`: rounded down, at least 1.

    >>> resized_size(480, 640, 800, 1333)
    (800, 1066)
    """
    return _scaled(height, width, resize_scale(height, width, min_size, max_size))


class EvalTransform:
    """Resizes, and leaves out boxes with a side under a pixel.

    Takes and returns (image [3, h, w] uint8, boxes [n, 4] float32 xyxy, labels [n]); boxes are in pixels of
    the image they come with. The image returned is never larger than `canvas`, a (height, width) in pixels.
    """

    def __init__(self, *, max_size: int) -> None:
        self.max_size = max_size

    def __call__(
        self,
        image: Tensor,
        boxes: Tensor,
        labels: Tensor,
        *,
        min_size: int,
        canvas: tuple[int, int],
        key: tuple[int | str, ...] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        scale = _fitting_scale(image, min_size, self.max_size, canvas)
        return _without_small_boxes(*_resize(image, boxes, scale, canvas), labels)


class TrainTransform:
    """Augments, resizes, and leaves out boxes that augmentation has cut away or made smaller than a pixel.

    The order is: random crop by overlap (SSD, Liu et al. 2016, section 2.2,
    https://arxiv.org/abs/1512.02325), horizontal and vertical flip, photometric distortion (the same paper), resize.
    `hflip`, `vflip`, `photometric` and `iou_crop` are probabilities. `scale_jitter` is a range of factors: the resize
    is multiplied by one of them, drawn uniformly, and what then exceeds the canvas is cut off at a random
    place (Ghiasi et al. 2021, https://arxiv.org/abs/2012.07177).

    Takes and returns what `EvalTransform` does; the same `key` gives the same result in every process.
    """

    def __init__(
        self,
        *,
        max_size: int,
        hflip: float = 0.5,
        vflip: float = 0.0,
        photometric: float = 0.0,
        iou_crop: float = 0.0,
        scale_jitter: tuple[float, float] | None = None,
    ) -> None:
        for name, value in {"hflip": hflip, "vflip": vflip, "photometric": photometric, "iou_crop": iou_crop}.items():
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value} is not a probability; use a number from 0 to 1.")
        if scale_jitter is not None and not 0.0 < scale_jitter[0] <= scale_jitter[1]:
            raise ConfigError(f"scale_jitter={scale_jitter} is not a range of factors; use for example (0.5, 1.5).")
        self.max_size = max_size
        self.scale_jitter = scale_jitter
        self._augment = _chain(
            (iou_crop, _IoUCrop()),
            (hflip, v2.RandomHorizontalFlip(p=1.0)),
            (vflip, v2.RandomVerticalFlip(p=1.0)),
            (photometric, v2.RandomPhotometricDistort()),
        )

    def __call__(
        self,
        image: Tensor,
        boxes: Tensor,
        labels: Tensor,
        *,
        min_size: int,
        canvas: tuple[int, int],
        key: tuple[int | str, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch_seed(*key):
            if self._augment is not None:
                image, boxes = _apply(self._augment, image, boxes)
            scale = _fitting_scale(image, min_size, self.max_size, canvas)
            if self.scale_jitter is not None:
                low, high = self.scale_jitter
                scale *= low + (high - low) * torch.rand(()).item()
                image, boxes = _random_window(image, boxes, scale, canvas)
        return _without_small_boxes(*_resize(image, boxes, scale, canvas), labels)


class _IoUCrop(v2.RandomIoUCrop):  # type: ignore[misc]
    """torchvision's crop, but an image it can find no crop for stays as it is.

    Without boxes the original searches in vain until it happens to draw "no crop"; under 4 pixels it divides
    by zero.
    """

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        if min(v2.query_size(flat_inputs)) < 4 or not len(v2.get_bounding_boxes(flat_inputs)):
            return {}
        params: dict[str, Any] = super().make_params(flat_inputs)
        return params


def _chain(*steps: tuple[float, v2.Transform]) -> v2.Transform | None:
    """The steps in their order, each applied with its probability; those that never apply are left out."""
    transforms = [v2.RandomApply([transform], p=probability) for probability, transform in steps if probability > 0]
    return v2.Compose(transforms) if transforms else None


def _apply(transform: v2.Transform, image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = image.shape[-2:]
    boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
    image, boxes = transform(tv_tensors.Image(image), boxes)
    return image.as_subclass(Tensor), boxes.as_subclass(Tensor)


def _scaled(height: int, width: int, scale: float) -> tuple[int, int]:
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


def _fitting_scale(image: Tensor, min_size: int, max_size: int, canvas: tuple[int, int]) -> float:
    """The usual scale, or less where the result would not fit, as crops of another shape may not."""
    height, width = image.shape[-2:]
    scale = resize_scale(height, width, min_size, max_size)
    resized = _scaled(height, width, scale)
    if resized[0] > canvas[0] or resized[1] > canvas[1]:
        scale = min(canvas[0] / height, canvas[1] / width)
    return scale


def _random_window(image: Tensor, boxes: Tensor, scale: float, canvas: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The part of the image, at a random place, that fills the canvas after scaling.

    Cut before the resize, which then has less to do.
    """
    size = image.shape[-2:]
    window = [min(side, max(1, math.floor(room / scale))) for side, room in zip(size, canvas, strict=True)]
    top, left = (int(torch.randint(side - part + 1, ())) for side, part in zip(size, window, strict=True))
    height, width = window
    if (height, width) == tuple(size):
        return image, boxes
    boxes = boxes - boxes.new_tensor([left, top, left, top])
    boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))
    return image[:, top : top + height, left : left + width], boxes


def _resize(image: Tensor, boxes: Tensor, scale: float, canvas: tuple[int, int]) -> tuple[Tensor, Tensor]:
    height, width = image.shape[-2:]
    scaled = _scaled(height, width, scale)
    new_height, new_width = min(scaled[0], canvas[0]), min(scaled[1], canvas[1])
    # channels last, as decoders write them: three times as fast as planes
    image = image[None].contiguous(memory_format=torch.channels_last)[0]
    image = F.resize_image(image, [new_height, new_width], antialias=True)
    # by the sizes in whole pixels, not by the scale, as torchvision's `resize_boxes` does
    ratio = boxes.new_tensor([new_width / width, new_height / height])
    return image, boxes * ratio.repeat(2)


def _without_small_boxes(image: Tensor, boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keep = ((boxes[:, 2:] - boxes[:, :2]) >= MIN_BOX_SIDE).all(dim=1)
    return image, boxes[keep], labels[keep]
