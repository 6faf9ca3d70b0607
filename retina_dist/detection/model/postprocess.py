"""From the heads' outputs to the detections of a whole batch.

As torchvision's `RetinaNet.postprocess_detections`, in its order, with a loop for NMS alone. The
best k pairs of anchor and class of a level lie in its k best anchors, so only their scores and
boxes are computed.

Of equal scores the lower anchor, then the lower class comes first, on any device; torchvision
leaves that to `topk`. Scores may differ in the last bit from torchvision's, because on a CPU
`torch.sigmoid` rounds the last few elements of a tensor otherwise. An anchor with a NaN among its
logits or offsets is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_iou, nms

from retina_dist.detection.batch import Detections
from retina_dist.detection.model.targets import decode

# Below this count torchvision's batched_nms offsets boxes per class, and float32 rounding can flip
# an overlap; above it, NMS runs per class. Both are followed, so that the same boxes are kept.
# https://github.com/pytorch/vision/blob/main/torchvision/ops/boxes.py
MAX_OFFSET_CPU = 1_000
MAX_OFFSET_GPU = 25_000
# Matrix NMS: how fast scores fall with the overlap, the paper's value, and how many of an image's
# candidates it takes, whose overlaps it holds all at once.
DECAY = 2.0
MATRIX_CANDIDATES = 500


@dataclass(frozen=True)
class Limits:
    """Which candidates become detections."""

    score_threshold: float
    nms_threshold: float
    topk_candidates: int  # of each level
    detections_per_image: int
    nms: str = "hard"


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
    level, with `nms="matrix"` their scores as `matrix_nms` lowers them, NMS for each class, and of
    these the best `detections_per_image`.

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
    if limits.nms == "matrix":
        scores = matrix_nms(boxes, torch.where(is_candidate, scores, 0.0), labels)
        is_candidate = scores > limits.score_threshold

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
    return _by_image(columns, counts, limits.detections_per_image)


def _by_image(columns: Sequence[Tensor], counts: list[int], limit: int) -> list[Detections]:
    """Boxes, scores and labels, which have `counts` rows of each image, at most `limit` of each."""
    best = slice(limit)
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


def matrix_nms(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Scores [B, N], lowered by how much better boxes of the same label and image overlap.

    A box loses by each of them, less where that one is covered itself, and keeps the lowest of
    these scores: Gaussian Matrix NMS, Wang et al. 2020, equations 4 and 5,
    https://arxiv.org/abs/2003.10152. Candidates of an image past the best `MATRIX_CANDIDATES` get
    0.

    Args:
        boxes: [B, N, 4] xyxy.
        scores: [B, N] float32, 0 for what is no candidate.
        labels: [B, N].
    """
    order = _best(scores, MATRIX_CANDIDATES)  # [B, K]
    # take_along_dim would fix the number of candidates in an exported file
    chosen = boxes.gather(1, order[..., None].expand(-1, -1, 4))
    label = labels.gather(1, order)
    iou = torch.stack([box_iou(each, each) for each in chosen])
    is_pair = (label[:, :, None] == label[:, None]) & (iou > 0)  # no NaN, of boxes without area
    iou = torch.where(is_pair, iou, 0.0).triu(diagonal=1)
    covered = iou.amax(dim=1)[..., None]  # [B, K, 1], of the better box of each pair
    factor = torch.exp(DECAY * (covered**2 - iou**2)).amin(dim=1)
    return torch.zeros_like(scores).scatter(1, order, scores.gather(1, order) * factor)


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
