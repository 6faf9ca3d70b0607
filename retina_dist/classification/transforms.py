"""Transforms of an image, for training and for evaluation, and two images in one: mixup, cutmix.

S is the side in px.
"""

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.base.seeding import torch_seed
from retina_dist.classification.settings import ClassificationData

# With torchvision's own settings.
AUGMENTS = {"randaugment": v2.RandAugment, "trivialaugment": v2.TrivialAugmentWide}
ERASED = (124, 116, 104)  # ImageNet's mean: torchvision's recipes erase after the normalization
MIXTURES = {"mixup": v2.MixUp, "cutmix": v2.CutMix}


class TrainTransform:
    """Random crop, flips, automatic augmentation and random erasing, as the settings ask."""

    def __init__(self, settings: ClassificationData) -> None:
        self.crop_scale = tuple(settings.crop_scale)
        steps = [v2.RandomHorizontalFlip(settings.hflip)]
        if settings.vflip:
            steps.append(v2.RandomVerticalFlip(settings.vflip))
        if settings.augment:
            steps.append(AUGMENTS[settings.augment]())
        if settings.erasing:
            steps.append(v2.RandomErasing(settings.erasing, value=ERASED))
        self.rest = v2.Compose(steps)

    def __call__(self, image: Tensor, size: int, key: tuple[int | str, ...]) -> Tensor:
        """[3, h, w] uint8 -> [3, size, size] uint8."""
        with torch_seed(*key):
            crop = v2.RandomResizedCrop(size, scale=self.crop_scale)
            top, left, height, width = crop.make_params([image]).values()
            image = image[:, top : top + height, left : left + width]
            return self.rest(resized(image, size, size))


def mix(kind: str, alpha: float, image: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """Two images [3, S, S] uint8 in one, and the share of the first.

    `kind` is "mixup" or "cutmix", which are torchvision's.
    """
    pair, shares = MIXTURES[kind](alpha=alpha)(torch.stack([image, other]).float(), torch.eye(2))
    return pair[0].round_().to(torch.uint8), float(shares[0, 0])


def eval_transform(image: Tensor, size: int, short_side: int) -> Tensor:
    """[3, h, w] uint8 -> its centre [3, size, size].

    Before, a resize makes the shorter side `short_side`.
    """
    # No crop reaches beyond it, and a strip one pixel wide would grow without bound.
    limit = 4 * min(image.shape[1:])
    image = F.center_crop(image, [min(side, limit) for side in image.shape[1:]])
    scale = short_side / min(image.shape[1:])
    height, width = (max(short_side, round(side * scale)) for side in image.shape[1:])
    return F.center_crop(resized(image, height, width), [size, size])


def resized(image: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, smoothed where the image shrinks."""
    # channels last, as decoders write them: three times as fast as planes
    image = image[None].contiguous(memory_format=torch.channels_last)[0]
    return F.resize_image(image, [height, width], antialias=True)
