"""Training and validation batches from flat settings."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from retina_dist.data.canvases import make_buckets
from retina_dist.data.images import MAX_PIXELS
from retina_dist.data.loading import read_batches, start_fork_server
from retina_dist.data.samplers import BatchSpec, EvalSampler, TrainSampler
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import padded_rows
from retina_dist.detection.data.dataset import BadImagePolicy, DetectionDataset, ResizedBy
from retina_dist.detection.data.transforms import EvalTransform, TrainTransform
from retina_dist.errors import ConfigError

if TYPE_CHECKING:
    from retina_dist.detection.readers.coco import Annotations


class CocoDataModule:
    """The batches of this rank. `batch_size` is the number of images per optimizer step over all ranks.

    `min_sizes` are the short sides, in pixels, that training steps choose from; `max_size` bounds the long
    side. `val_batch_size` is that of one rank, by default the size of a training micro-batch. `train` or
    `val` may be None where only the other is used. `num_workers` processes read ahead; 0 reads in the main
    process. `resize` says who flips and resizes, `cache` where decoded images are kept; see `DetectionDataset`.
    """

    def __init__(
        self,
        *,
        train: Annotations | None,
        val: Annotations | None,
        batch_size: int,
        val_batch_size: int | None = None,
        accumulate: int = 1,
        min_sizes: Sequence[int] = (800,),
        val_min_size: int | None = None,
        max_size: int = 1333,
        num_buckets: int = 6,
        hflip: float = 0.5,
        vflip: float = 0.0,
        photometric: float = 0.0,
        iou_crop: float = 0.0,
        scale_jitter: tuple[float, float] | None = None,
        shuffle: bool = True,
        num_workers: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        on_bad_image: BadImagePolicy = "error",
        max_pixels: int = MAX_PIXELS,
        resize: ResizedBy = "workers",
        cache: str | None = None,
        pin_memory: bool = True,
    ) -> None:
        if num_workers < 0:
            raise ConfigError(f"num_workers={num_workers} is negative; use 0 to read in the main process.")
        reading: dict[str, Any] = {"seed": seed, "on_bad_image": on_bad_image, "max_pixels": max_pixels}
        reading |= {"resize": resize, "cache": cache}
        self._num_workers = num_workers
        self._pin_memory = pin_memory
        self._train: tuple[DetectionDataset, TrainSampler] | None = None
        self._val: tuple[DetectionDataset, EvalSampler] | None = None
        if train is not None:
            transform = TrainTransform(
                max_size=max_size,
                hflip=hflip,
                vflip=vflip,
                photometric=photometric,
                iou_crop=iou_crop,
                scale_jitter=scale_jitter,
            )
            dataset = DetectionDataset(train, transform, **reading)
            sampler = TrainSampler(
                buckets=make_buckets(dataset.sizes, min_sizes=min_sizes, max_size=max_size, num_buckets=num_buckets),
                batch_size=batch_size,
                accumulate=accumulate,
                rank=rank,
                world_size=world_size,
                seed=seed,
                shuffle=shuffle,
            )
            self._train = (dataset, sampler)
        if val is not None:
            val_dataset = DetectionDataset(val, EvalTransform(max_size=max_size), **reading)
            val_sampler = EvalSampler(
                buckets=make_buckets(
                    val_dataset.sizes,
                    min_sizes=(val_min_size or max(min_sizes),),
                    max_size=max_size,
                    num_buckets=num_buckets,
                ),
                batch_size=val_batch_size or -(-batch_size // (world_size * accumulate)),
                rank=rank,
                world_size=world_size,
            )
            self._val = (val_dataset, val_sampler)
        if num_workers:
            start_fork_server("retina_dist.detection.data.dataset")

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
        return read_batches(dataset, specs, num_workers=self._num_workers, pin_memory=self._pin_memory)
