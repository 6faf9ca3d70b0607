"""Focal loss with its gradient made in the forward pass, in a few passes over the logits instead of torchvision's hundred.

Classes are indices, so no one-hot tensor exists. Inside torch.compile it is the textbook formula, which the compiler fuses
itself. Lin et al. 2017, equation 5, https://arxiv.org/abs/1708.02002.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retina_dist.detection.model.targets import IGNORED

LINEAR_FROM = 80.0  # softplus(x) is x to the last bit long before; exp() does not overflow before


def focal_loss(
    logits: Tensor, classes: Tensor, weight: Tensor | None = None, alpha: float = 0.25, gamma: float = 2.0
) -> Tensor:
    """Sigmoid focal loss of logits [B, A, K], summed over anchors and classes, then over images with `weight` [B] -> scalar.

    `classes` [B, A] are the true classes, BACKGROUND for none of them, IGNORED for anchors that do not count. The arithmetic is
    at least float32, the result of that type.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if weight is None:
        weight = torch.ones(logits.shape[0], device=logits.device, dtype=dtype)
    rows = torch.where(classes != IGNORED, weight.to(dtype)[:, None], 0.0)  # [B, A]
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and logits.requires_grad):
        return (focal_loss_by_element(logits.to(dtype), classes, alpha, gamma).sum(dim=-1) * rows).sum(dim=1).sum()
    loss: Tensor = _Focal.apply(logits, classes, rows, alpha, gamma)
    return loss


def focal_loss_by_element(logits: Tensor, classes: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """The textbook formula: logits [B, A, K] against class indices [B, A] -> [B, A, K]."""
    targets = (classes[..., None] == torch.arange(logits.shape[-1], device=logits.device)).to(logits.dtype)
    probabilities = torch.sigmoid(logits)
    cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    missing = probabilities + targets - 2 * probabilities * targets  # 1 - p_t
    weight = (1 - alpha) + (2 * alpha - 1) * targets  # alpha_t
    return weight * cross_entropy * missing**gamma


class _Focal(torch.autograd.Function):
    """Loss and gradient together; `rows` [B, A] is each anchor's weight.

    With p = sigmoid(x) and s = softplus(x), an absent class costs (1-a) p^g s, with the derivative (1-a) p^g (g (1-p) s + p);
    the true class costs a (1-p)^g (s - x), with the derivative -a (1-p)^g (g p (s - x) + 1 - p).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor, rows: Tensor, alpha: float, gamma: float) -> Tensor:
        x = logits.to(rows.dtype)
        true = classes.clamp(min=0)[..., None]  # [B, A, 1]
        is_true = (classes >= 0)[..., None]
        loss, gradient = _absent(x, gamma)
        loss *= 1 - alpha
        gradient *= 1 - alpha
        present, slope = _absent(-x.gather(2, true), gamma)  # the true class is the absent one seen from the other side
        loss.scatter_(2, true, torch.where(is_true, alpha * present, loss.gather(2, true)))
        gradient.scatter_(2, true, torch.where(is_true, -alpha * slope, gradient.gather(2, true)))
        gradient *= rows[..., None]
        # float16 holds the gradient only after the loss scale has come in
        ctx.save_for_backward(gradient.to(torch.float32 if logits.dtype == torch.float16 else logits.dtype))
        ctx.dtype = logits.dtype
        return (loss.sum(dim=2) * rows).sum(dim=1).sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        # The loss weight must keep its digits: 1/3 in bfloat16 would shift this loss against the others. A factor of one dimension
        # makes the product float32 (one of none takes the gradient's type), rounded once, into the result.
        scaled = torch.empty_like(gradient, dtype=ctx.dtype)
        torch.mul(gradient, above.reshape(1, 1, 1), out=scaled)
        return scaled, None, None, None, None


def _absent(x: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """p^g s and its derivative p^g (g (1-p) s + p)."""
    p = torch.sigmoid(x)
    s = F.softplus(x, threshold=LINEAR_FROM)
    power = p * p if gamma == 2 else p**gamma
    gradient = (1 - p).mul_(s).mul_(gamma).add_(p).mul_(power)
    return s.mul_(power), gradient
