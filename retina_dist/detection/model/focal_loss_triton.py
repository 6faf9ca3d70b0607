"""The focal loss as one Triton kernel: logits are read once, gradients written once. Imported on CUDA only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from retina_dist.detection.model.focal_loss import gradient_dtype

BLOCK = 2048


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    logits, classes, rows, gradient, parts, count, K: tl.constexpr, alpha, gamma, SQUARE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    where = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = where < count
    row = where // K
    x = tl.load(logits + where, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(rows + row, mask=inside, other=0.0)
    is_true = tl.load(classes + row, mask=inside, other=-1) == where - row * K

    # The true class is an absent one seen from the other side: see focal.loss_and_gradient.
    x = tl.where(is_true, -x, x)
    small = tl.exp(-tl.abs(x))
    p = tl.where(x >= 0, 1.0, small) / (1.0 + small)
    q = tl.where(x >= 0, small, 1.0) / (1.0 + small)  # 1 - p with all its digits
    # log(1 + small) with the digits that 1 + small has lost (Kahan's log1p)
    grown = 1.0 + small
    log1p = tl.where(grown == 1.0, small, tl.log(grown) * small / tl.where(grown == 1.0, 1.0, grown - 1.0))
    s = tl.maximum(x, 0.0) + log1p
    # p^g, from log p = min(x, 0) - log(1 + exp(-|x|)) where it is no square
    power = p * p if SQUARE else tl.exp(gamma * (tl.minimum(x, 0.0) - log1p))
    weight *= tl.where(is_true, alpha, 1.0 - alpha)
    slope = weight * power * (gamma * q * s + p)
    tl.store(gradient + where, tl.where(is_true, -slope, slope).to(gradient.dtype.element_ty), mask=inside)
    tl.store(parts + tl.program_id(0), tl.sum(tl.where(inside, weight * power * s, 0.0), axis=0))


def loss_and_gradient(
    logits: Tensor, classes: Tensor, rows: Tensor, alpha: float, gamma: float
) -> tuple[Tensor, Tensor]:
    """What `focal.loss_and_gradient` gives, for contiguous logits; the sum is over blocks in a fixed order."""
    gradient = torch.empty_like(logits, dtype=gradient_dtype(logits.dtype))
    blocks = triton.cdiv(logits.numel(), BLOCK)
    parts = torch.empty(blocks, device=logits.device, dtype=torch.float32)
    _kernel[(blocks,)](
        logits, classes.contiguous(), rows.contiguous(), gradient, parts, logits.numel(), logits.shape[-1],
        alpha, gamma, gamma == 2, BLOCK,
    )  # fmt: skip
    return parts.sum(), gradient
