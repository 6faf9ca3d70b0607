"""A batch of images with their classes. B images, S their side in pixels, K classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from retina_dist.data.batch import TensorBatch


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """B square images; the target of image i is `share[i]` of `labels[i]` and the rest of `other_labels[i]`.

    `weight` is the batch's share in the optimizer step: the trainer multiplies the mean loss over its real images by it.
    """

    images: Tensor  # [B, 3, S, S] uint8 RGB
    labels: Tensor  # [B] int64
    other_labels: Tensor  # [B] int64; of the image mixed in
    share: Tensor  # [B] float32; 1 where nothing is mixed in
    indices: Tensor  # [B] int64, of the images in the data set; -1 of a filler
    weight: float = 1.0
    real: Tensor | None = None  # [B] bool, False for a filler; None: there is no filler
