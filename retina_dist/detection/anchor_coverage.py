"""How well anchors fit the boxes of a data set, without running a network.

A box that no anchor overlaps enough is learnt from its one best anchor alone, however badly that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retina_dist.data.canvases import make_buckets, resized_size
from retina_dist.detection.readers.coco import Annotations


@dataclass(frozen=True)
class Coverage:
    """Best overlap of each training box with any anchor, at the scale that training sees."""

    best_iou: np.ndarray  # [n]
    size: np.ndarray  # [n] square root of the box's area in px, after the resize
    threshold: float  # IoU from which an anchor answers for a box

    @property
    def num_unreached(self) -> int:
        """Boxes without such an anchor."""
        return int((self.best_iou < self.threshold).sum())

    @property
    def unreached(self) -> float:
        """Share of boxes without such an anchor; 0 where there are no boxes."""
        return self.num_unreached / max(1, len(self.best_iou))


def anchor_coverage(
    data: Annotations,
    cell_anchors: Sequence[np.ndarray],
    *,
    min_sizes: Sequence[int],
    max_size: int,
    num_buckets: int,
    threshold: float = 0.5,
) -> Coverage:
    """Which boxes an anchor reaches at the largest of `min_sizes`, on the canvas of each image's bucket.

    `cell_anchors` are the anchors [a, 4] of each pyramid level, P3 to P7, centred on the origin. Exact without trying
    every anchor: of one shape, the anchor with the nearest centre overlaps most, because the overlap only falls with the
    distance along either axis. Images of unknown size are left out.
    """
    known = [i for i, record in enumerate(data.records) if record.width and record.height]
    if not sum(len(data.boxes[i]) for i in known):
        return Coverage(np.zeros(0), np.zeros(0), threshold)
    sizes = np.array([(data.records[i].height, data.records[i].width) for i in known])
    buckets = make_buckets(sizes, min_sizes=min_sizes, max_size=max_size, num_buckets=num_buckets)
    canvases = buckets.canvases[buckets.min_sizes.index(max(min_sizes)), buckets.of_image]
    resized = np.array([resized_size(h, w, max(min_sizes), max_size) for h, w in sizes.tolist()])

    # From here on one column for each box, with rows y and x.
    image = np.repeat(np.arange(len(known)), [len(data.boxes[i]) for i in known])
    boxes = np.concatenate([data.boxes[i] for i in known]).astype(np.float64).T
    scale = (resized / sizes)[image].T
    low, high = boxes[[1, 0]] * scale, boxes[[3, 2]] * scale
    area = (high - low).prod(axis=0)
    best = np.zeros(len(image))
    canvas = canvases[image].T
    grid = canvas // 4
    for anchors in cell_anchors:
        grid = -(-grid // 2)  # P3 is an eighth of the canvas, each further level half of the one before, rounded up
        stride = canvas // grid  # as torchvision places anchors
        nearest = np.clip(np.round((low + high) / 2 / stride), 0, grid - 1) * stride
        for left, top, right, bottom in anchors.astype(np.float64):
            common = np.minimum(high, nearest + [[bottom], [right]]) - np.maximum(low, nearest + [[top], [left]])
            both = common.clip(0).prod(axis=0)
            best = np.maximum(best, both / (area + (right - left) * (bottom - top) - both))
    return Coverage(best, np.sqrt(area), threshold)
