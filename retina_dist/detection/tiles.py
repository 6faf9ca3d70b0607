"""Detection in windows of large images, for objects that a resize would make too small.

As SAHI, Akyon et al. 2022, https://arxiv.org/abs/2202.06934, slices images; the whole image is
looked at too. `TiledDetector` in detector.py detects in them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import batched_nms

from retina_dist.detection.batch import Detections, joined

EDGE = 2.0  # px from a window's edge, up to which a box counts as cut
# A cut box is dropped if more than this share of its area lies in a larger box of its class ...
COVERED = 0.5
AS_SURE = 0.5  # ... and the larger box has at least this share of the cut box's score


def windows_of(
    height: int, width: int, tile: int, overlap: float
) -> list[tuple[int, int, int, int]]:
    """Windows (x1, y1, x2, y2) of equal size that cover an image of `height` x `width` px.

    The last ones of a row or column are moved inwards.
    """
    windows = []
    for y in _starts(height, tile, overlap):
        for x in _starts(width, tile, overlap):
            windows.append((x, y, min(x + tile, width), min(y + tile, height)))
    return windows


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    step = max(1, round(tile * (1 - overlap)))
    last = max(0, length - tile)
    starts = np.arange(0, max(1, length - tile + step), step).clip(max=last)
    return np.unique(starts).tolist()  # type: ignore[no-any-return]


def merge(
    whole: Detections,
    in_windows: Sequence[Detections],
    windows: Tensor,
    nms_threshold: float,
    limit: int | None = None,
) -> Detections:
    """Detections of an image, best score first, from those in the whole image and in its windows.

    A box that an inner edge of its window cuts is left out where a larger box of its class covers
    more than half of it and has at least half its score. NMS for each class removes what several
    windows saw.

    Args:
        whole: the detections in the whole image.
        in_windows: those in each of n windows, in pixels of the window.
        windows: the windows, [n, 4] xyxy in pixels of the image.
        nms_threshold: an IoU.
        limit: how many detections to give, by default all.
    """
    parts = [*in_windows, whole]
    corners = windows.to(torch.float32)
    ends = torch.cat((corners[:, :2].amin(0), corners[:, 2:].amax(0)))
    corners = torch.cat((corners, ends[None]))  # the whole image, as the last window
    counts = torch.tensor([len(part["scores"]) for part in parts])
    window = torch.arange(len(parts)).repeat_interleave(counts)
    boxes, scores, labels = joined(parts)
    boxes = boxes + corners[window, :2].repeat(1, 2)

    cut = (((boxes - corners[window]).abs() <= EDGE) & (corners[window] != ends)).any(dim=1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1)
    left = torch.ones_like(cut)
    for i in cut.nonzero().flatten().tolist():
        least = torch.maximum(boxes[:, :2], boxes[i, :2])
        most = torch.minimum(boxes[:, 2:], boxes[i, 2:])
        covered = (most - least).clamp(min=0).prod(dim=1)
        of_another_window = (labels == labels[i]) & (window != window[i])
        better = (area > area[i]) & (scores >= AS_SURE * scores[i])
        left[i] = not (of_another_window & better & (covered > COVERED * area[i])).any()

    kept = left.nonzero()[:, 0]
    best = batched_nms(boxes[kept], scores[kept], labels[kept], nms_threshold)
    kept = kept[best[:limit]]
    return Detections(boxes=boxes[kept], scores=scores[kept], labels=labels[kept])
