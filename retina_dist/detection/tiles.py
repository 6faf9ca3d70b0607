"""Detection in windows of large images, for objects that the resize of a whole image would make too small.

As SAHI, Akyon et al. 2022, https://arxiv.org/abs/2202.06934, slices images; the whole image is looked at too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from retina_dist.base.errors import ConfigError, set_status
from retina_dist.data.images import AnyImage, pixels_of
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.coco_metrics import CocoEvaluator, Part, detections_to_rows
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.transforms import EvalTransform
from retina_dist.detection.detector import Detector, joined
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.strategies.base import DistributedStrategy

WINDOWS_AT_ONCE = 8  # in a forward pass
EDGE = 2.0  # px from a window's edge, up to which a box counts as cut
COVERED = 0.5  # a cut box is dropped if more than this share of its area lies in a larger box of its class ...
AS_SURE = 0.5  # ... and the larger box has at least this share of the cut box's score


@dataclass(frozen=True)
class TiledBatch(Batch):
    """The whole image as a batch of one, and its windows as batches; `windows` [n, 4] xyxy are in pixels of the image."""

    windows: Tensor | None = None
    parts: tuple[Batch, ...] = ()


class TiledDetector(Detector):
    """A detector that looks at windows of `tile` px a side, which overlap by the share `overlap`, and at the whole image.

    An image no larger than a window gives `detector`'s own result. Raises ConfigError for an impossible tile or overlap.
    """

    def __init__(self, detector: Detector, tile: int, overlap: float = 0.2) -> None:
        if not tile >= 32 or not 0 <= overlap < 0.9:
            raise ConfigError(
                f"tile={tile} tile_overlap={overlap} is invalid; give at least 32 px, and 0 to below 0.9."
            )
        how: dict[str, Any] = {
            k: getattr(detector, k) for k in ("min_size", "max_size", "device", "precision")
        }
        super().__init__(detector.model, detector.categories, **how)
        self.tile, self.overlap, self.record = tile, overlap, detector.record

    def prepare(self, image: AnyImage) -> Batch:
        pixels = pixels_of(image)
        whole = super().prepare(pixels)
        windows = windows_of(pixels.shape[-2], pixels.shape[-1], self.tile, self.overlap)
        if len(windows) == 1:
            return whole
        batches = [
            super(TiledDetector, self).prepare(pixels[:, y1:y2, x1:x2])
            for x1, y1, x2, y2 in windows
        ]
        parts = [batches[i : i + WINDOWS_AT_ONCE] for i in range(0, len(batches), WINDOWS_AT_ONCE)]
        return TiledBatch(
            **vars(whole), windows=torch.tensor(windows), parts=tuple(map(joined, parts))
        )

    def run(self, prepared: Sequence[Batch]) -> list[Detections]:
        outputs = super().run(prepared)
        for i, batch in enumerate(prepared):
            if isinstance(batch, TiledBatch) and batch.windows is not None:
                in_windows = [
                    detections for part in batch.parts for detections in self._detect(part)
                ]
                # a model from outside may have no threshold
                outputs[i] = merge(
                    outputs[i], in_windows, batch.windows, getattr(self.model, "nms_thresh", 0.5)
                )
        return outputs

    def evaluator_of(
        self, val: Annotations, data: DetectionData, strategy: DistributedStrategy
    ) -> TiledEvaluator:
        return TiledEvaluator(self, val, data, strategy)


def windows_of(
    height: int, width: int, tile: int, overlap: float
) -> list[tuple[int, int, int, int]]:
    """Windows (x1, y1, x2, y2) of equal size that cover an image, the last ones of a row or column moved inwards."""
    step = max(1, round(tile * (1 - overlap)))

    def starts(length: int) -> list[int]:
        return sorted(
            {
                min(start, max(0, length - tile))
                for start in range(0, max(1, length - tile + step), step)
            }
        )

    return [
        (x, y, min(x + tile, width), min(y + tile, height))
        for y in starts(height)
        for x in starts(width)
    ]


def merge(
    whole: Detections, in_windows: Sequence[Detections], windows: Tensor, nms_threshold: float
) -> Detections:
    """Detections of an image, best score first, from the detections in the whole and in its `windows` [n, 4], in pixels of each.

    A box that an inner edge of its window cuts is left out where a larger box of its class covers more than half of it and has at
    least half its score. NMS for each class removes what several windows saw.
    """
    parts, corners = [*in_windows, whole], windows.to(torch.float32)
    ends = torch.cat(
        (corners[:, :2].amin(0), corners[:, 2:].amax(0))
    )  # the whole image, as the last window
    corners = torch.cat((corners, ends[None]))
    window = torch.arange(len(parts)).repeat_interleave(
        torch.tensor([len(each["scores"]) for each in parts])
    )
    boxes = torch.cat([each["boxes"] for each in parts]) + corners[window, :2].repeat(1, 2)
    scores, labels = (torch.cat([each[key] for each in parts]) for key in ("scores", "labels"))
    cut = (((boxes - corners[window]).abs() <= EDGE) & (corners[window] != ends)).any(dim=1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1)
    left = torch.ones(len(boxes), dtype=torch.bool)
    for i in cut.nonzero().flatten().tolist():
        inner = (
            torch.minimum(boxes[:, 2:], boxes[i, 2:]) - torch.maximum(boxes[:, :2], boxes[i, :2])
        ).clamp(min=0)
        others = (
            (labels == labels[i])
            & (window != window[i])
            & (area > area[i])
            & (scores >= AS_SURE * scores[i])
        )
        left[i] = not (others & (inner.prod(dim=1) > COVERED * area[i])).any()
    boxes, scores, labels = boxes[left], scores[left], labels[left]
    kept = batched_nms(boxes, scores, labels, nms_threshold)
    return Detections(boxes=boxes[kept], scores=scores[kept], labels=labels[kept])


class TiledEvaluator(CocoEvaluator):
    """COCO metrics of a `TiledDetector` over `val`, which is read as `data` says; without losses."""

    def __init__(
        self,
        detector: TiledDetector,
        val: Annotations,
        data: DetectionData,
        strategy: DistributedStrategy,
    ) -> None:
        super().__init__(val, tuple, strategy)
        reading: dict[str, Any] = {"bad_images": data.bad_images, "max_pixels": data.max_pixels}
        self.dataset = DetectionDataset(val, EvalTransform(max_size=detector.max_size), **reading)
        self.detector = detector

    def parts(self, model: Any) -> Iterator[Part]:
        for index in range(self.strategy.rank, len(self.dataset), self.strategy.world_size):
            set_status(f"validation, {index} images")
            with self.dataset.skipping_bad_images():
                pixels = self.dataset.read(index, self.dataset.fetch([index]))
                image_ids = [int(self.dataset.image_ids[index])]
                detections = self.detector.run([self.detector.prepare(pixels)])
                yield image_ids, detections_to_rows(detections, image_ids, self.val.categories), {}
