"""The whole detector as one graph, for torch.export and ONNX: pixels in, boxes out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torchvision.ops import nms

from retina_dist.detection.model.postprocess import best_candidates, moved_by_label
from retina_dist.detection.model.retinanet import RetinaNet
from retina_dist.detection.model.targets import decode

INPUT, OUTPUTS = "images", ("boxes", "scores", "labels")
DIVISOR = 32  # the ResNet's stride: canvases are multiples of it
# px; below, the coarsest level is one cell high or wide, which torch.export takes for a special case
LEAST = 4 * DIVISOR + 1


class ExportableRetinaNet(nn.Module):
    """One image [1, 3, h, w] uint8 RGB -> boxes [N, 4] float32 xyxy in its pixels, scores [N] float32, labels [N] int64.

    The same as `RetinaNet` on the image in the corner of the smallest canvas of multiples of 32, best score first, with two
    exceptions: candidates of equal score may come in another order, and with more than 1000 candidates
    (`postprocess.MOST_MOVED_CPU`) overlaps within float32's rounding of the NMS threshold may be decided otherwise.
    """

    def __init__(self, model: RetinaNet) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        height, width = images.shape[-2:]
        values = (images.to(torch.float32) / 255 - self.model.mean.float()) / self.model.deviation.float()
        values = F.pad(values, (0, -width % DIVISOR, 0, -height % DIVISOR))
        features = list(self.model.backbone(values).values())
        outputs = self.model.head(features)
        levels = self._anchors(values, features)
        scores, anchors, labels = best_candidates(
            outputs["cls_logits"],
            [level.shape[0] for level in levels],
            self.model.score_thresh,
            self.model.topk_candidates,
        )
        boxes = decode(outputs["bbox_regression"][:, anchors[0]], torch.cat(levels)[anchors])
        boxes = torch.stack((boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)), dim=-1).flatten(2)
        is_candidate = scores > self.model.score_thresh  # [1, N]
        moved = moved_by_label(boxes, labels, is_candidate)
        candidate = is_candidate.nonzero()[:, 1]
        boxes, moved, scores, labels = (x[0, candidate] for x in (boxes, moved, scores, labels))
        kept = _nms(moved, scores, self.model.nms_thresh)[: self.model.detections_per_img]
        return boxes[kept], scores[kept], labels[kept]

    def _anchors(self, canvas: Tensor, features: list[Tensor]) -> list[Tensor]:
        """Of each level [A_l, 4], as torchvision's generator makes them, for sizes that the graph learns when it runs."""
        generator = self.model.anchor_generator
        generator.set_cell_anchors(torch.float32, canvas.device)
        sizes = [feature.shape[-2:] for feature in features]
        strides = [[canvas.shape[-2] // height, canvas.shape[-1] // width] for height, width in sizes]
        levels: list[Tensor] = generator.grid_anchors(sizes, strides)
        return levels


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """`nms` of any number of boxes with scores >= 0: torchvision tells torch.export that at least two are left, so two are added.

    They overlap with none, have the lowest scores and so come last.
    """
    apart = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
    return nms(torch.cat((boxes, apart)), torch.cat((scores, scores.new_tensor([-1, -2]))), iou_threshold)[:-2]


def export_graph(model: RetinaNet, size: Sequence[int] | None = None) -> ExportedProgram:
    """The graph for images of one size (height, width), or of any; run by torch, that takes sides from `LEAST` px on only."""
    height, width = size or (300, 400)  # any that give more than one cell on the coarsest level
    example = torch.zeros(1, 3, height, width, dtype=torch.uint8)
    dynamic = None if size else {INPUT: {2: Dim.AUTO, 3: Dim.AUTO}}
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(ExportableRetinaNet(model), (example,), dynamic_shapes=dynamic, strict=False)
