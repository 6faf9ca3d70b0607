"""Batch norm over real images only, of this process or of all ranks, by a sum over ranks of any
backend.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from retina_dist.base.errors import ConfigError

Sum = Callable[[Tensor], Tensor]


class BatchNorm2d(nn.BatchNorm2d):
    """As `nn.BatchNorm2d`, also its state_dict.

    Within `count_only`, padding samples have no statistic and no gradient, and become zeros.

    Fewer than two real values a channel change no running statistic; without padding samples or
    other ranks they raise ConfigError.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float
    sum_over_ranks: Sum | None = None
    single_image = False  # whether a micro-batch has one image over all ranks, see `connect`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # [B] bool, see `count_only`; defined here, because a new attribute would trigger a
        # recompilation
        self._real: Tensor | None = None
        self._recomputes = False

    def forward(self, x: Tensor) -> Tensor:
        stands_alone = self.sum_over_ranks is None and self._real is None
        if self.training and x.numel() == x.shape[1] and (stands_alone or self.single_image):
            norm = "bn" if self.sum_over_ranks is None else "sync_bn"
            raise ConfigError(
                f"model.norm={norm}: one value of a channel has no variance; raise data.batch_size."
            )
        if not self.training or stands_alone:
            if self._recomputes:  # with as many tensors for the backward pass as in the first pass
                return F.batch_norm(
                    x,
                    self.running_mean.clone(),
                    self.running_var.clone(),
                    self.weight,
                    self.bias,
                    training=True,
                    momentum=self.momentum,
                    eps=self.eps,
                )
            return super().forward(x)
        sum_over_ranks = self.sum_over_ranks or torch.clone
        y, mean, variance, count = _Normalise.apply(
            x, self._real, self.weight, self.bias, self.eps, sum_over_ranks
        )
        if self._recomputes:
            return y
        with torch.no_grad():
            has_variance = (count > 1).to(self.running_mean.dtype)
            momentum = has_variance * self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
            self.num_batches_tracked.add_(1)
        return y


class SyncBatchNorm2d(BatchNorm2d):
    """Uses mean and variance of all ranks' batches once `connect` has been called.

    In training, every rank must call it in the same order; each pass, forward or backward, makes
    one sum over ranks. Squares are about each image's mean and sums are float64, so neither a large
    mean nor the images' distribution costs precision.
    """

    def __getstate__(self) -> dict[str, object]:
        """Of a copy, without the connection: a job has only one connected model."""
        return vars(self) | {"sum_over_ranks": None, "single_image": False}


def connect(model: nn.Module, sum_over_ranks: Sum, *, single_image: bool = False) -> None:
    """Make every SyncBatchNorm2d of `model` normalise with the values of all ranks.

    Args:
        model: the module whose norms are connected, in place.
        sum_over_ranks: a tensor [*] -> its sum over ranks, a new tensor.
        single_image: whether each micro-batch has one image over all ranks. A feature map of one
            pixel then has no variance in any step, and training raises ConfigError.
    """
    for module in model.modules():
        if isinstance(module, SyncBatchNorm2d):
            module.sum_over_ranks = sum_over_ranks
            module.single_image = single_image


@contextmanager
def count_only(model: nn.Module, real: Tensor | None, recomputes: bool = False) -> Iterator[None]:
    """Within it, each BatchNorm2d of `model` leaves out the images for which `real` [B] bool is
    False; None: none.

    With `recomputes`, running statistics stay as they are.
    """
    norms = []
    if real is not None or recomputes:
        norms = [module for module in model.modules() if isinstance(module, BatchNorm2d)]
    for norm in norms:
        norm._real = real
        norm._recomputes = recomputes
    try:
        yield
    finally:
        for norm in norms:
            norm._real = None
            norm._recomputes = False


def recomputation(
    model: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """`context_fn` of torch.utils.checkpoint: computed again, norms leave out the same padding
    samples and change no statistic.
    """
    real = None
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            real = module._real
            break  # all have the same
    return nullcontext(), count_only(model, real, recomputes=True)


class _Normalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, over N = all ranks' values of a
    channel in real images.

    dx = weight / sqrt(variance + eps) * (dy - sum(dy) / N - xhat * sum(dy * xhat) / N), with sums
    over ranks (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167). The gradients of weight
    and bias are this rank's; y and dx are 0 for padding samples.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        real: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        sum_over_ranks: Sum,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # [B, C, H, W]
        images, channels, height, width = x.shape
        pixels = height * width
        own_means = wide.sum((2, 3)) / pixels  # [B, C]
        squares = (wide - own_means[:, :, None, None]).square_().sum((2, 3)).double()
        squares += own_means.double().square() * pixels
        if real is None:
            own_count = torch.full((1,), images * pixels, dtype=torch.float64, device=x.device)
        else:
            own_count = real.sum(0, keepdim=True).double() * pixels
        own_sums = (_real_sum(own_means, real) * pixels, _real_sum(squares, real), own_count)
        sums = sum_over_ranks(torch.cat(own_sums))
        count = sums[-1]
        divisor = count.clamp(min=1)  # there may be no real image
        exact_mean = sums[:channels] / divisor
        # float64 has 29 bits more than float32, so this loses no digit up to a mean of 10^4
        # standard deviations
        variance = (sums[channels:-1] / divisor - exact_mean.square()).clamp(min=0)
        mean = exact_mean.to(wide.dtype)
        inverse = torch.rsqrt(variance + eps).to(wide.dtype)
        y = (
            (wide - _per_channel(mean))
            .mul_(_per_channel(inverse * weight))
            .add_(_per_channel(bias))
        )
        ctx.save_for_backward(x, real, weight, mean, inverse, divisor)
        ctx.sum_over_ranks = sum_over_ranks
        ctx.mark_non_differentiable(mean, variance, count)
        return _without_padding(y, real).to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor, *_: object
    ) -> tuple[Tensor, None, Tensor, Tensor, None, None]:
        x, real, weight, mean, inverse, divisor = ctx.saved_tensors
        wide = dy.to(mean.dtype)
        normed = (x.to(mean.dtype) - _per_channel(mean)) * _per_channel(inverse)
        d_bias = _real_sum(wide.sum((2, 3)), real)
        d_weight = _real_sum((wide * normed).sum((2, 3)), real)
        means = (ctx.sum_over_ranks(torch.stack((d_bias, d_weight))) / divisor).to(wide.dtype)
        dx = (wide - _per_channel(means[0])).sub_(normed.mul_(_per_channel(means[1])))
        dx = _without_padding(dx.mul_(_per_channel(inverse * weight)), real).to(x.dtype)
        return dx, None, d_weight.to(weight.dtype), d_bias.to(weight.dtype), None, None


def _real_sum(x: Tensor, real: Tensor | None) -> Tensor:
    """[B, C] -> [C] float64, the sum over real images."""
    if real is not None:
        x = x.masked_fill(~real[:, None], 0.0)
    return x.sum(0, dtype=torch.float64)


def _without_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """Set padding samples of x [B, C, H, W] to zero, in place, so that infinities in them do not
    spread.
    """
    if real is None:
        return x
    return x.masked_fill_(~real[:, None, None, None], 0.0)


def _per_channel(x: Tensor) -> Tensor:
    return x[None, :, None, None]
