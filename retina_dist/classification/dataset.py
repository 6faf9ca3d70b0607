"""Batches of labelled images: transforms, the dataset of the data workers, and this rank's batches.

B images, S their side in px, K classes. Randomness depends on a key only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from retina_dist.base.seeding import derived_seed, torch_seed
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.data.canvases import Buckets
from retina_dist.data.module import Contents, DataModule, ImageDataset, TensorBatch
from retina_dist.data.samplers import BatchSpec

AUGMENTS = {
    "randaugment": v2.RandAugment,
    "trivialaugment": v2.TrivialAugmentWide,
}  # with torchvision's own settings
NUM_DRAWN, DRAWN_COLUMNS, DRAWN_SIDE = 24, 6, 192  # of the first batch
MIXTURES = {"mixup": v2.MixUp, "cutmix": v2.CutMix}


class TrainTransform:
    """Random crop, flips, automatic augmentation and random erasing, each if the settings ask for it."""

    def __init__(self, settings: ClassificationData) -> None:
        self.crop_scale = tuple(settings.crop_scale)
        steps: list[torch.nn.Module] = [v2.RandomHorizontalFlip(settings.hflip)]
        steps += [v2.RandomVerticalFlip(settings.vflip)] if settings.vflip else []
        steps += [AUGMENTS[settings.augment]()] if settings.augment else []
        # ImageNet's mean: the values of torchvision's recipes, which erase after the normalization
        steps += (
            [v2.RandomErasing(settings.erasing, value=(124, 116, 104))] if settings.erasing else []
        )
        self.rest = v2.Compose(steps)

    def __call__(self, image: Tensor, size: int, key: tuple[int | str, ...]) -> Tensor:
        """[3, h, w] uint8 -> [3, size, size] uint8."""
        with torch_seed(*key):
            top, left, height, width = (
                v2.RandomResizedCrop(size, scale=self.crop_scale).make_params([image]).values()
            )
            return self.rest(resized(image[:, top : top + height, left : left + width], size, size))


def eval_transform(image: Tensor, size: int, short_side: int) -> Tensor:
    """[3, h, w] uint8 -> its centre [3, size, size], after a resize that makes the shorter side `short_side`."""
    most = 4 * min(
        image.shape[1:]
    )  # no crop reaches beyond it, and a strip one pixel wide would grow without bound
    image = F.center_crop(image, [min(side, most) for side in image.shape[1:]])
    height, width = image.shape[1:]
    scale = short_side / min(height, width)
    whole = resized(
        image, max(short_side, round(height * scale)), max(short_side, round(width * scale))
    )
    return F.center_crop(whole, [size, size])


def resized(image: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, smoothed where the image shrinks."""
    # channels last, as decoders write them: three times as fast as planes
    image = image[None].contiguous(memory_format=torch.channels_last)[0]
    return F.resize_image(image, [height, width], antialias=True)


