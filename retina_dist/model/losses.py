"""RetinaNet's losses over a whole batch, by masks instead of selections.

Layer 1. Pure functions; every loss is summed over an image's anchors and divided by that image's number of foreground
anchors (at least 1), then averaged over images, as torchvision does. That normaliser does not depend on who shares the
batch, so the mean over ranks equals the loss of the undivided batch.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from retina_dist.model.targets import IGNORED, decode, encode

BoxLoss = Literal["l1", "smooth_l1", "giou"]


def focal_loss(logits: Tensor, classes: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Sigmoid focal loss of logits [B, A, K] against class indices [B, A] (-1: background) -> [B, A], summed over K.

    Lin et al. 2017, equation 5, https://arxiv.org/abs/1708.02002.
    """
    targets = (classes[..., None] == torch.arange(logits.shape[-1], device=logits.device)).to(logits.dtype)
    probabilities = torch.sigmoid(logits)
    cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    missing = probabilities + targets - 2 * probabilities * targets  # 1 - p_t
    weight = (1 - alpha) + (2 * alpha - 1) * targets  # alpha_t
    return (weight * cross_entropy * missing**gamma).sum(dim=-1)


def giou_loss(predicted: Tensor, boxes: Tensor, eps: float = 1e-7) -> Tensor:
    """1 - generalised IoU of two sets of boxes [..., 4] xyxy -> [...], in 0..2.

    Rezatofighi et al. 2019, https://arxiv.org/abs/1902.09630; `eps` as in `torchvision.ops.generalized_box_iou_loss`.
    """
    inner = torch.minimum(predicted[..., 2:], boxes[..., 2:]) - torch.maximum(predicted[..., :2], boxes[..., :2])
    intersection = torch.where((inner > 0).all(dim=-1), inner.prod(dim=-1), 0.0)
    union = _area(predicted) + _area(boxes) - intersection
    outer = torch.maximum(predicted[..., 2:], boxes[..., 2:]) - torch.minimum(predicted[..., :2], boxes[..., :2])
    hull = outer.prod(dim=-1)
    return 1 - intersection / (union + eps) + (hull - union) / (hull + eps)


def retinanet_losses(
    logits: Tensor,
    offsets: Tensor,
    anchors: Tensor,
    matched: Tensor,
    boxes: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
    box_loss: BoxLoss = "l1",
    smooth_l1_beta: float = 1.0 / 9,
) -> dict[str, Tensor]:
    """Mean over images of classification and box loss, as two scalars under torchvision's names.

    logits [B, A, K], offsets [B, A, 4] (of any float type: the maths is at least float32), anchors [A, 4],
    matched [B, A] as `targets.match` gives it, boxes [B, M, 4], labels [B, M].
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits, offsets, anchors, boxes = (x.to(dtype) for x in (logits, offsets, anchors, boxes))
    foreground = matched >= 0  # [B, A]
    row = matched.clamp(min=0)
    classes = torch.where(foreground, labels.gather(1, row), -1)
    per_image = foreground.sum(dim=1).clamp(min=1)  # [B]

    focal = focal_loss(logits, classes, alpha, gamma)
    focal = torch.where(matched != IGNORED, focal, 0.0).sum(dim=1)

    # Unmatched anchors stand in for their own box: no log(0), and no NaN in the backward of what is masked away.
    target = torch.where(foreground[..., None], boxes.gather(1, row[..., None].expand(-1, -1, 4)), anchors)
    offsets = torch.where(foreground[..., None], offsets, 0.0)
    box = torch.where(foreground, _box_loss(offsets, target, anchors, box_loss, smooth_l1_beta), 0.0).sum(dim=1)

    return {
        "classification": (focal / per_image).mean(),
        "bbox_regression": (box / per_image).mean(),
    }


def _box_loss(offsets: Tensor, boxes: Tensor, anchors: Tensor, kind: BoxLoss, beta: float) -> Tensor:
    if kind == "giou":
        return giou_loss(decode(offsets, anchors), boxes)
    targets = encode(boxes, anchors)
    if kind == "l1":
        return (offsets - targets).abs().sum(dim=-1)
    return F.smooth_l1_loss(offsets, targets, reduction="none", beta=beta).sum(dim=-1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
