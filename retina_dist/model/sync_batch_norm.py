"""Batch norm over the batch of all processes, by any backend, on any device. Layer 1.

torch's and Horovod's own synchronised norms need GPUs and belong to one backend each; this one needs a sum over ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

Sum = Callable[[Tensor], Tensor]


class SyncBatchNorm2d(nn.BatchNorm2d):
    """As `nn.BatchNorm2d`, with mean and variance of all ranks' batches once `connect` has been called.

    Same state_dict. In training, every rank must call it in the same order; each pass, forward and backward, adds up once over
    ranks. All sums, and the squares in them, are made in float64: they lose nothing of a variance beside a large mean, and in
    float32 their rounded results hardly ever depend on how images are shared out. nn.BatchNorm2d's own sums do, and can move a
    gradient by a thousandth, because ReLUs behind the norm flip.
    """

    sum_over_ranks: Sum | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.sum_over_ranks is None:
            return super().forward(x)
        y, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps, self.sum_over_ranks)
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.momentum is not None
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
        return y

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm2d:
        """A copy that stands alone: a job has one set of connections."""
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        state = {k: v for k, v in self.__dict__.items() if k != "sum_over_ranks"}
        twin.__dict__.update(copy.deepcopy(state, memo))
        return twin


def connect(model: nn.Module, sum_over_ranks: Sum) -> None:
    """Let every SyncBatchNorm2d of `model` add up by `sum_over_ranks` (a tensor [*] -> its sum over ranks, new)."""
    for module in model.modules():
        if isinstance(module, SyncBatchNorm2d):
            module.sum_over_ranks = sum_over_ranks


class _Normalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, over N = all ranks' values of a channel.

    dx = weight / sqrt(variance + eps) * (dy - sum(dy) / N - xhat * sum(dy * xhat) / N), with sums over ranks (Ioffe and Szegedy
    2015, https://arxiv.org/abs/1502.03167). The gradients of weight and bias are this rank's, as those of every parameter.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, sum_over_ranks: Sum
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # [B, C, H, W]
        channels = x.shape[1]
        own_count = torch.tensor([x.numel() // channels], dtype=torch.float64, device=x.device)
        sums = sum_over_ranks(torch.cat((_channel_sums(x), _channel_sums(x.double().square()), own_count)))
        count = sums[-1]
        exact_mean = sums[:channels] / count
        variance = (sums[channels:-1] / count - exact_mean.square()).clamp(min=0)
        mean = exact_mean.to(wide.dtype)
        inverse = torch.rsqrt(variance + eps).to(wide.dtype)
        y = (wide - _per_channel(mean)) * _per_channel(inverse * weight) + _per_channel(bias)
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.sum_over_ranks = sum_over_ranks  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, inverse, count = ctx.saved_tensors
        wide = dy.to(mean.dtype)
        normed = (x.to(mean.dtype) - _per_channel(mean)) * _per_channel(inverse)
        d_bias, d_weight = _channel_sums(wide), _channel_sums(wide * normed)
        means = (ctx.sum_over_ranks(torch.stack((d_bias, d_weight))) / count).to(wide.dtype)
        dx = _per_channel(inverse * weight) * (wide - _per_channel(means[0]) - normed * _per_channel(means[1]))
        return dx.to(x.dtype), d_weight.to(weight.dtype), d_bias.to(weight.dtype), None, None


def _channel_sums(x: Tensor) -> Tensor:
    """[B, C, H, W] -> [C] float64"""
    return x.sum((0, 2, 3), dtype=torch.float64)


def _per_channel(x: Tensor) -> Tensor:
    return x[None, :, None, None]
