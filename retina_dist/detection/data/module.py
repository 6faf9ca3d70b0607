"""Training and validation batches of one rank, from the settings of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from retina_dist.data.canvases import Buckets, make_buckets
from retina_dist.data.module import DataModule
from retina_dist.data.samplers import EvalSampler, TrainSampler
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import padded_rows
from retina_dist.detection.data.dataset import DetectionDataset
from retina_dist.detection.data.deferred_resize import resized_by
from retina_dist.detection.data.transforms import EvalTransform, TrainTransform
from retina_dist.detection.settings import DetectionData
from retina_dist.errors import ConfigError

if TYPE_CHECKING:
    from retina_dist.detection.readers.coco import Annotations

CPU = torch.device("cpu")


class CocoDataModule(DataModule[DetectionDataset, Batch]):
    """The batches of rank `rank`, read and resized as `settings` say, for `device`.

    `train` or `val` may be None where only the other is used.
    """

    def __init__(
        self,
        settings: DetectionData,
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
        training, validation = None, None
        reading: dict[str, Any] = {"seed": seed, "on_bad_image": settings.bad_images}
        reading |= {"max_pixels": settings.max_pixels, "cache": settings.cache}
        reading |= {"resize": resized_by(settings.resize, device)}
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
        if train is not None:
            dataset = DetectionDataset(train, _train_transform(settings), **reading)
            sampler = TrainSampler(
                buckets=_buckets(settings, dataset, settings.min_sizes),
                batch_size=settings.batch_size,
                accumulate=accumulate,
                seed=seed,
                shuffle=settings.shuffle,
                **ranks,
            )
            training = (dataset, sampler)
        if val is not None:
            val_dataset = DetectionDataset(val, EvalTransform(max_size=settings.max_size), **reading)
            buckets = _buckets(settings, val_dataset, [settings.val_min_size or max(settings.min_sizes)])
            validation = (val_dataset, EvalSampler(buckets=buckets, batch_size=settings.val_batch_size, **ranks))
        super().__init__(training, validation, num_workers=settings.num_workers, pin_memory=device.type == "cuda")

    @property
    def num_train_shapes(self) -> int:
        """How many shapes this rank's training batches can have: canvases x rows of boxes, with and without fillers."""
        dataset = self.train_dataset
        rows = {padded_rows(count) for count in range(dataset.most_boxes + 1)}
        canvases = self.train_sampler.buckets.all_canvases()
        return len(canvases) * len(rows) * self.num_fillings(dataset.on_bad_image == "skip")


def _buckets(settings: DetectionData, dataset: DetectionDataset, min_sizes: Sequence[int]) -> Buckets:
    return make_buckets(
        dataset.sizes, min_sizes=min_sizes, max_size=settings.max_size, num_buckets=settings.num_buckets
    )


def _train_transform(settings: DetectionData) -> TrainTransform:
    return TrainTransform(
        max_size=settings.max_size,
        hflip=settings.hflip,
        vflip=settings.vflip,
        photometric=settings.photometric,
        iou_crop=settings.iou_crop,
        scale_jitter=(settings.scale_jitter[0], settings.scale_jitter[1]) if settings.scale_jitter else None,
    )
