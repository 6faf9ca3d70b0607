"""A detection model from outside the package: each cell of 16 x 16 px predicts the box whose centre
lies in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss, pad

from retina_dist.base.settings import setting
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.model.build import DetectionModel
from retina_dist.detection.settings import DetectorSettings

CELL = 16  # px
MOST = 20  # detections


@dataclass
class CellSettings(DetectorSettings):
    width: int = setting(16, "channels", at_least=1)
    count_weight: float = setting(
        0.0, "of a third loss, on the number of objects; 0: none", at_least=0
    )


class CellDetector(DetectionModel):
    settings = CellSettings

    def __init__(self, settings: CellSettings, num_classes: int) -> None:
        super().__init__(settings, num_classes)
        channels = [3, *[settings.width] * 4]
        strided = [nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(channels, channels[1:], strict=False)]
        layers: list[nn.Module] = [layer for conv in strided for layer in (conv, nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Conv2d(settings.width, num_classes + 4, 1))

    def evaluate(self, batch: Batch) -> tuple[dict[str, Tensor], list[Detections]]:
        outputs, centres = self.outputs(batch.images)
        columns = batch.images.shape[-1] // CELL
        images = [(outputs[i], batch.image(i)) for i in batch.real_rows()]
        parts = torch.stack(
            [self._losses(*one, centres, columns) for one in images] or [outputs.sum() * 0] * 2
        )
        losses = dict(zip(("objects", "boxes"), parts.view(-1, 2).mean(0).unbind(), strict=True))
        if self.settings.count_weight:
            objects = torch.cat([image.num_boxes for _, image in images] or [outputs.new_zeros(1)])
            expected = torch.stack(
                [output[:, :-4].sigmoid().sum() for output, _ in images] or [outputs.sum() * 0]
            )
            losses["count"] = self.settings.count_weight * l1_loss(expected, objects.float())
        return losses, [
            self._detections(outputs[i].detach(), batch.image(i), centres)
            for i in range(len(batch))
        ]

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """[B, cells, K + 4] of the network, and the cells' centres [cells, 4] as x, y, x, y."""
        outputs = self.net(images.float() / 255)
        rows, columns = outputs.shape[-2:]
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centres = (torch.stack((x, y, x, y), -1).view(-1, 4).to(outputs.device) + 0.5) * CELL
        return outputs.flatten(2).transpose(1, 2), centres

    def best(self, output: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, labels = output[:, :-4].sigmoid().max(1)
        scores, cells = scores.topk(min(MOST, len(scores)))
        return output[cells, -4:] * CELL + centres[cells], scores, labels[cells]

    def exportable(self) -> nn.Module:
        return ExportableCells(self)

    def _losses(self, output: Tensor, image: Batch, centres: Tensor, columns: int) -> Tensor:
        count = int(image.num_boxes)
        boxes, labels = image.boxes[0, :count], image.labels[0, :count]
        column, row = ((boxes[:, :2] + boxes[:, 2:]) / 2 // CELL).long().unbind(1)
        cells = row * columns + column
        targets = torch.zeros_like(output[:, :-4])
        targets[cells, labels] = 1
        classification = binary_cross_entropy_with_logits(output[:, :-4], targets, reduction="sum")
        regression = l1_loss(output[cells, -4:], (boxes - centres[cells]) / CELL, reduction="sum")
        return torch.stack((classification, regression)) / max(1, count)

    def _detections(self, output: Tensor, image: Batch, centres: Tensor) -> Detections:
        boxes, scores, labels = self.best(output, centres)
        scale: Any = (image.original_sizes / image.image_sizes)[0].flip(0).repeat(2)  # x, y, x, y
        return {"boxes": (boxes * scale).float(), "scores": scores.float(), "labels": labels}


class ExportableCells(nn.Module):
    def __init__(self, model: CellDetector) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        height, width = images.shape[-2:]
        (output,), centres = self.model.outputs(pad(images, (0, -width % 32, 0, -height % 32)))
        return self.model.best(output, centres)
