"""The values that travel between data, model, evaluator and trainer.

Also how images of different sizes become one `Batch`. Letters in shape comments, here and in the
whole package: B images of a batch, A anchors, M boxes an image is padded to, N detections, K
classes, H and W the padded shape in pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from retina_dist.data.module import TensorBatch

MIN_ROWS = 8  # Minimum padded rows of boxes; few distinct M let kernels be reused.
NO_IMAGE = -1  # the image id of a padding sample


class Detections(TypedDict):
    """Detected objects of one image, best score first."""

    boxes: Tensor  # [N, 4] float32 xyxy, pixels of the stored image (EXIF orientation applied)
    scores: Tensor  # [N] float32 in 0..1
    labels: Tensor  # [N] int64, contiguous labels (not COCO category ids)


def with_area(detections: Detections) -> Detections:
    """The detections whose boxes have an area, on the CPU.

    A box that lies beside the image has been clipped to its border.
    """
    boxes = detections["boxes"]
    kept = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    return Detections(
        boxes=boxes[kept].cpu(),
        scores=detections["scores"][kept].cpu(),
        labels=detections["labels"][kept].cpu(),
    )


def joined(parts: Sequence[Detections]) -> list[Tensor]:
    """Boxes, scores and labels of all images."""
    columns = []
    for name in ("boxes", "scores", "labels"):
        columns.append(torch.cat(list(map(itemgetter(name), parts))))
    return columns


def scaled(scores: Tensor, temperature: float) -> Tensor:
    """sigmoid(logit(score) / temperature); the scores themselves for 1.

    It is computed in float64, so that rounding does not change the order of scores.
    """
    if temperature == 1:
        return scores
    return torch.sigmoid(torch.logit(scores.double()) / temperature).to(scores.dtype)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """B images of one padded shape, with their boxes padded to a common number.

    `weight` is the batch's share in the optimizer step: the trainer multiplies the mean loss over
    its real images by it, so that micro-batches and ranks of unequal size add up to the mean over
    the whole step. Padding samples, black images without boxes at the end of the batch, keep its
    shape; they are in no loss, no gradient and no statistic.
    """

    # [B, 3, H, W] RGB, 0 to 255, uint8 or float32, each image in the top left corner, zeros
    # elsewhere
    images: Tensor
    image_sizes: Tensor  # [B, 2] int64 (height, width) of the image within the padded shape
    original_sizes: Tensor  # [B, 2] int64 (height, width) of the stored image
    image_ids: Tensor  # [B] int64
    # [B, M, 4] float32 xyxy, pixels of the padded shape; rows past num_boxes are the unit box 0, 0,
    # 1, 1
    boxes: Tensor
    labels: Tensor  # [B, M] int64; rows past num_boxes are 0
    num_boxes: Tensor  # [B] int64
    weight: float = 1.0
    real: Tensor | None = None  # [B] bool, False for a padding sample; None: there is none


class Sample(NamedTuple):
    """One image, resized for its padded shape, with its boxes."""

    image: Tensor  # [3, h, w] uint8
    boxes: Tensor  # [n, 4] float32 xyxy, pixels of the padded shape
    labels: Tensor  # [n] int64
    image_id: int
    original_size: tuple[int, int]  # (height, width) of the stored image
    real: bool = True  # False for a padding sample


def filler(image: Tensor, canvas: tuple[int, int]) -> Sample:
    """A sample that only fills a batch up, of a black `image` of its padded shape."""
    return Sample(image, torch.zeros(0, 4), torch.zeros(0), NO_IMAGE, canvas, real=False)


def collate(
    samples: Sequence[Sample],
    canvas: tuple[int, int],
    weight: float = 1.0,
    images: Tensor | None = None,
) -> Batch:
    """At least one sample -> their batch.

    M is the largest number of boxes, but at least 1, rounded up to a power of two from 8 on.

    Args:
        samples: none has an image larger than `canvas`.
        canvas: the padded shape (height, width) in pixels.
        weight: of the batch.
        images: [B, 3, H, W], the batch's when the samples lie in them already; channels last in
            memory, as the resize makes them.
    """
    counts = [len(sample.labels) for sample in samples]
    most = padded_rows(max(counts))
    boxes = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(len(samples), most, 1)  # [B, M, 4]
    labels = torch.zeros(len(samples), most, dtype=torch.int64)
    for i, sample in enumerate(samples):
        boxes[i, : counts[i]] = sample.boxes
        labels[i, : counts[i]] = sample.labels
    if images is None:
        images = blank_images(len(samples), canvas)
        for place, sample in zip(images, samples, strict=True):
            copy_to_canvas(sample, place)
    real = [sample.real for sample in samples]
    return Batch(
        images=images,
        image_sizes=torch.tensor([sample.image.shape[-2:] for sample in samples]),
        original_sizes=torch.tensor([sample.original_size for sample in samples]),
        image_ids=torch.tensor([sample.image_id for sample in samples]),
        boxes=boxes,
        labels=labels,
        num_boxes=torch.tensor(counts),
        weight=weight,
        real=None if all(real) else torch.tensor(real),
    )


def blank_batch(count: int, canvas: tuple[int, int], most_boxes: int) -> Batch:
    """Black images without boxes, in the shapes of the largest batch of the padded shape `canvas`.

    `most_boxes` are those of its fullest image.
    """
    batch = collate([filler(torch.zeros(3, *canvas, dtype=torch.uint8), canvas)] * count, canvas)
    rows = padded_rows(most_boxes)
    return replace(
        batch,
        boxes=torch.zeros(count, rows, 4),
        labels=batch.labels.new_zeros(count, rows),
        real=None,
    )


def padded_rows(count: int) -> int:
    """M of a batch whose fullest image has `count` boxes."""
    return max(MIN_ROWS, 1 << (max(1, count) - 1).bit_length())


def blank_images(count: int, canvas: tuple[int, int]) -> Tensor:
    """Black ones, [count, 3, H, W] uint8 in channels-last memory.

    In a data worker they lie in memory that the main process shares, or else they would be copied
    there afterwards.
    """
    shape = (count, *canvas, 3)
    if get_worker_info() is None:
        images = torch.zeros(shape, dtype=torch.uint8)
    else:
        # fresh pages of the system, which are zero
        images = (
            torch.tensor([], dtype=torch.uint8)
            .set_(torch.UntypedStorage._new_shared(math.prod(shape)))
            .view(shape)
        )
    return images.permute(0, 3, 1, 2)


def copy_to_canvas(sample: Sample, place: Tensor) -> Sample:
    """The sample with its image in the top left corner of `place` [3, H, W], and no longer where it
    was.
    """
    height, width = sample.image.shape[-2:]
    corner = place[:, :height, :width]
    corner[:] = sample.image
    return sample._replace(image=corner)
