"""From a stored image to a square of pixels, and two images into one; randomness depends on a key only."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.classification.settings import ClassificationData
from retina_dist.seeding import torch_seed

AUGMENTS = {"randaugment": v2.RandAugment, "trivialaugment": v2.TrivialAugmentWide}  # with torchvision's own settings
MIXTURES = {"mixup": v2.MixUp, "cutmix": v2.CutMix}


class TrainTransform:
    """Random crop, flips, automatic augmentation and random erasing, each if the settings ask for it."""

    def __init__(self, settings: ClassificationData) -> None:
        self.crop_scale = tuple(settings.crop_scale)
        steps: list[torch.nn.Module] = [v2.RandomHorizontalFlip(settings.hflip)]
        steps += [v2.RandomVerticalFlip(settings.vflip)] if settings.vflip else []
        steps += [AUGMENTS[settings.augment]()] if settings.augment else []
        # ImageNet's mean: the values of torchvision's recipes, which erase after the normalization
        steps += [v2.RandomErasing(settings.erasing, value=(124, 116, 104))] if settings.erasing else []
        self.rest = v2.Compose(steps)

    def __call__(self, image: Tensor, size: int, key: tuple[int | str, ...]) -> Tensor:
        """[3, h, w] uint8 -> [3, size, size] uint8."""
        with torch_seed(*key):
            top, left, height, width = v2.RandomResizedCrop(size, scale=self.crop_scale).make_params([image]).values()
            return self.rest(resized(image[:, top : top + height, left : left + width], size, size))


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


def mix(kind: str, alpha: float, image: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """Two images [3, S, S] uint8 in one by torchvision's "mixup" or "cutmix", and the share of the first."""
    pair, shares = MIXTURES[kind](alpha=alpha)(torch.stack([image, other]).float(), torch.eye(2))
    return pair[0].round_().to(torch.uint8), float(shares[0, 0])
