"""RetinaNet's losses over a whole batch, by masks instead of selections.

Every loss is summed over an image's anchors and divided by that image's number of foreground
anchors (at least 1), then averaged over images, as torchvision does; so the mean over ranks equals
the loss of the undivided batch.

The focal loss makes its gradient in the forward pass, in a few passes over the logits instead of
torchvision's hundred; inside torch.compile it is the textbook formula, which the compiler fuses.
Lin et al. 2017, equation 5, https://arxiv.org/abs/1708.02002.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retina_dist.detection.batch import Batch
from retina_dist.detection.model.box_losses import BOX_LOSSES
from retina_dist.detection.model.targets import BACKGROUND, IGNORED, decode, encode

LINEAR_FROM = 80.0  # softplus(x) is x to the last bit long before; exp() does not overflow before


def retinanet_losses(
    outputs: dict[str, Tensor],
    anchors: Tensor,
    matched: Tensor,
    batch: Batch,
    kind: str,
    beta: float,
    class_weights: Tensor | None = None,
    **focal: float,
) -> dict[str, Tensor]:
    """Mean over real images of classification and box loss, as two scalars under torchvision's
    names.

    Padding samples of the batch count nowhere; without real images both losses are 0. The maths is
    at least float32.

    Args:
        outputs: cls_logits [B, A, K] and bbox_regression [B, A, 4], of any float type.
        anchors: [A, 4] xyxy.
        matched: [B, A], as `targets.match` gives it.
        batch: the boxes and labels, and which images are real.
        kind: a name in `BOX_LOSSES`.
        beta: smooth L1's.
        class_weights: as for `focal_loss`.
        focal: `alpha` and `gamma` of `focal_loss`.
    """
    logits = outputs["cls_logits"]
    real = batch.real
    dtype = torch.promote_types(logits.dtype, torch.float32)
    offsets = outputs["bbox_regression"].to(dtype)
    anchors = anchors.to(dtype)
    boxes = batch.boxes.to(dtype)
    foreground = matched >= 0  # [B, A]
    row = matched.clamp(min=0)
    unmatched = torch.where(matched == IGNORED, IGNORED, BACKGROUND)
    classes = torch.where(foreground, batch.labels.gather(1, row), unmatched)
    images = len(logits) if real is None else real.sum().clamp(min=1)
    weight = 1.0 / (images * foreground.sum(dim=1).clamp(min=1).to(dtype))  # [B]
    if real is not None:
        weight = weight.masked_fill(~real, 0.0)

    # Unmatched anchors stand in for their own box: no log(0), and no NaN in the backward pass of
    # masked values.
    own_boxes = boxes.gather(1, row[..., None].expand(-1, -1, 4))
    target = torch.where(foreground[..., None], own_boxes, anchors)
    offsets = torch.where(foreground[..., None], offsets, 0.0)
    loss = BOX_LOSSES[kind]
    if loss.of == "boxes":
        offsets = decode(offsets, anchors)
    else:
        target = encode(target, anchors)
    by_image = torch.where(foreground, loss.function(offsets, target, beta), 0.0).sum(dim=1)
    return {
        "classification": focal_loss(logits, classes, weight, class_weights=class_weights, **focal),
        "bbox_regression": (by_image * weight).sum(),
    }


def focal_loss(
    logits: Tensor,
    classes: Tensor,
    weight: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Sigmoid focal loss, summed over anchors and classes, then over images with their weights ->
    scalar.

    Args:
        logits: [B, A, K]; the arithmetic is at least float32, the result of that type.
        classes: [B, A], the true classes; BACKGROUND for none of them, IGNORED for anchors that do
            not count.
        weight: [B], of each image.
        alpha: weight of the true class; 1 - alpha is that of the others.
        gamma: how strongly easy anchors count less.
        class_weights: [K] factors of the loss of each class, at anchors with and without it.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if class_weights is not None:
        class_weights = class_weights.to(dtype)
    rows = torch.where(classes != IGNORED, weight.to(dtype)[:, None], 0.0)  # [B, A]
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and logits.requires_grad):
        each = focal_loss_by_element(logits.to(dtype), classes, alpha, gamma)
        if class_weights is not None:
            each = each * class_weights
        return (each.sum(dim=-1) * rows).sum(dim=1).sum()
    return _Focal.apply(logits, classes, rows, alpha, gamma, class_weights)


def focal_loss_by_element(
    logits: Tensor, classes: Tensor, alpha: float = 0.25, gamma: float = 2.0
) -> Tensor:
    """The textbook formula: logits [B, A, K] against class indices [B, A] -> [B, A, K]."""
    targets = (classes[..., None] == torch.arange(logits.shape[-1], device=logits.device)).to(
        logits.dtype
    )
    probabilities = torch.sigmoid(logits)
    cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    missing = probabilities + targets - 2 * probabilities * targets  # 1 - p_t
    weight = (1 - alpha) + (2 * alpha - 1) * targets  # alpha_t
    return weight * cross_entropy * missing**gamma


class _Focal(torch.autograd.Function):
    """Loss and gradient together; `rows` [B, A] is each anchor's weight, `columns` [K] each
    class's.

    With p = sigmoid(x) and s = softplus(x), an absent class costs (1-a) p^g s, with the derivative
    (1-a) p^g (g (1-p) s + p); the true class costs a (1-p)^g (s - x), with the derivative -a
    (1-p)^g (g p (s - x) + 1 - p).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        classes: Tensor,
        rows: Tensor,
        alpha: float,
        gamma: float,
        columns: Tensor | None,
    ) -> Tensor:
        x = logits.to(rows.dtype)
        true = classes.clamp(min=0)[..., None]  # [B, A, 1]
        is_true = (classes >= 0)[..., None]
        loss, gradient = _absent(x, gamma)
        loss *= 1 - alpha
        gradient *= 1 - alpha
        # the true class is the absent one seen from the other side
        present, slope = _absent(-x.gather(2, true), gamma)
        loss.scatter_(2, true, torch.where(is_true, alpha * present, loss.gather(2, true)))
        gradient.scatter_(2, true, torch.where(is_true, -alpha * slope, gradient.gather(2, true)))
        if columns is not None:
            loss *= columns
            gradient *= columns
        gradient *= rows[..., None]
        # float16 holds the gradient only after the loss scale has come in
        ctx.save_for_backward(
            gradient.to(torch.float32 if logits.dtype == torch.float16 else logits.dtype)
        )
        ctx.dtype = logits.dtype
        return (loss.sum(dim=2) * rows).sum(dim=1).sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        # The loss weight must keep its digits: 1/3 in bfloat16 would shift this loss against the
        # others. A factor of one dimension makes the product float32 (one of none takes the
        # gradient's type), rounded once, into the result.
        scaled = torch.empty_like(gradient, dtype=ctx.dtype)
        torch.mul(gradient, above.reshape(1, 1, 1), out=scaled)
        return scaled, None, None, None, None, None


def _absent(x: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """p^g s and its derivative p^g (g (1-p) s + p)."""
    p = torch.sigmoid(x)
    s = F.softplus(x, threshold=LINEAR_FROM)
    power = p * p if gamma == 2 else p**gamma
    gradient = (1 - p).mul_(s).mul_(gamma).add_(p).mul_(power)
    return s.mul_(power), gradient
