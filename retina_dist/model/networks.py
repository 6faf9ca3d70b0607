"""The networks that can be trained or be a backbone: torchvision's classifiers, and one smaller.

Annotations stay objects here: torchvision reads them to find a network's class and weights.
"""

from collections.abc import Callable

from torch import nn
from torchvision import models
from torchvision.models import WeightsEnum
from torchvision.models.resnet import BasicBlock


class ResNet10_Weights(WeightsEnum):  # noqa: N801 - torchvision's way to name them
    """None are published."""


def resnet10(
    *,
    weights: ResNet10_Weights | None = None,
    num_classes: int = 1000,
    zero_init_residual: bool = False,
) -> models.ResNet:
    """ResNet-18 with one block a stage in place of two: half of the computation."""
    return models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes, zero_init_residual)


OWN = {"resnet10": resnet10}


def network_names() -> list[str]:
    """All of them, in torchvision's spelling."""
    return sorted([*models.list_models(models), *OWN])


def network_builder(name: str) -> Callable[..., nn.Module]:
    """torchvision's function for `name`, or ours."""
    return OWN.get(name) or models.get_model_builder(name)
