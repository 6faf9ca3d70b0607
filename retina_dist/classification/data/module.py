"""Training and validation batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from retina_dist.classification.batch import ImageBatch
from retina_dist.classification.data.dataset import ClassificationDataset
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.data.canvases import Buckets
from retina_dist.data.loading import read_batches, start_fork_server
from retina_dist.data.samplers import EvalSampler, TrainSampler
from retina_dist.errors import ConfigError


class ClassificationDataModule:
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
        self.settings, self._pin_memory = settings, pin_memory
        self._train: tuple[ClassificationDataset, TrainSampler] | None = None
        self._val: tuple[ClassificationDataset, EvalSampler] | None = None
        if train is not None:
            sampler = TrainSampler(
                buckets=_one_bucket(len(train), settings.image_size),
                batch_size=settings.batch_size,
                accumulate=accumulate,
                rank=rank,
                world_size=world_size,
                seed=seed,
                shuffle=settings.shuffle,
            )
            self._train = (ClassificationDataset(train, settings, seed=seed), sampler)
        if val is not None:
            val_sampler = EvalSampler(
                buckets=_one_bucket(len(val), settings.val_size),
                batch_size=settings.val_batch_size,
                rank=rank,
                world_size=world_size,
            )
            self._val = (ClassificationDataset(val, settings, train=False), val_sampler)
        if settings.num_workers:
            start_fork_server("retina_dist.classification.data.dataset")

    @property
    def train_sampler(self) -> TrainSampler:
        return self._training()[1]

    @property
    def num_train_shapes(self) -> int:
        """How many shapes this rank's training batches can have: crop sizes, with and without fillers."""
        settings, sampler = self.settings, self.train_sampler
        sizes = {settings.size_at(epoch) for epoch in range(settings.growth[1] + 1)} | {settings.image_size}
        specs = [spec for step in (0, sampler.steps_per_epoch - 1) for spec in sampler.step(step)]
        kinds = 2 if settings.bad_images == "skip" else len({len(spec.indices) < spec.size for spec in specs})
        return len(sizes) * kinds

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before optimizer step `step`."""
        return self.train_sampler.position(step)

    def train_steps(self, start: int, stop: int) -> Iterator[list[ImageBatch]]:
        """The micro-batches of each optimizer step from `start` up to `stop`, by one set of workers."""
        dataset, sampler = self._training()
        specs = (spec for step in range(start, stop) for spec in sampler.step(step))
        workers = {"num_workers": self.settings.num_workers, "pin_memory": self._pin_memory}
        batches = read_batches(dataset, specs, **workers)  # type: ignore[arg-type]
        try:
            for _ in range(start, stop):
                yield list(islice(batches, sampler.accumulate))
        finally:
            batches.close()

    def val_batches(self) -> Iterator[ImageBatch]:
        """This rank's share of the validation images, each image once over all ranks; possibly nothing."""
        if self._val is None:
            raise ConfigError("There is no validation split; set one, or switch evaluation off.")
        dataset, sampler = self._val
        return read_batches(dataset, sampler, num_workers=self.settings.num_workers, pin_memory=self._pin_memory)

    def _training(self) -> tuple[ClassificationDataset, TrainSampler]:
        if self._train is None:
            raise ConfigError("There is no training split; set one, or only evaluate.")
        return self._train


def _one_bucket(count: int, size: int) -> Buckets:
    """All images on one square canvas."""
    return Buckets(np.zeros(count, np.int64), (size,), np.array([[[size, size]]], np.int64))