def mix(kind: str, alpha: float, image: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """Two images [3, S, S] uint8 in one by torchvision's "mixup" or "cutmix", and the share of the first."""
    pair, shares = MIXTURES[kind](alpha=alpha)(torch.stack([image, other]).float(), torch.eye(2))
    return pair[0].round_().to(torch.uint8), float(shares[0, 0])


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """B square images; the target of image i is `share[i]` of `labels[i]` and the rest of `other_labels[i]`.

    `weight` is the batch's share in the optimizer step: the trainer multiplies the mean loss over its real images by it.
    """

    images: Tensor  # [B, 3, S, S] uint8 RGB
    labels: Tensor  # [B] int64
    other_labels: Tensor  # [B] int64; of the image mixed in
    share: Tensor  # [B] float32; 1 where nothing is mixed in
    image_ids: Tensor  # [B] int64, places of the images in the data set; -1 of a filler
    weight: float = 1.0
    real: Tensor | None = None  # [B] bool, False for a filler; None without fillers


class Drawn(NamedTuple):
    """The image at a place of an epoch."""

    image: int  # in the data set
    partner: int | None = None  # the image mixed in
    kind: str = ""  # mixup | cutmix


class ClassificationDataset(ImageDataset[ImageBatch]):
    """Makes whole batches: `dataset[spec]` reads and transforms the images at the places of an epoch that `spec` names.

    Place i has image i. With `balanced`, the classes take turns. Which image is at a place, which one is mixed in, and how both are
    augmented depend on (seed, epoch, place) only: not on the process that makes the batch, nor on the other images in it.
    """

    def __init__(
        self, samples: Samples, settings: ClassificationData, *, seed: int = 0, train: bool = True
    ) -> None:
        super().__init__(
            samples.sources, None, bad_images=settings.bad_images, max_pixels=settings.max_pixels
        )
        self.settings, self.seed, self.train = settings, seed, train
        self.size = settings.image_size if train else settings.val_size  # px
        self.labels = samples.labels
        self.transform = TrainTransform(settings)
        self._balanced: tuple[int, np.ndarray] = (
            -1,
            self.labels,
        )  # an epoch, and the image at each of its places

    def __getitem__(self, spec: BatchSpec) -> ImageBatch:
        drawn = [self.drawn(place, spec.epoch) for place in spec.indices]
        fetched = self.fetch([i for d in drawn for i in (d.image, d.partner) if i is not None])
        count = max(len(spec.indices), spec.size if self.train else 1)
        images = torch.zeros(count, 3, self.size, self.size, dtype=torch.uint8).to(
            memory_format=torch.channels_last
        )
        labels = torch.zeros((2, count), dtype=torch.int64)
        share, indices = torch.ones(count), torch.full((count,), -1)
        made = 0
        for place, d in zip(spec.indices, drawn, strict=True):
            with self.skipping_bad_images():
                images[made], share[made] = self._image(d, place, spec.epoch, fetched)
                pair = [d.image, d.image if d.partner is None else d.partner]
                labels[:, made], indices[made] = torch.from_numpy(self.labels[pair]), d.image
                made += 1
        real = torch.arange(count) < made if made < count else None
        weight = spec.weight * made / max(1, len(spec.indices))
        return ImageBatch(images, labels[0], labels[1], share, indices, weight, real)

    def drawn(self, place: int, epoch: int) -> Drawn:
        """The image at a place of an epoch, and the image that is mixed in."""
        if not self.train:
            return Drawn(place)
        images = self._balanced_images(epoch) if self.settings.balanced else range(len(self))
        kinds = [kind for kind in MIXTURES if getattr(self.settings, kind) > 0]
        if not kinds:
            return Drawn(int(images[place]))
        draw = derived_seed(self.seed, epoch, place, "partner")
        return Drawn(
            int(images[place]), int(images[draw % len(self)]), kinds[draw // len(self) % len(kinds)]
        )

    def _balanced_images(self, epoch: int) -> np.ndarray:
        """[N] the image at each place: the classes take turns, and the images of each class come in shuffled rounds."""
        if self._balanced[0] != epoch:
            images, present = np.empty(len(self), np.int64), np.unique(self.labels)
            for turn, label in enumerate(present.tolist()):
                members, places = (
                    np.flatnonzero(self.labels == label),
                    np.arange(turn, len(self), len(present)),
                )
                rng = np.random.default_rng(derived_seed(self.seed, "balanced", epoch, label))
                rounds = [rng.permutation(members) for _ in range(-(-len(places) // len(members)))]
                images[places] = np.concatenate(rounds)[: len(places)]
            self._balanced = (epoch, images)
        return self._balanced[1]

    def _image(
        self, drawn: Drawn, place: int, epoch: int, fetched: Contents
    ) -> tuple[Tensor, float]:
        """The image at a place, transformed and mixed, and its share in the mixture."""
        pixels = self.read(drawn.image, fetched)
        if not self.train:
            return eval_transform(pixels, self.size, self.settings.val_short_side), 1.0
        image = self.transform(pixels, self.size, (self.seed, epoch, place))
        if drawn.partner is None:
            return image, 1.0
        other = self.transform(
            self.read(drawn.partner, fetched), self.size, (self.seed, epoch, place, "partner")
        )
        with torch_seed(self.seed, epoch, place, "mix"):
            return mix(drawn.kind, getattr(self.settings, drawn.kind), image, other)


class ClassificationDataModule(DataModule[ImageBatch]):
    """The batches of this rank; `job` are the other arguments of `DataModule`."""

    def __init__(
        self,
        settings: ClassificationData,
        *,
        train: Samples | None,
        val: Samples | None,
        seed: int = 0,
        **job: Any,
    ) -> None:
        training = None if train is None else ClassificationDataset(train, settings, seed=seed)
        validation = None if val is None else ClassificationDataset(val, settings, train=False)
        super().__init__(
            settings, _on_one_canvas(training), _on_one_canvas(validation), seed=seed, **job
        )


def _on_one_canvas(
    dataset: ClassificationDataset | None,
) -> tuple[ClassificationDataset, Buckets] | None:
    if dataset is None:
        return None
    canvas = np.full((1, 1, 2), dataset.size)
    return dataset, Buckets(np.zeros(len(dataset), np.int64), (dataset.size,), canvas)


def draw_first_batch(data: ClassificationDataModule, classes: Sequence[str], path: Path) -> None:
    """The images of the first step after augmentation, with their targets above; no file without images."""
    from retina_dist.reporting.pictures import sheet, titled

    path.unlink(missing_ok=True)  # of an earlier part of the run
    batch = next(iter(data.train_steps(0, 1)))[0]
    tiles = []
    for i in batch.real_rows()[:NUM_DRAWN]:
        share, text = float(batch.share[i]), classes[int(batch.labels[i])]
        text = text if share == 1 else f"{share:.2f} {text} + {classes[int(batch.other_labels[i])]}"
        tiles.append(titled(resized(batch.images[i].cpu(), DRAWN_SIDE, DRAWN_SIDE), text))
    if tiles:
        sheet(tiles, DRAWN_COLUMNS).save(path, quality=92)
