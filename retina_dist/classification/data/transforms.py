"""From a stored image to a square of pixels, and two images into one; what is random depends on a key and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.seeding import torch_seed

AUGMENTS = {"randaugment": v2.RandAugment, "trivialaugment": v2.TrivialAugmentWide}  # with torchvision's own settings


class TrainTransform:
    """Random crop, flips, automatic augmentation and random erasing, each if it is on."""

    def __init__(
        self,
        *,
        crop_scale: Sequence[float] = (0.08, 1.0),
        hflip: float = 0.5,
        vflip: float = 0.0,
        augment: str | None = None,
        erasing: float = 0.0,
    ) -> None:
        self.crop_scale = tuple(crop_scale)
        steps: list[torch.nn.Module] = [v2.RandomHorizontalFlip(hflip)] if hflip else []
        steps += [v2.RandomVerticalFlip(vflip)] if vflip else []
        steps += [AUGMENTS[augment]()] if augment else []
        # ImageNet's mean, which erasing after the normalization gives
        steps += [v2.RandomErasing(erasing, value=(124, 116, 104))] if erasing else []
        self.rest = v2.Compose(steps) if steps else None

    def __call__(self, image: Tensor, size: int, key: tuple[int | str, ...]) -> Tensor:
        """[3, h, w] uint8 -> [3, size, size] uint8."""
        with torch_seed(*key):
            top, left, height, width = v2.RandomResizedCrop(size, scale=self.crop_scale).make_params([image]).values()
            cropped = image[:, top : top + height, left : left + width]
            crop = resized(cropped, size, size)
            if self.rest is not None:
                crop = self.rest(crop)
            return crop


def eval_transform(image: Tensor, size: int, short_side: int) -> Tensor:
    """[3, h, w] uint8 -> its centre [3, size, size], after a resize that makes the shorter side `short_side`."""
    most = 4 * min(image.shape[1:])  # no crop reaches beyond it, and a strip one pixel wide would grow without bound
    image = F.center_crop(image, [min(side, most) for side in image.shape[1:]])
    height, width = image.shape[1:]
    scale = short_side / min(height, width)
    whole = resized(image, max(short_side, round(height * scale)), max(short_side, round(width * scale)))
    return F.center_crop(whole, [size, size])


def resized(image: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, smoothed where the image shrinks."""
    # channels last, as decoders write them: three times as fast as planes
    image = image[None].contiguous(memory_format=torch.channels_last)[0]
    return F.resize_image(image, [height, width], antialias=True)


def drawn_share(alpha: float) -> float:
    """A draw from Beta(alpha, alpha): the share that an image keeps when another is mixed in."""
    concentration = torch.tensor(float(alpha), dtype=torch.float64)
    return float(torch.distributions.Beta(concentration, concentration).sample())


def mixup(image: Tensor, other: Tensor, share: float) -> Tensor:
    """share * image + (1 - share) * other, rounded to uint8 (Zhang et al. 2018, https://arxiv.org/abs/1710.09412)."""
    return (image.float() * share + other.float() * (1 - share)).round_().to(torch.uint8)


def cutmix(image: Tensor, other: Tensor, share: float) -> tuple[Tensor, float]:
    """`image` with a box of `other` in its place, and the share that it keeps (Yun et al. 2019, https://arxiv.org/abs/1905.04899).

    The box has the area 1 - share and a centre anywhere; what lies outside the image is cut off.
    """
    height, width = image.shape[1:]
    ratio = 0.5 * (1 - share) ** 0.5
    y, x = (int(torch.randint(side, (1,))) for side in (height, width))
    top, bottom = max(0, y - int(ratio * height)), min(height, y + int(ratio * height))
    left, right = max(0, x - int(ratio * width)), min(width, x + int(ratio * width))
    mixed = image.clone()
    mixed[:, top:bottom, left:right] = other[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
