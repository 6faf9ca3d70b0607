"""The networks that can be trained or be a backbone: torchvision's classifiers, and two smaller.

Annotations stay objects here: torchvision reads them to find a network's class and weights.
"""

from collections.abc import Callable

from torch import nn
from torchvision import models
from torchvision.models import WeightsEnum
from torchvision.models.resnet import BasicBlock, Bottleneck


class ResNet10_Weights(WeightsEnum):  # noqa: N801 - torchvision's way to name them
    """None are published."""


class HalfResNet(models.ResNet):
    """torchvision's ResNet with half of the channels in every convolution."""

    inplanes: int
    fc: nn.Linear

    def __init__(
        self, block: type[BasicBlock], layers: list[int], classes: int, zero: bool
    ) -> None:
        super().__init__(block, layers, classes, zero)
        self.fc = nn.Linear(self.fc.in_features // 2, classes)

    def _make_layer(
        self,
        block: type[BasicBlock | Bottleneck],
        planes: int,
        blocks: int,
        stride: int = 1,
        dilate: bool = False,
    ) -> nn.Sequential:
        if planes == self.inplanes:  # the first stage is about to be made: halve what is before it
            self.inplanes = planes // 2
            self.conv1 = nn.Conv2d(3, self.inplanes, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(self.inplanes)
        return super()._make_layer(block, planes // 2, blocks, stride, dilate)


def resnet10(
    *,
    weights: ResNet10_Weights | None = None,
    num_classes: int = 1000,
    zero_init_residual: bool = False,
) -> models.ResNet:
    """ResNet-18 with one block a stage in place of two: half of the computation."""
    return models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes, zero_init_residual)


def resnet10_half(
    *,
    weights: ResNet10_Weights | None = None,
    num_classes: int = 1000,
    zero_init_residual: bool = False,
) -> models.ResNet:
    """`resnet10` with half of the channels: about a quarter of its multiplications."""
    return HalfResNet(BasicBlock, [1, 1, 1, 1], num_classes, zero_init_residual)


OWN = {"resnet10": resnet10, "resnet10_half": resnet10_half}


def network_names() -> list[str]:
    """All of them, in torchvision's spelling."""
    return sorted([*models.list_models(models), *OWN])


def network_builder(name: str) -> Callable[..., nn.Module]:
    """torchvision's function for `name`, or ours."""
    return OWN.get(name) or models.get_model_builder(name)
