"""Small data sets in COCO's layout, and what the package reads of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split

SIZES = [(30, 40), (40, 30), (32, 32), (24, 48)]  # (height, width)


def write_coco(
    path: Path,
    images: Sequence[Mapping[str, Any]],
    boxes: Iterable[tuple[int, int, Sequence[float], int]],
    names: Mapping[int, str] = {1: "thing"},  # noqa: B006  it is only read
) -> None:
    """`boxes` are (image id, category id, [x, y, w, h], iscrowd), numbered from 1; `names` are
    those of the categories.
    """
    keys = ("image_id", "category_id", "bbox", "iscrowd")
    annotations = [
        {"id": i, **dict(zip(keys, box, strict=True))} for i, box in enumerate(boxes, start=1)
    ]
    categories = [{"id": i, "name": name} for i, name in names.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"images": images, "annotations": annotations, "categories": categories}, indent=2
        )
    )


def noise_images(folder: Path, names: Sequence[str], first_id: int) -> list[dict[str, Any]]:
    """JPEGs of noise of `SIZES`, and their entries in COCO's form."""
    rng = np.random.default_rng(0)
    images = []
    for i, name in enumerate(names):
        height, width = SIZES[i % len(SIZES)]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name, "JPEG", quality=95)
        images.append({"id": first_id + i, "file_name": name, "width": width, "height": height})
    return images


def split_of(root: Path | str, split: str = "train", **settings: Any) -> Annotations:
    """A split that must be there."""
    found = read_split(DetectionData(name="x", root=str(root), **settings), split)
    assert found is not None
    return found
