"""The detector as one graph without a host's decisions, which torch.export traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import nms

from retina_dist.detection.model.build import SHAPE_DIVISOR
from retina_dist.detection.model.postprocess import best_candidates, offset_by_label
from retina_dist.detection.model.targets import decode

if TYPE_CHECKING:
    from retina_dist.detection.model.retinanet import RetinaNet


class ExportableRetinaNet(nn.Module):
    """One image [1, 3, h, w] uint8 RGB -> boxes [N, 4], scores [N], both float32, and labels [N].

    Boxes are xyxy in pixels of the image, labels int64. The same as `RetinaNet` on the smallest
    canvas, but for the order of equal scores, and with more than 1000 candidates
    (`postprocess.MAX_OFFSET_CPU`) for overlaps within float32's rounding of the NMS threshold.
    """

    def __init__(self, model: RetinaNet) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model = self.model
        height, width = images.shape[-2:]
        values = (images.to(torch.float32) / 255 - model.mean.float()) / model.std.float()
        values = F.pad(values, (0, -width % SHAPE_DIVISOR, 0, -height % SHAPE_DIVISOR))

        features = list(model.backbone(values).values())
        outputs = model.head(features)
        levels = self._anchors(values, features)
        counts = [level.shape[0] for level in levels]
        scores, anchors, labels = best_candidates(
            outputs["cls_logits"], counts, model.score_thresh, model.topk_candidates
        )

        boxes = decode(outputs["bbox_regression"][:, anchors[0]], torch.cat(levels)[anchors])
        columns = boxes[..., 0::2].clamp(0, width)
        rows = boxes[..., 1::2].clamp(0, height)
        boxes = torch.stack((columns, rows), dim=-1).flatten(2)  # [1, N, 4]
        is_candidate = (scores > model.score_thresh) & ~boxes.isnan().any(dim=-1)  # [1, N]
        moved = offset_by_label(boxes, labels, is_candidate)

        candidate = is_candidate.nonzero()[:, 1]
        boxes = boxes[0, candidate]
        scores = scores[0, candidate]
        labels = labels[0, candidate]
        kept = _nms(moved[0, candidate], scores, model.nms_thresh)[: model.detections_per_img]
        return boxes[kept], scores[kept], labels[kept]

    def _anchors(self, canvas: Tensor, features: list[Tensor]) -> list[Tensor]:
        """The anchors [A_l, 4] of each level, as torchvision's generator makes them.

        The sizes are those of the tensors when the graph runs.
        """
        generator = self.model.anchor_generator
        generator.set_cell_anchors(torch.float32, canvas.device)
        sizes = [feature.shape[-2:] for feature in features]
        strides = []
        for height, width in sizes:
            strides.append([canvas.shape[-2] // height, canvas.shape[-1] // width])
        levels: list[Tensor] = generator.grid_anchors(sizes, strides)
        return levels


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """`nms` of any number of boxes with scores >= 0.

    torchvision tells torch.export that at least two are left, so two are added that overlap with
    none and come last.
    """
    apart = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
    lowest = scores.new_tensor([-1, -2])
    kept = nms(torch.cat((boxes, apart)), torch.cat((scores, lowest)), iou_threshold)
    return kept[:-2]
