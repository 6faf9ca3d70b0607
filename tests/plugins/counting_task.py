"""An evaluator from outside the package: how many objects a detector finds for each one that there
is.
"""

from __future__ import annotations

import torch
from torch import nn

from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.task import Validator


class CountingDetection(DetectionTask):
    metric_names = ("count/ratio",)
    default_monitor = "count/ratio"

    def build_evaluator(self, data: CocoDataModule) -> Validator | None:
        if self.val is None:
            return None
        device = self.strategy.device

        @torch.no_grad()
        def evaluate(model: nn.Module) -> dict[str, float]:
            model.eval()
            counts = torch.zeros(2, dtype=torch.float64, device=device)  # found, there
            for batch in data.val_batches():
                found = sum(len(detections["scores"]) for detections in model(batch.to(device)))
                counts += torch.tensor([found, int(batch.num_boxes.sum())], device=device)
            found, there = self.strategy.all_reduce(counts, "sum").tolist()
            return {"count/ratio": found / max(1, there)}

        return evaluate
