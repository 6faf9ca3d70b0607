"""A data format from outside the package: SPLIT.jsonl, a line
`{"file": NAME, "boxes": [[class, x, y, width, height]]}` each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retina_dist.base.errors import DataError
from retina_dist.base.settings import setting
from retina_dist.detection.readers.formats import AnnotationReader
from retina_dist.detection.settings import DetectionData


@dataclass
class LinesData(DetectionData):
    class_names: list[str] = setting([], "in the order of their numbers")


class LinesReader(AnnotationReader):
    settings = LinesData

    def read(self, split: str) -> tuple[dict[str, Any], Path] | None:
        path = Path(self.settings.root) / f"{split}.jsonl"
        if not path.is_file():
            return None
        images, boxes = [], []
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                content = json.loads(line)
                images.append({"id": number, "file_name": content["file"]})
                boxes += [
                    {"image_id": number, "category_id": label, "bbox": box}
                    for label, *box in content["boxes"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}:{number} is {line[:80]!r}; write an object with file and boxes."
                ) from error
        categories = [{"id": i, "name": name} for i, name in enumerate(self.settings.class_names)]
        return {"images": images, "annotations": boxes, "categories": categories}, path.with_suffix(
            ""
        )
