"""An augmentation from outside the package: a pipeline of torchvision's and a step of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from retina_dist.base.settings import setting
from retina_dist.config.run_config import AugmentationSettings


@dataclass
class NoiseSettings(AugmentationSettings):
    degrees: float = setting(10.0, "of rotation to either side", at_least=0, at_most=180)
    std: float = setting(8.0, "of the noise, in grey levels", at_least=0)


class AddNoise(v2.Transform):
    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not isinstance(inpt, Tensor) or inpt.dtype != torch.uint8:
            return inpt  # boxes and labels
        noisy = inpt + self.std * torch.randn(inpt.shape)
        return noisy.clamp(0, 255).round().to(torch.uint8)


class Noise(v2.Compose):
    settings = NoiseSettings

    def __init__(self, settings: NoiseSettings) -> None:
        super().__init__([v2.RandomRotation(settings.degrees, expand=True), AddNoise(settings.std)])
