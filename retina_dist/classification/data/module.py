"""Training and validation batches of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from retina_dist.classification.batch import ImageBatch
from retina_dist.classification.data.dataset import ClassificationDataset
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.data.canvases import Buckets
from retina_dist.data.module import DataModule
from retina_dist.data.samplers import EvalSampler, TrainSampler


class ClassificationDataModule(DataModule[ClassificationDataset, ImageBatch]):
    """The batches of this rank; `settings.batch_size` is the number of images per optimizer step over all ranks.

    `train` or `val` may be None where only the other is used.
    """

    def __init__(
        self,
        settings: ClassificationData,
        *,
        train: Samples | None,
        val: Samples | None,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = True,
    ) -> None:
        self.settings = settings
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
        training, validation = None, None
        if train is not None:
            sampler = TrainSampler(
                buckets=_one_bucket(len(train), settings.image_size),
                batch_size=settings.batch_size,
                accumulate=accumulate,
                seed=seed,
                shuffle=settings.shuffle,
                **ranks,
            )
            training = (ClassificationDataset(train, settings, seed=seed), sampler)
        if val is not None:
            buckets = _one_bucket(len(val), settings.val_size)
            val_sampler = EvalSampler(buckets=buckets, batch_size=settings.val_batch_size, **ranks)
            validation = (ClassificationDataset(val, settings, train=False), val_sampler)
        super().__init__(training, validation, num_workers=settings.num_workers, pin_memory=pin_memory)

    @property
    def num_train_shapes(self) -> int:
        """How many shapes this rank's training batches can have: crop sizes, with and without fillers."""
        settings = self.settings
        sizes = {settings.size_at(epoch) for epoch in range(settings.growth[1] + 1)} | {settings.image_size}
        return len(sizes) * self.num_fillings(settings.bad_images == "skip")


def _one_bucket(count: int, size: int) -> Buckets:
    """All images on one square canvas."""
    return Buckets(np.zeros(count, np.int64), (size,), np.array([[[size, size]]], np.int64))
