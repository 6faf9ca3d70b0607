"""Random images of random classes: labels without files, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retina_dist.classification.batch import ImageBatch
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.settings import SyntheticClassesConfig
from retina_dist.data.synthetic import noise
from retina_dist.seeding import derived_seed


def synthetic_samples(settings: SyntheticClassesConfig, seed: int) -> Samples:
    """`num_images` images with a class each, a function of (seed, image); there are no files."""
    draw = np.random.default_rng(derived_seed(seed, "synthetic labels"))
    names = tuple(f"synthetic-{i}" for i in range(settings.num_images))
    labels = draw.integers(settings.num_classes, size=settings.num_images)
    return Samples(names, names, labels, tuple(f"class {i}" for i in range(settings.num_classes)))


def synthetic_batch(
    samples: Samples, images: Sequence[int], weight: float, *, size: int, seed: int, device: torch.device
) -> ImageBatch:
    """The batch of these images on `device`; their pixels are noise, a function of (seed, image). Nothing is mixed in."""
    pixels = torch.stack([noise(size, size, seed, i) for i in images])
    labels = torch.from_numpy(samples.labels[list(images)])
    return ImageBatch(
        pixels.contiguous(memory_format=torch.channels_last),
        labels,
        labels,
        torch.ones(len(images)),
        torch.tensor(images),
        weight,
    ).to(device)
