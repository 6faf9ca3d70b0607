"""A data format from outside the package: YOLO's, a file for each image with `class x y width height` as shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from retina_dist.detection.readers.formats import AnnotationReader
from retina_dist.detection.settings import DetectionData
from retina_dist.errors import DataError
from retina_dist.settings import setting


@dataclass
class YoloData(DetectionData):
    class_names: list[str] = setting([], "in the order of their numbers")


class YoloReader(AnnotationReader):
    settings = YoloData

    def read(self, split: str) -> tuple[dict[str, Any], Path] | None:
        folder = Path(self.settings.root) / "images" / split
        if not folder.is_dir():
            return None
        coco: dict[str, Any] = {"images": [], "annotations": []}
        coco["categories"] = [{"id": i, "name": name} for i, name in enumerate(self.settings.class_names)]
        for number, path in enumerate(sorted(folder.iterdir()), start=1):
            with Image.open(path) as image:
                width, height = image.size
            coco["images"].append({"id": number, "file_name": path.name, "width": width, "height": height})
            labels = Path(self.settings.root) / "labels" / split / f"{path.stem}.txt"
            for line in labels.read_text().splitlines() if labels.exists() else ():
                coco["annotations"].append({"image_id": number, **_object(line, width, height, labels)})
        return coco, folder


def _object(line: str, width: int, height: int, source: Path) -> dict[str, Any]:
    try:
        label, x, y, w, h = line.split()
        box = [(float(x) - float(w) / 2) * width, (float(y) - float(h) / 2) * height]
        return {"category_id": int(label), "bbox": [*box, float(w) * width, float(h) * height]}
    except ValueError as error:
        raise DataError(f"{source} has the line {line[:80]!r}; write class x y width height.") from error
