"""When in a backward pass each gradient of a convolutional network is complete."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from retina_dist.benchmark.communication import Gradients
from retina_dist.detection.model.retinanet import RetinaNet


class Timeline(NamedTuple):
    """The gradients of a model as they become ready, and the share of a step that is the backward pass."""

    gradients: list[Gradients]
    backward_share: float

    @property
    def num_bytes(self) -> float:
        return sum(gradient.num_bytes for gradient in self.gradients)


def timeline(model: RetinaNet, height: int, width: int) -> Timeline:
    """The timeline of a detector on the meta device: nothing is computed."""

    def forward() -> None:
        features = model.backbone(torch.empty(1, 3, height, width, device="meta"))
        model.head(list(features.values()))

    return timeline_of(model, forward)


def timeline_of(model: nn.Module, forward: Callable[[], Any]) -> Timeline:
    """Count when each gradient is complete: time is taken to go with the multiplications of the convolutions.

    A weight's gradient is complete when the backward pass has left the layer's first use, so those of the heads, which all five
    levels share, come late. A convolution costs its forward pass again for the gradient of its weights, and again for that of its
    input, unless nothing before it trains. `forward` runs `model` once.
    """
    calls: list[tuple[nn.Module, int]] = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(
                lambda module, inputs, output: calls.append((module, _products(module, output)))
            )
    forward()
    trained = [any(p.requires_grad for p in module.parameters(recurse=False)) for module, _ in calls]
    first = trained.index(True)
    done, ready = 0, {}
    for i in range(len(calls) - 1, -1, -1):
        module, products = calls[i]
        done += products * (trained[i] + (i > first))
        ready[module] = done
    gradients = [
        Gradients(parameter.numel() * parameter.element_size(), at / done)
        for module, at in ready.items()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    ]
    return Timeline(sorted(gradients, key=lambda g: g.ready), done / (done + sum(products for _, products in calls)))


def _products(module: nn.Module, output: Tensor) -> int:
    if not isinstance(module, nn.Conv2d):
        return 0
    return output.numel() * math.prod(module.kernel_size) * module.in_channels // module.groups
