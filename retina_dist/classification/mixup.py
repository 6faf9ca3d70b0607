"""Mixup and cutmix of two images."""

import torch
from torch import Tensor
from torchvision.transforms import v2

MIXTURES = {"mixup": v2.MixUp, "cutmix": v2.CutMix}


def mix(kind: str, alpha: float, image: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """Two images [3, S, S] uint8 in one, and the share of the first.

    `kind` is "mixup" or "cutmix", which are torchvision's.
    """
    pair, shares = MIXTURES[kind](alpha=alpha)(torch.stack([image, other]).float(), torch.eye(2))
    return pair[0].round_().to(torch.uint8), float(shares[0, 0])
