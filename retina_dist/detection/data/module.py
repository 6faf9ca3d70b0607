"""Training and validation batches of one rank, from the settings of the data."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from retina_dist.data.canvases import Buckets, make_buckets
from retina_dist.data.loading import read_batches, start_fork_server
from retina_dist.data.samplers import BatchSpec, EvalSampler, TrainSampler
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import padded_rows
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.deferred_resize import resized_by
from retina_dist.detection.data.transforms import EvalTransform, TrainTransform
from retina_dist.detection.settings import DataConfig
from retina_dist.errors import ConfigError

if TYPE_CHECKING:
    from retina_dist.detection.readers.coco import Annotations

CPU = torch.device("cpu")


class CocoDataModule:
    """The batches of rank `rank`, read and resized as `settings` say, for `device`.

    `train` or `val` may be None where only the other is used.
    """

    def __init__(
        self,
        settings: DataConfig,
        *,
        train: Annotations | None,
        val: Annotations | None,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device = CPU,
    ) -> None:
        if settings.num_workers < 0:
            raise ConfigError(f"num_workers={settings.num_workers} is negative; use 0 to read in the main process.")
        self._settings, self._pin_memory = settings, device.type == "cuda"
        self._train: tuple[DetectionDataset, TrainSampler] | None = None
        self._val: tuple[DetectionDataset, EvalSampler] | None = None
        reading: dict[str, Any] = {"seed": seed, "on_bad_image": settings.bad_images}
        reading |= {"max_pixels": settings.max_pixels, "cache": settings.cache}
        reading |= {"resize": resized_by(settings.resize, device)}
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
        if train is not None:
            dataset = DetectionDataset(train, _train_transform(settings), **reading)
            sampler = TrainSampler(
                buckets=self._buckets(dataset, settings.min_sizes),
                batch_size=settings.batch_size,
                accumulate=accumulate,
                seed=seed,
                shuffle=settings.shuffle,
                **ranks,
            )
            self._train = (dataset, sampler)
        if val is not None:
            val_dataset = DetectionDataset(val, EvalTransform(max_size=settings.max_size), **reading)
            buckets = self._buckets(val_dataset, [settings.val_min_size or max(settings.min_sizes)])
            self._val = (val_dataset, EvalSampler(buckets=buckets, batch_size=settings.val_batch_size, **ranks))
        if settings.num_workers:
            start_fork_server("retina_dist.detection.data.dataset")

    def _buckets(self, dataset: DetectionDataset, min_sizes: Sequence[int]) -> Buckets:
        settings = self._settings
        return make_buckets(
            dataset.sizes, min_sizes=min_sizes, max_size=settings.max_size, num_buckets=settings.num_buckets
        )

    @property
    def train_dataset(self) -> DetectionDataset:
        return self._training()[0]

    @property
    def train_sampler(self) -> TrainSampler:
        return self._training()[1]

    @property
    def steps_per_epoch(self) -> int:
        return self.train_sampler.steps_per_epoch

    @property
    def num_train_shapes(self) -> int:
        """How many shapes this rank's training batches can have: canvases x rows of boxes, with and without fillers."""
        dataset, sampler = self._training()
        rows = {padded_rows(count) for count in range(dataset.most_boxes + 1)}
        specs = [spec for step in (0, sampler.steps_per_epoch - 1) for spec in sampler.step(step)]
        kinds = 2 if dataset.on_bad_image == "skip" else len({len(spec.indices) < spec.size for spec in specs})
        return len(sampler.buckets.all_canvases()) * len(rows) * kinds

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before optimizer step `step`."""
        return self.train_sampler.position(step)

    def reshard(self, rank: int, world_size: int) -> None:
        """Go on as another rank of another number of ranks; iterators made before keep the old share."""
        for _, sampler in filter(None, (self._train, self._val)):
            sampler.set_ranks(rank, world_size)

    def train_steps(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """The micro-batches of each optimizer step from `start` up to `stop`, by one set of workers.

        Closing the iterator early stops the workers.
        """
        dataset, sampler = self._training()
        specs = (spec for step in range(start, stop) for spec in sampler.step(step))
        batches = self._read(dataset, specs)
        try:
            for _ in range(start, stop):
                yield list(islice(batches, sampler.accumulate))
        finally:
            batches.close()

    def val_batches(self) -> Iterator[Batch]:
        """This rank's share of the validation images, each image once over all ranks; possibly nothing."""
        if self._val is None:
            raise ConfigError("There is no validation split; set one, or switch evaluation off.")
        return self._read(*self._val)

    def _training(self) -> tuple[DetectionDataset, TrainSampler]:
        if self._train is None:
            raise ConfigError("There is no training split; set one, or only evaluate.")
        return self._train

    def _read(self, dataset: DetectionDataset, specs: Iterable[BatchSpec]) -> Generator[Batch, None, None]:
        return read_batches(dataset, specs, num_workers=self._settings.num_workers, pin_memory=self._pin_memory)


def _train_transform(settings: DataConfig) -> TrainTransform:
    return TrainTransform(
        max_size=settings.max_size,
        hflip=settings.hflip,
        vflip=settings.vflip,
        photometric=settings.photometric,
        iou_crop=settings.iou_crop,
        scale_jitter=(settings.scale_jitter[0], settings.scale_jitter[1]) if settings.scale_jitter else None,
    )
