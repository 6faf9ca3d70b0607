"""A data format from outside the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from retina_dist.detection.settings import DetectionData
from retina_dist.files import PathOrUrl


class AnnotationReader(ABC):
    """Reads a data set as COCO; an entry of the group `data` names the class.

    The class has its dataclass below `DetectionData` as `settings`, an instance its values.
    """

    settings: Any = DetectionData

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def read(self, split: str) -> tuple[dict[str, Any], Path | PathOrUrl | str] | None:
        """A COCO dictionary of "train" or "val", and the folder that its file names are relative to; None without such a split.

        The dictionary has `images` (id, file_name; width and height in px are read from the files where they are left out),
        `annotations` (image_id, category_id, bbox as [x, y, width, height] in px) and `categories` (id, name). It is checked like
        a COCO file. Raises DataError.
        """
