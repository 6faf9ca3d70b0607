"""Random images with random boxes: annotations without files, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from retina_dist.data.synthetic import noise
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import Sample, collate
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.coco import Annotations
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.detection.settings import SyntheticConfig
from retina_dist.seeding import derived_seed


def synthetic_annotations(settings: SyntheticConfig, seed: int) -> Annotations:
    """`num_images` images of the canvas' size with `num_boxes` boxes each, a function of (seed, image); there are no files."""
    height, width = settings.canvas
    boxes, labels = [], []
    for i in range(settings.num_images):
        draw = np.random.default_rng(derived_seed(seed, "synthetic boxes", i))
        sides = draw.uniform(0.05, 0.5, (settings.num_boxes, 2))
        corners = draw.uniform(0.0, 1.0 - sides)
        boxes.append((np.hstack((corners, corners + sides)) * (width, height, width, height)).astype(np.float32))
        labels.append(draw.integers(settings.num_classes, size=settings.num_boxes))
    names = [f"synthetic-{i}" for i in range(settings.num_images)]
    return Annotations(
        coco={},
        records=tuple(ImageRecord(i, Path(name), name, width, height) for i, name in enumerate(names)),
        boxes=boxes,
        labels=labels,
        categories=Categories(
            tuple(range(settings.num_classes)), tuple(f"class {i}" for i in range(settings.num_classes))
        ),
    )


def synthetic_batch(
    annotations: Annotations, images: Sequence[int], weight: float, *, seed: int, device: torch.device
) -> Batch:
    """The batch of these images on `device`; their pixels are noise, a function of (seed, image)."""
    samples = []
    for i in images:
        record = annotations.records[i]
        samples.append(
            Sample(
                noise(record.height, record.width, seed, i),
                torch.from_numpy(annotations.boxes[i]),
                torch.from_numpy(annotations.labels[i]),
                record.image_id,
                (record.height, record.width),
            )
        )
    return collate(samples, samples[0].original_size, weight).to(device)
