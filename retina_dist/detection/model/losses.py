"""RetinaNet's losses over a whole batch, by masks instead of selections.

Pure functions; every loss is summed over an image's anchors and divided by that image's number of foreground
anchors (at least 1), then averaged over images, as torchvision does. That normaliser does not depend on who shares the
batch, so the mean over ranks equals the loss of the undivided batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retina_dist.detection.batch import Batch
from retina_dist.detection.model.focal_loss import focal_loss
from retina_dist.detection.model.targets import BACKGROUND, IGNORED, decode, encode


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
    batch: Batch,
    *,
    alpha: float,
    gamma: float,
    box_loss: str,
    smooth_l1_beta: float,
) -> dict[str, Tensor]:
    """Mean over real images of classification and box loss, as two scalars under torchvision's names.

    logits [B, A, K], offsets [B, A, 4] (of any float type: the maths is at least float32), anchors [A, 4], matched [B, A] as
    `targets.match` gives it. Fillers of the batch count nowhere; without real images both losses are 0.
    """
    real, labels = batch.real, batch.labels
    dtype = torch.promote_types(logits.dtype, torch.float32)
    offsets, anchors, boxes = (x.to(dtype) for x in (offsets, anchors, batch.boxes))
    foreground = matched >= 0  # [B, A]
    row = matched.clamp(min=0)
    classes = torch.where(foreground, labels.gather(1, row), torch.where(matched == IGNORED, IGNORED, BACKGROUND))
    images = len(logits) if real is None else real.sum().clamp(min=1)
    weight = 1.0 / (images * foreground.sum(dim=1).clamp(min=1).to(dtype))  # [B]
    if real is not None:
        weight = weight.masked_fill(~real, 0.0)

    # Unmatched anchors stand in for their own box: no log(0), and no NaN in the backward of what is masked away.
    target = torch.where(foreground[..., None], boxes.gather(1, row[..., None].expand(-1, -1, 4)), anchors)
    offsets = torch.where(foreground[..., None], offsets, 0.0)
    box = torch.where(foreground, _box_loss(offsets, target, anchors, box_loss, smooth_l1_beta), 0.0).sum(dim=1)

    return {
        "classification": focal_loss(logits, classes, weight, alpha, gamma),
        "bbox_regression": (box * weight).sum(),
    }


def _box_loss(offsets: Tensor, boxes: Tensor, anchors: Tensor, kind: str, beta: float) -> Tensor:
    if kind == "giou":
        return giou_loss(decode(offsets, anchors), boxes)
    targets = encode(boxes, anchors)
    if kind == "l1":
        return (offsets - targets).abs().sum(dim=-1)
    return F.smooth_l1_loss(offsets, targets, reduction="none", beta=beta).sum(dim=-1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
