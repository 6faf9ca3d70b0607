"""From the heads' outputs to the detections of a whole batch.

As torchvision's `RetinaNet.postprocess_detections`, in its order, with a loop for NMS alone. The
best k pairs of anchor and class of a level lie in its k best anchors, so only their scores and
boxes are computed.

Of equal scores the lower anchor, then the lower class comes first, on any device; torchvision
leaves that to `topk`. Scores may differ in the last bit from torchvision's, because on a CPU
`torch.sigmoid` rounds the last few elements of a tensor otherwise. An anchor with a NaN among its
logits or offsets is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms

from retina_dist.detection.batch import Detections
from retina_dist.detection.model.targets import decode

# Below this count torchvision's batched_nms offsets boxes per class, and float32 rounding can flip
# an overlap; above it, NMS runs per class. Both are followed, so that the same boxes are kept.
# https://github.com/pytorch/vision/blob/main/torchvision/ops/boxes.py
MAX_OFFSET_CPU = 1_000
MAX_OFFSET_GPU = 25_000


@dataclass(frozen=True)
class Limits:
    """Which candidates become detections."""

    score_threshold: float
    nms_threshold: float
    topk_candidates: int  # of each level
    detections_per_image: int


def postprocess(
    logits: Tensor,
    offsets: Tensor,
    levels: list[Tensor],
    image_sizes: Tensor,
    original_sizes: Tensor,
    limits: Limits,
) -> list[Detections]:
    """The detections of each image of a batch.

    These are the best `topk_candidates` pairs of anchor and class above `score_threshold` on each
    level, NMS for each class, and of these the best `detections_per_image`.

    Args:
        logits: [B, A, K].
        offsets: [B, A, 4].
        levels: the anchors [A_l, 4] xyxy of each pyramid level, in pixels of the padded image.
        image_sizes: [B, 2] (height, width) after the resize.
        original_sizes: [B, 2] (height, width) of the stored images, in whose pixels boxes are.
        limits: thresholds and counts.

    Returns boxes [N, 4] xyxy, scores [N] and labels [N] of each image, best first.
    """
    num_classes = logits.shape[-1]
    scores, anchors, labels = best_candidates(
        logits, levels, limits.score_threshold, limits.topk_candidates
    )
    is_candidate = scores > limits.score_threshold  # [B, N], N at most levels * topk_candidates
    offsets = offsets.take_along_dim(anchors[..., None], dim=1).to(torch.float32)
    boxes = decode(offsets, torch.cat(levels)[anchors])
    inside = image_sizes.flip(1).repeat(1, 2)[:, None].to(boxes.dtype)  # [B, 1, 4] as w, h, w, h
    boxes = boxes.clamp(min=0).minimum(inside)
    is_candidate = is_candidate & ~boxes.isnan().any(dim=-1)

    few = is_candidate.sum(dim=1) <= (MAX_OFFSET_GPU if boxes.is_cuda else MAX_OFFSET_CPU)  # [B]
    apart = offset_by_label(boxes, labels, is_candidate)
    apart = torch.where(few[:, None, None], apart, boxes)

    # from here on one row for each candidate of any image
    image, candidate = is_candidate.nonzero(as_tuple=True)
    boxes = boxes[image, candidate]
    apart = apart[image, candidate]
    scores = scores[image, candidate]
    labels = labels[image, candidate]
    group = image * num_classes + labels
    if boxes.is_cuda:
        # as torchvision: one call for an image, which a GPU does faster than one for each class
        group = torch.where(few[image], image * num_classes, group)
    kept = nms_by_group(apart, scores, group, limits.nms_threshold)
    kept = kept[scores[kept].argsort(descending=True, stable=True)]
    kept = kept[image[kept].argsort(stable=True)]  # by image, best first
    image = image[kept]
    scale = (original_sizes / image_sizes).flip(1).repeat(1, 2).to(boxes.dtype)  # [B, 4]
    counts = image.bincount(minlength=len(logits)).tolist()
    columns = (boxes[kept] * scale[image], scores[kept], labels[kept])
    best = slice(limits.detections_per_image)
    detections = []
    for b, s, k in zip(*(column.split(counts) for column in columns), strict=True):
        detections.append(Detections(boxes=b[best], scores=s[best], labels=k[best]))
    return detections


def best_candidates(
    logits: Tensor, levels: Sequence[Tensor], threshold: float, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, anchors and labels [B, N] of the best k of each level, level by level, best first.

    Scores below may be 0.

    Args:
        logits: [B, A, K].
        levels: the anchors of each level, A in all.
        threshold: scores up to it count as 0.
        k: pairs of anchor and class to take of each level.
    """
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    num_classes = logits.shape[-1]
    start = 0
    best = []
    for level in logits.split([anchors.shape[0] for anchors in levels], dim=1):
        anchors = (
            _best(_scores(level.amax(dim=-1), threshold), k).sort(dim=1).values
        )  # [B, k], in the order of the level
        chosen = level[rows, anchors]  # [B, k, K]
        scores = _scores(chosen, threshold)
        scores = torch.where(chosen.isnan().any(dim=-1, keepdim=True), 0.0, scores).flatten(
            1
        )  # [B, k * K]
        pairs = _best(scores, k)  # [B, k]
        anchors = anchors.gather(1, pairs // num_classes) + start
        best.append((scores.gather(1, pairs), anchors, pairs % num_classes))
        start += level.shape[1]
    scores, anchors, labels = (torch.cat(column, dim=1) for column in zip(*best, strict=True))
    return scores, anchors, labels


def _scores(logits: Tensor, threshold: float) -> Tensor:
    """float32 probabilities; 0 where they are at most the threshold or NaN."""
    scores = torch.sigmoid(logits.to(torch.float32))
    return torch.where(scores > threshold, scores, 0.0)


def _best(scores: Tensor, k: int) -> Tensor:
    """Columns of the k largest in each row of float32 scores >= 0, largest first.

    Of equal ones the lower column first.
    """
    columns = scores.shape[1]
    if torch.compiler.is_exporting():
        # ONNX's TopK takes the lower column first: https://onnx.ai/onnx/operators/onnx__TopK.html
        return scores.topk(min(k, columns), dim=1).indices
    lower_first = torch.arange(columns - 1, -1, -1, device=scores.device)
    # The bits of floats that are not negative are in the order of their values.
    return (
        ((scores.view(torch.int32).to(torch.int64) << 32) | lower_first)
        .topk(min(k, columns), dim=1)
        .indices
    )


def offset_by_label(boxes: Tensor, labels: Tensor, is_candidate: Tensor) -> Tensor:
    """Boxes [B, N, 4], moved so that candidates [B, N] of different labels do not overlap."""
    largest = torch.where(is_candidate[..., None], boxes, 0.0).amax(
        dim=(1, 2), keepdim=True
    )  # [B, 1, 1]
    return boxes + labels[..., None].to(boxes.dtype) * (largest + 1)


def nms_by_group(boxes: Tensor, scores: Tensor, group: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes [N, 4] that NMS leaves of each group [N], rising.

    One call a group is the fastest on a CPU.
    """
    order = group.argsort(stable=True)
    sizes = group[order].unique_consecutive(return_counts=True)[1].tolist()
    kept = []
    for indices in order.split(sizes):
        kept.append(indices[nms(boxes[indices], scores[indices], iou_threshold)])
    return torch.cat(kept).sort().values if kept else order
