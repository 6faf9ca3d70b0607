"""Folds frozen batch norms into convolutions: the scale goes into the weights, the shift into the bias.

conv(x, w) * s + t = conv(x, w * s) + t, for each output channel. This saves two passes over every activation, most of
the time that a frozen ResNet spends outside its convolutions. Names and values of parameters and buffers do not change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from retina_dist.model.strided_conv import StridedConv2d


class FoldedBatchNorm2d(FrozenBatchNorm2d):
    """Holds the statistics, which the `FoldedConv2d` before it applies; its own forward is the identity."""

    _cached: tuple[tuple[Any, ...], tuple[Tensor, Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return x

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """[C] each; computed again only after a statistic was written or moved, or the epsilon changed."""
        if torch.compiler.is_compiling():
            return self._scale_and_shift()
        held = (self.weight, self.bias, self.running_mean, self.running_var)
        key = (self.eps, *((x.data_ptr(), 0 if x.is_inference() else x._version) for x in held))
        if self._cached is None or self._cached[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                self._cached = key, self._scale_and_shift()
        return self._cached[1]

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale


class FoldedConv2d(StridedConv2d):
    """A convolution without bias and the frozen norm after it, as one convolution."""

    _norm: tuple[FoldedBatchNorm2d]  # in a tuple, so it is not registered as a child

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self._norm[0].scale_and_shift()
        return self._conv_forward(x, self.weight * scale[:, None, None, None], shift)


def fold_frozen_norms(body: nn.Module) -> None:
    """Fold every `FrozenBatchNorm2d` of a ResNet into the convolution before it, in place.

    The convolution before it is the preceding child of the same module, as in torchvision's ResNets and their shortcuts.
    """
    for module in list(body.modules()):
        children = list(module.children())
        for conv, norm in zip(children, children[1:], strict=False):
            if isinstance(conv, nn.Conv2d) and type(norm) is FrozenBatchNorm2d:
                assert conv.bias is None
                norm.__class__ = FoldedBatchNorm2d
                conv.__class__ = FoldedConv2d
                conv.__dict__["_norm"] = (norm,)
