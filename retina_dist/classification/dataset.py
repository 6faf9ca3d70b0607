"""Batches of labelled images: the dataset of the data workers, and this rank's batches.

B images, S their side in px, K classes. Randomness depends on a key only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from retina_dist.base.seeding import derived_seed, torch_seed
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.transforms import TrainTransform, eval_transform, mix
from retina_dist.data.buckets import Buckets
from retina_dist.data.module import Contents, DataModule, ImageDataset, TensorBatch, skipping
from retina_dist.data.samplers import BatchSpec

if TYPE_CHECKING:
    from retina_dist.data.augmentation import KeyedAugmentation


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """B square images with their targets.

    That of image i is `share[i]` of `labels[i]` and the rest of `other_labels[i]`.

    `weight` is the batch's share in the optimizer step: the trainer multiplies the mean loss over
    its real images by it.
    """

    images: Tensor  # [B, 3, S, S] uint8 RGB
    labels: Tensor  # [B] int64
    other_labels: Tensor  # [B] int64; of the image mixed in
    share: Tensor  # [B] float32; 1 where nothing is mixed in
    image_ids: Tensor  # [B] int64, places of the images in the data set; -1 of padding
    weight: float = 1.0
    real: Tensor | None = None  # [B] bool, False for a padding sample; None without any


class Drawn(NamedTuple):
    """The image at a place of an epoch."""

    image: int  # in the data set
    partner: int  # the image mixed in, or the same
    kind: str = ""  # mixup | cutmix, "" without a mixture


class ClassificationDataset(ImageDataset[ImageBatch]):
    """Makes whole batches.

    `dataset[spec]` reads and transforms the images at the places of an epoch that `spec` names.
    Place i has image i; with `balanced`, the classes take turns. Which image is at a place, which
    one is mixed in, and how both are augmented depend on (seed, epoch, place) only: not on the
    process that makes the batch, nor on the other images in it.
    """

    def __init__(
        self,
        samples: Samples,
        settings: ClassificationData,
        *,
        seed: int = 0,
        train: bool = True,
        augment: KeyedAugmentation | None = None,
    ) -> None:
        super().__init__(
            samples.sources, None, bad_images=settings.bad_images, max_pixels=settings.max_pixels
        )
        self.settings = settings
        self.seed = seed
        self.train = train
        self.size = settings.image_size if train else settings.val_size  # px
        self.labels = samples.labels
        self.transform = TrainTransform(settings)
        self.alphas = {"mixup": settings.mixup, "cutmix": settings.cutmix}
        self._epoch = -1
        # The image at each place of `_epoch`; with `balanced` it changes.
        self._order = np.arange(len(samples))
        self.augment = augment
        if augment is not None:
            with skipping(self.bad_images):
                augment.check(self.read(0))

    def __getitem__(self, spec: BatchSpec) -> ImageBatch:
        drawn = [self.drawn(place, spec.epoch) for place in spec.indices]
        needed: list[int] = []
        for one in drawn:
            needed += (one.image, one.partner)
        fetched = self.fetch(needed)

        count = max(len(spec.indices), spec.size if self.train else 1)
        images = torch.zeros(count, 3, self.size, self.size, dtype=torch.uint8)
        images = images.to(memory_format=torch.channels_last)
        labels = torch.zeros((2, count), dtype=torch.int64)
        share = torch.ones(count)
        indices = torch.full((count,), -1)

        made = 0
        for place, d in zip(spec.indices, drawn, strict=True):
            with skipping(self.bad_images):
                images[made], share[made] = self._image(d, place, spec.epoch, fetched)
                labels[:, made] = torch.from_numpy(self.labels[[d.image, d.partner]])
                indices[made] = d.image
                made += 1

        real = torch.arange(count) < made if made < count else None
        weight = spec.weight * made / max(1, len(spec.indices))
        return ImageBatch(images, labels[0], labels[1], share, indices, weight, real)

    def drawn(self, place: int, epoch: int) -> Drawn:
        """The image at a place of an epoch, and the image that is mixed in."""
        if not self.train:
            return Drawn(place, place)
        if self.settings.balanced and self._epoch != epoch:
            self._epoch = epoch
            self._order = class_balanced_order(self.labels, self.seed, epoch)
        image = int(self._order[place])
        kinds = [kind for kind, alpha in self.alphas.items() if alpha]
        if not kinds:
            return Drawn(image, image)
        draw = derived_seed(self.seed, epoch, place, "partner")
        partner = int(self._order[draw % len(self)])
        return Drawn(image, partner, kinds[draw // len(self) % len(kinds)])

    def _image(
        self, drawn: Drawn, place: int, epoch: int, fetched: Contents
    ) -> tuple[Tensor, float]:
        """The image at a place, transformed and mixed, and its share in the mixture."""
        if not self.train:
            pixels = self.read(drawn.image, fetched)
            return eval_transform(pixels, self.size, self.settings.val_short_side), 1.0
        image = self._augmented(drawn.image, fetched, (self.seed, epoch, place))
        if not drawn.kind:
            return image, 1.0
        key = (self.seed, epoch, place, "partner")
        other = self._augmented(drawn.partner, fetched, key)
        with torch_seed(self.seed, epoch, place, "mix"):
            return mix(drawn.kind, self.alphas[drawn.kind], image, other)

    def _augmented(self, index: int, fetched: Contents, key: tuple[int | str, ...]) -> Tensor:
        image = self.read(index, fetched)
        if self.augment is not None:
            (image,) = self.augment(image, key=key)
        return self.transform(image, self.size, key)


def class_balanced_order(labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """[N] the image at each place of an epoch where classes are drawn equally often; `labels` [N].

    The classes take turns, and the images of each class come in shuffled rounds.
    """
    images = np.empty(len(labels), np.int64)
    present = np.unique(labels).tolist()
    for turn, label in enumerate(present):
        members = np.flatnonzero(labels == label)
        places = np.arange(turn, len(labels), len(present))
        rng = np.random.default_rng(derived_seed(seed, "balanced", epoch, label))
        num_rounds = math.ceil(len(places) / len(members))
        rounds = [rng.permutation(members) for _ in range(num_rounds)]
        images[places] = np.concatenate(rounds)[: len(places)]
    return images


class ClassificationDataModule(DataModule[ImageBatch]):
    """The batches of this rank; `job` are the other arguments of `DataModule`."""

    def __init__(
        self,
        settings: ClassificationData,
        *,
        train: Samples | None,
        val: Samples | None,
        seed: int = 0,
        augment: KeyedAugmentation | None = None,
        **job: Any,
    ) -> None:
        training = validation = None
        if train is not None:
            dataset = ClassificationDataset(train, settings, seed=seed, augment=augment)
            training = _in_one_bucket(dataset)
        if val is not None:
            validation = _in_one_bucket(ClassificationDataset(val, settings, train=False))
        super().__init__(settings, training, validation, seed=seed, **job)


def _in_one_bucket(dataset: ClassificationDataset) -> tuple[ClassificationDataset, Buckets]:
    shape = np.full((1, 1, 2), dataset.size)
    return dataset, Buckets(np.zeros(len(dataset), np.int64), (dataset.size,), shape)
