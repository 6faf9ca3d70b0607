"""From a `BatchSpec` to a `Batch`: what a data worker does, which imports little else.

Annotations reach it packed in a few tensors, which are shared between processes instead of copied.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from retina_dist.data.cache import DecodedCache
from retina_dist.data.images import MAX_PIXELS, read_image
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import as_source, is_remote, read_all
from retina_dist.detection.batch import Batch
from retina_dist.detection.data.collate import (
    Sample,
    blank_images,
    collate,
    collate_raw,
    copy_to_canvas,
    filler,
    raw_canvas,
)
from retina_dist.detection.data.deferred_resize import ResizedBy
from retina_dist.detection.data.transforms import AugmentedSample, EvalTransform
from retina_dist.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from retina_dist.detection.readers.coco import Annotations

logger = logging.getLogger(__name__)

BadImagePolicy = Literal["error", "skip"]


class DetectionDataset(Dataset[Batch]):
    """Makes whole batches: `dataset[spec]` reads, transforms and collates the images that `spec` names.

    Randomness is keyed by (seed, epoch, image id): a batch does not depend on who makes it. An image that
    cannot be read raises ImageError, or with `on_bad_image="skip"` is left out with a warning;
    the weight of the batch shrinks with it, so that the other images count as before. Fillers make up for what is missing
    up to the spec's `size`, see `Batch`. Images behind a URL are fetched a batch at a time.

    With `resize="device"` the batches are `DeferredResizeBatch`es: their `to` flips and resizes. `cache` is a folder for
    decoded images, see `data.cache`; it changes only the speed.
    """

    def __init__(
        self,
        annotations: Annotations,
        transform: EvalTransform,
        *,
        seed: int = 0,
        on_bad_image: BadImagePolicy = "error",
        max_pixels: int = MAX_PIXELS,
        resize: ResizedBy = "workers",
        cache: str | None = None,
    ) -> None:
        if on_bad_image not in ("error", "skip"):
            raise ConfigError(f"on_bad_image={on_bad_image!r} is unknown; use 'error' or 'skip'.")
        if resize not in ("workers", "device"):
            raise ConfigError(f"resize={resize!r} is unknown; use 'workers' or 'device'.")
        self.resize = resize
        self.cache = DecodedCache(cache) if cache else None
        self.transform = transform
        self.seed = seed
        self.on_bad_image = on_bad_image
        self.max_pixels = max_pixels
        records = annotations.records
        self._sources = [as_source(record.path) for record in records]
        self._image_ids = torch.tensor([record.image_id for record in records], dtype=torch.int64)
        self._sizes = torch.tensor([(r.height, r.width) for r in records], dtype=torch.int64).reshape(-1, 2)
        # image i has rows ends[i] to ends[i + 1]
        counts = [len(labels) for labels in annotations.labels]
        self._ends = torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)
        boxes = [np.zeros((0, 4)), *annotations.boxes]
        labels = [np.zeros(0), *annotations.labels]
        self._boxes = torch.from_numpy(np.concatenate(boxes).astype(np.float32))
        self._labels = torch.from_numpy(np.concatenate(labels).astype(np.int64))

    def __len__(self) -> int:
        """Number of images, not of batches."""
        return len(self._sources)

    @property
    def sizes(self) -> np.ndarray:
        """[N, 2] (height, width) of the images as annotated."""
        return self._sizes.numpy()

    @property
    def most_boxes(self) -> int:
        """Of one image."""
        return int(self._ends.diff().max())

    def __getitem__(self, spec: BatchSpec) -> Batch:
        samples: list[Sample] = []
        fetched = self._fetched(spec.indices)
        images = blank_images(max(len(spec.indices), spec.size), self._room(spec))
        for index in spec.indices:
            try:
                sample = self.sample(index, spec, fetched.pop(index, None))
            except ImageError as error:
                if self.on_bad_image == "error":
                    raise
                logger.warning(str(error))
            else:
                # at once: the next image is then made in the same memory, which is at hand
                samples.append(copy_to_canvas(sample, images[len(samples)]))
        weight = spec.weight * len(samples) / max(1, len(spec.indices))
        samples += [filler(image, spec.canvas) for image in images[len(samples) : spec.size]]
        make = collate_raw if self.resize == "device" else collate
        return make(samples, spec.canvas, weight, images[: len(samples)])

    def sample(self, index: int, spec: BatchSpec, content: bytes | ImageError | None = None) -> Sample:
        """Image `index` as it is in the batches of `spec`; `content` is what reading its bytes gave, if that is done."""
        if isinstance(content, ImageError):
            raise content
        image = self.read(index, content)
        size = (image.shape[1], image.shape[2])
        ready = self.unresized(index, image, spec)
        image_id = int(self._image_ids[index])
        if self.resize == "workers":
            return Sample(*ready.resized(), image_id, size)
        ready = ready.for_device()
        return Sample(ready.image, ready.boxes, ready.labels, image_id, size, ready.size, ready.flips)

    def read(self, index: int, content: bytes | None = None) -> Tensor:
        """The pixels of image `index`."""
        height, width = self._sizes[index].tolist()
        if self.cache:
            return self.cache.read(self._sources[index], (width, height), self.max_pixels, content)
        return read_image(self._sources[index], (width, height), self.max_pixels, content)

    def _fetched(self, indices: Sequence[int]) -> dict[int, bytes | ImageError]:
        """What a network has to bring for these images, all at once: one after the other, each would wait for it."""
        wanted = [i for i in dict.fromkeys(indices) if is_remote(self._sources[i])]
        if self.cache:
            shown = {i: tuple(self._sizes[i].flip(0).tolist()) for i in wanted}
            wanted = [i for i in wanted if not self.cache.holds(self._sources[i], shown[i])]
        return dict(zip(wanted, read_all([self._sources[i] for i in wanted]), strict=True))

    def unresized(self, index: int, image: Tensor, spec: BatchSpec) -> AugmentedSample:
        """`image`, the pixels of image `index`, augmented for `spec`."""
        rows = slice(*self._ends[index : index + 2].tolist())
        return self.transform.unresized(
            image,
            self._boxes[rows],
            self._labels[rows],
            min_size=spec.min_size,
            canvas=spec.canvas,
            key=(self.seed, spec.epoch, int(self._image_ids[index])),
        )

    def _room(self, spec: BatchSpec) -> tuple[int, int]:
        """(height, width) that hold every `sample` of a batch. None is larger than its canvas, nor, raw, than it is stored."""
        if self.resize == "workers":
            return spec.canvas
        if not spec.indices:
            return raw_canvas(1, 1)
        height, width = self._sizes[list(spec.indices)].amax(dim=0).tolist()
        return raw_canvas(min(height, spec.canvas[0]), min(width, spec.canvas[1]))
