"""Anchors against boxes: overlap, matching, encoding, decoding, for a whole batch at once.

Pure functions without a loop over images, a host-device sync or a data-dependent shape, so that
they can be compiled. Semantics are torchvision's (`Matcher`, `BoxCoder` with weights 1, 1, 1, 1),
to the same bits where the arithmetic allows.
"""

import math

import torch
from torch import Tensor
from torchvision.ops import box_iou

BACKGROUND = -1  # torchvision Matcher.BELOW_LOW_THRESHOLD
IGNORED = -2  # torchvision Matcher.BETWEEN_THRESHOLDS
# keeps exp() of a predicted log size finite, as torchvision's BoxCoder
LOG_SIZE_CLIP = math.log(1000.0 / 16)
# Memory cap for one chunk of the IoU matrix; a single box of each image may take more.
MAX_BYTES = 1 << 30
# values of the boxes' type that `box_iou` holds at its peak for each pair of box and anchor
VALUES_PER_PAIR = 9


def match(
    boxes: Tensor,
    num_boxes: Tensor,
    anchors: Tensor,
    foreground_iou: float = 0.5,
    background_iou: float = 0.4,
) -> Tensor:
    """The box each anchor answers for, [B, A] int64.

    A value >= 0 is a row of `boxes`; BACKGROUND below `background_iou`, IGNORED up to
    `foreground_iou`. As in torchvision with `allow_low_quality_matches`: every box also keeps all
    anchors that tie for its best overlap, each of which then answers for its own best box. Only as
    many boxes are compared at a time as `MAX_BYTES` hold.

    Args:
        boxes: [B, M, 4] xyxy.
        num_boxes: [B], how many of the first rows of `boxes` are real.
        anchors: [A, 4] xyxy.
        foreground_iou: overlap from which an anchor answers for its best box.
        background_iou: overlap below which an anchor answers for none.
    """
    batch_size, max_boxes = boxes.shape[:2]
    if max_boxes == 0:
        return torch.full((batch_size, len(anchors)), BACKGROUND, device=boxes.device)
    real = torch.arange(max_boxes, device=boxes.device) < num_boxes[:, None]  # [B, M]
    rows = max(1, MAX_BYTES // (VALUES_PER_PAIR * boxes.element_size() * batch_size * len(anchors)))
    best_iou, best_box, is_best = _best(boxes[:, :rows], real[:, :rows], anchors)
    for start in range(rows, max_boxes, rows):
        chunk = slice(start, start + rows)
        iou, box, best = _best(boxes[:, chunk], real[:, chunk], anchors)
        best_box = torch.where(iou > best_iou, box + start, best_box)
        best_iou = torch.maximum(best_iou, iou)
        is_best = is_best | best
    matched = torch.where(best_iou < foreground_iou, IGNORED, best_box)
    matched = torch.where(best_iou < background_iou, BACKGROUND, matched)
    return torch.where(is_best, best_box, matched)


def _best(boxes: Tensor, real: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each anchor [B, A]: its best overlap with these boxes, the box, and whether it ties for
    any box's best.
    """
    iou = box_iou(boxes.flatten(0, 1), anchors).unflatten(0, boxes.shape[:2])  # [B, M, A]
    iou = torch.where(real[:, :, None], iou, -1.0)
    best_iou, best_box = iou.max(dim=1)  # the first box wins a tie
    best_of_box = iou.amax(dim=2, keepdim=True)  # [B, M, 1]
    return best_iou, best_box, ((iou == best_of_box) & real[:, :, None]).any(dim=1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Offsets that turn anchors into boxes, both [..., 4] xyxy -> [..., 4] (dx, dy, log dw, log
    dh).

    R-CNN box parametrisation, Girshick et al. 2014, appendix C, https://arxiv.org/abs/1311.2524.
    """
    anchor_xy, anchor_wh = _center_size(anchors)
    box_xy, box_wh = _center_size(boxes)
    return torch.cat(((box_xy - anchor_xy) / anchor_wh, torch.log(box_wh / anchor_wh)), dim=-1)


def decode(offsets: Tensor, anchors: Tensor) -> Tensor:
    """The boxes [..., 4] xyxy that `offsets` [..., 4] make of `anchors`.

    Inverse of `encode` up to the size clip.
    """
    anchor_xy, anchor_wh = _center_size(anchors)
    center = offsets[..., :2] * anchor_wh + anchor_xy
    half = torch.exp(offsets[..., 2:].clamp(max=LOG_SIZE_CLIP)) * anchor_wh * 0.5
    return torch.cat((center - half, center + half), dim=-1)


def _center_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size
