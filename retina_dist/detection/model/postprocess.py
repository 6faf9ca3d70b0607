"""From the heads' outputs to the detections of a whole batch.

As torchvision's `RetinaNet.postprocess_detections`, in its order, with a loop for NMS alone. The best k pairs of anchor and
class of a level lie in its k best anchors, so only their scores and boxes are computed.

Of equal scores the lower anchor, then the lower class comes first, on any device; torchvision leaves that to `topk`. Scores may
differ in the last bit from torchvision's, because on a CPU `torch.sigmoid` rounds the last few elements of a tensor otherwise.
An anchor with a NaN among its logits or offsets is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import nms

from retina_dist.detection.batch import Detections
from retina_dist.detection.model.targets import decode

# Up to so many candidates in an image torchvision's batched_nms moves the classes apart in float32, which rounds the boxes and so
# decides some overlaps otherwise; above, it takes class by class. Both are followed, so that the same boxes are kept.
# https://github.com/pytorch/vision/blob/main/torchvision/ops/boxes.py
MOST_MOVED_CPU, MOST_MOVED_GPU = 1_000, 25_000


def postprocess(
    logits: Tensor,
    offsets: Tensor,
    levels: Sequence[Tensor],
    image_sizes: Tensor,
    original_sizes: Tensor,
    *,
    score_threshold: float,
    nms_threshold: float,
    topk_candidates: int,
    detections_per_image: int,
) -> list[Detections]:
    """Detections of each image: logits [B, A, K], offsets [B, A, 4], anchors [A_l, 4] of each level, sizes [B, 2] (h, w).

    For each image: the best `topk_candidates` pairs of anchor and class above `score_threshold` on each level, NMS for each class,
    the best `detections_per_image`. Boxes in pixels of `original_sizes`, float32 throughout.
    """
    counts = [len(level) for level in levels]
    scores, anchors, labels = best_candidates(logits, counts, score_threshold, topk_candidates)
    is_candidate = scores > score_threshold  # [B, N], N at most levels * topk_candidates
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    boxes = decode(offsets[rows, anchors].to(torch.float32), torch.cat(list(levels))[anchors])
    limit = image_sizes.flip(1).repeat(1, 2)[:, None].to(boxes.dtype)  # [B, 1, 4] as w, h, w, h
    boxes = boxes.clamp(min=0).minimum(limit)
    is_candidate = is_candidate & ~boxes.isnan().any(dim=-1)
    few = is_candidate.sum(dim=1) <= (MOST_MOVED_GPU if boxes.is_cuda else MOST_MOVED_CPU)
    shifted = torch.where(few[:, None, None], moved_by_label(boxes, labels, is_candidate), boxes)

    image, candidate = is_candidate.nonzero(as_tuple=True)
    boxes, shifted, scores, labels = (x[image, candidate] for x in (boxes, shifted, scores, labels))
    group = image * logits.shape[-1] + labels
    if (
        boxes.is_cuda
    ):  # as torchvision: one call for an image, which a GPU does faster than one for each class
        group = torch.where(few[image], image * logits.shape[-1], group)
    kept = nms_by_group(shifted, scores, group, nms_threshold)
    kept = kept[scores[kept].argsort(descending=True, stable=True)]
    kept = kept[image[kept].argsort(stable=True)]  # by image, best first

    image = image[kept]
    scale = (original_sizes / image_sizes).flip(1).repeat(1, 2).to(boxes.dtype)  # [B, 4]
    ends = torch.searchsorted(image, rows[:, 0], right=True).tolist()
    sizes = [end - start for start, end in zip([0, *ends], ends)]
    parts = zip(*(x.split(sizes) for x in (boxes[kept] * scale[image], scores[kept], labels[kept])))
    most = detections_per_image
    return [Detections(boxes=b[:most], scores=s[:most], labels=k[:most]) for b, s, k in parts]


def best_candidates(
    logits: Tensor, counts: list[int], threshold: float, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, anchors and labels [B, N] of the best k of each level, level by level, best first; scores below may be 0."""
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    num_classes, start = logits.shape[-1], 0
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for level in logits.split(counts, dim=1):
        best = _best(_scores(level.amax(dim=-1), threshold), k)
        anchors = best.sort(dim=1).values  # [B, k], in the order of the level
        chosen = level[rows, anchors]  # [B, k, K]
        scores = _scores(chosen, threshold)
        scores = torch.where(chosen.isnan().any(dim=-1, keepdim=True), 0.0, scores).flatten(
            1
        )  # [B, k * K]
        pairs = _best(scores, k)  # [B, k]
        parts.append(
            (
                scores.gather(1, pairs),
                anchors.gather(1, pairs // num_classes) + start,
                pairs % num_classes,
            )
        )
        start += level.shape[1]
    scores, anchors, labels = (torch.cat(values, dim=1) for values in zip(*parts))
    return scores, anchors, labels


def _scores(logits: Tensor, threshold: float) -> Tensor:
    """float32 probabilities; 0 where they are at most the threshold or NaN."""
    scores = torch.sigmoid(logits.to(torch.float32))
    return torch.where(scores > threshold, scores, 0.0)


def _best(scores: Tensor, k: int) -> Tensor:
    """Columns of the k largest in each row of float32 scores >= 0, largest first; of equal ones the lower column first."""
    columns = scores.shape[1]
    if torch.compiler.is_exporting():
        # ONNX's TopK takes the lower column first: https://onnx.ai/onnx/operators/onnx__TopK.html
        return scores.topk(min(k, columns), dim=1).indices
    lower_first = torch.arange(columns - 1, -1, -1, device=scores.device)
    # The bits of floats that are not negative are in the order of their values.
    keys = (scores.view(torch.int32).to(torch.int64) << 32) | lower_first
    return keys.topk(min(k, columns), dim=1).indices


def moved_by_label(boxes: Tensor, labels: Tensor, is_candidate: Tensor) -> Tensor:
    """Boxes [B, N, 4], moved so that candidates [B, N] of different labels [B, N] do not overlap."""
    largest = torch.where(is_candidate[..., None], boxes, 0.0).amax(
        dim=(1, 2), keepdim=True
    )  # [B, 1, 1]
    return boxes + labels[..., None].to(boxes.dtype) * (largest + 1)


def nms_by_group(boxes: Tensor, scores: Tensor, group: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes [N, 4] that NMS leaves of each group [N], rising; one call a group is the fastest on a CPU."""
    order = group.argsort(stable=True)
    sizes = group[order].unique_consecutive(return_counts=True)[1].tolist()
    parts = zip(*(x[order].split(sizes) for x in (boxes, scores)))
    kept = [index[nms(b, s, iou_threshold)] for (b, s), index in zip(parts, order.split(sizes))]
    return torch.cat(kept).sort().values if kept else order
