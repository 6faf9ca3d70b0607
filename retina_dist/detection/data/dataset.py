"""The dataset of the data workers, from a `BatchSpec` to a `Batch`, and this rank's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retina_dist.data.buckets import Buckets, make_buckets
from retina_dist.data.module import Contents, DataModule, ImageDataset, skipping
from retina_dist.data.samplers import BatchSpec, FloatArray, repeat_factors
from retina_dist.detection.batch import Batch, Sample, blank_images, collate, copy_to_canvas, filler
from retina_dist.detection.data.transforms import Transform
from retina_dist.detection.settings import DetectionData

if TYPE_CHECKING:
    from retina_dist.data.augmentation import KeyedAugmentation
    from retina_dist.detection.readers.annotations import Annotations


class DetectionDataset(ImageDataset[Batch]):
    """Makes whole batches: `dataset[spec]` reads, transforms and collates the images that `spec`
    names.

    Randomness is keyed by (seed, epoch, image id): a batch does not depend on who makes it. Fillers
    make up for missing images up to the spec's `size`, see `Batch`; `reading` are options of
    `ImageDataset`. `sizes` [N, 2] are (height, width) as annotated.
    """

    def __init__(
        self,
        annotations: Annotations,
        transform: Transform,
        *,
        seed: int = 0,
        augment: KeyedAugmentation | None = None,
        **reading: Any,
    ) -> None:
        # tensors are shared between processes, not copied
        sizes = [(record.height, record.width) for record in annotations.records]
        self.sizes = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
        super().__init__(annotations.sources, self.sizes, **reading)
        self.transform = transform
        self.augment = augment
        self.seed = seed
        self.image_ids = torch.tensor(annotations.image_ids, dtype=torch.int64)
        # image i has rows ends[i] to ends[i + 1]
        self._ends = torch.tensor([0, *map(len, annotations.labels)]).cumsum(0)
        boxes = np.concatenate([np.zeros((0, 4), np.float32), *annotations.boxes])
        labels = np.concatenate([np.zeros(0, np.int64), *annotations.labels])
        self._boxes = torch.from_numpy(boxes)
        self._labels = torch.from_numpy(labels)
        if augment is not None:
            with skipping(self.bad_images):
                augment.check(self.read(0), *self.boxes_of(0))

    def __getitem__(self, spec: BatchSpec) -> Batch:
        samples: list[Sample] = []
        fetched = self.fetch([index % len(self) for index in spec.indices])
        images = blank_images(max(len(spec.indices), spec.size), spec.padded_shape)
        for index in spec.indices:
            with skipping(self.bad_images):
                # copied at once: the next image is then made in the same memory, which is at hand
                samples.append(
                    copy_to_canvas(self.sample(index, spec, fetched), images[len(samples)])
                )
        weight = spec.weight * len(samples) / max(1, len(spec.indices))
        samples += [filler(image, spec.padded_shape) for image in images[len(samples) : spec.size]]
        return collate(samples, spec.padded_shape, weight, images[: len(samples)])

    def sample(self, index: int, spec: BatchSpec, fetched: Contents | None = None) -> Sample:
        """Image `index` as it is in the batches of `spec`; `fetched` as for `read`."""
        again, index = divmod(index, len(self))
        image = self.read(index, fetched)
        stored = image.shape[1], image.shape[2]
        image_id = int(self.image_ids[index])
        key: tuple[int, ...] = (self.seed, spec.epoch, image_id)
        if again:
            key = (*key, again)
        boxes, labels = self.boxes_of(index)
        if self.augment is not None:
            image, boxes, labels = self.augment(image, boxes, labels, key=key)
        ready = self.transform(
            image, boxes, labels, min_size=spec.min_size, canvas=spec.padded_shape, key=key
        )
        return Sample(*ready, image_id, stored)

    def boxes_of(self, index: int) -> tuple[Tensor, Tensor]:
        """Boxes [n, 4] xyxy and labels [n] of image `index`."""
        rows = slice(*self._ends[index : index + 2].tolist())
        return self._boxes[rows], self._labels[rows]


class CocoDataModule(DataModule[Batch]):
    """The batches of this rank; `job` are the other arguments of `DataModule`."""

    def __init__(
        self,
        settings: DetectionData,
        *,
        train: Annotations | None,
        val: Annotations | None,
        seed: int = 0,
        augment: KeyedAugmentation | None = None,
        **job: Any,
    ) -> None:
        training = None
        validation = None
        repeats = None
        reading: dict[str, Any] = {
            "seed": seed,
            "bad_images": settings.bad_images,
            "max_pixels": settings.max_pixels,
        }
        if train is not None:
            transform = Transform(
                max_size=settings.max_size,
                hflip=settings.hflip,
                vflip=settings.vflip,
                photometric=settings.photometric,
                scale_jitter=settings.scale_jitter,
            )
            dataset = DetectionDataset(train, transform, augment=augment, **reading)
            training = dataset, buckets_of(settings, dataset.sizes)
            repeats = repeats_of(settings, train)
        if val is not None:
            dataset = DetectionDataset(val, Transform(max_size=settings.max_size), **reading)
            min_size = settings.val_min_size or max(settings.min_sizes)
            validation = dataset, buckets_of(settings, dataset.sizes, [min_size])
        super().__init__(settings, training, validation, repeats=repeats, seed=seed, **job)


def repeats_of(settings: DetectionData, train: Annotations) -> FloatArray | None:
    """How often an epoch holds each training image; None for once."""
    threshold = settings.repeat_threshold
    return repeat_factors(train.labels, threshold) if threshold else None


def buckets_of(
    settings: DetectionData, sizes: npt.ArrayLike, min_sizes: Sequence[int] | None = None
) -> Buckets:
    """The buckets of images of `sizes` [N, 2] (height, width), at `min_sizes`, by default the
    settings'.
    """
    return make_buckets(
        sizes,
        min_sizes=min_sizes or settings.min_sizes,
        max_size=settings.max_size,
        num_buckets=settings.num_buckets,
    )
