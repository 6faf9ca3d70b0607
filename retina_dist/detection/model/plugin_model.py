"""A detection model from outside the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.settings import DetectorSettings


class DetectionModel(nn.Module, ABC):
    """A module that an entry of the group `model` names. It is made by CLASS(settings, num_classes).

    The class has its dataclass below `DetectorSettings` as `settings`, an instance its values.
    """

    settings: Any = DetectorSettings

    def __init__(self, settings: Any, num_classes: int) -> None:
        super().__init__()
        self.settings, self.num_classes = settings, num_classes

    def forward(self, batch: Batch) -> dict[str, Tensor] | list[Detections]:
        """In training mode the losses, else the detections of each image."""
        losses, detections = self.evaluate(batch)
        return losses if self.training else detections

    @abstractmethod
    def evaluate(self, batch: Batch) -> tuple[dict[str, Tensor], list[Detections]]:
        """The losses by name, means over the batch's real images, whose sum is trained, and each image's detections.

        The losses of an image must not depend on the other images of its batch.
        """
