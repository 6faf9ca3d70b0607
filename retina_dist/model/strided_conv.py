"""Strided convolutions that are right in bfloat16 on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StridedConv2d(nn.Conv2d):
    """torch's, with a second output column computed and dropped where bfloat16 on a CPU would give only one.

    There oneDNN reads unwritten memory (torch 2.15, with AMX and without): the output or the weight's gradient is then garbage,
    NaN at times. The dropped column has no gradient, so nothing else changes.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rounds = torch.is_autocast_enabled("cpu") and input.device.type == "cpu"
        if not (rounds and self.stride[1] > 1 and self._columns(input.shape[-1]) == 1):
            return super()._conv_forward(input, weight, bias)
        wider = F.pad(input, (0, self.stride[1]))
        return super()._conv_forward(wider, weight, bias)[..., :1]

    def _columns(self, width: int) -> int:
        """Of the output, as torch.nn.Conv2d documents them."""
        kernel = self.dilation[1] * (self.kernel_size[1] - 1) + 1
        return (width + 2 * int(self.padding[1]) - kernel) // self.stride[1] + 1


def replace_strided_convs(model: nn.Module) -> None:
    """Let every strided convolution of `model` be a StridedConv2d, in place."""
    for module in model.modules():
        if type(module) is nn.Conv2d and module.stride[1] > 1 and _pads_zeros(module):
            module.__class__ = StridedConv2d


def _pads_zeros(conv: nn.Conv2d) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
