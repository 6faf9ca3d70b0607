"""Aspect-ratio buckets: images of similar shape are padded to one shape.

Padding each batch to its largest image wastes work and gives every step another shape. A few fixed
shapes waste less (on COCO 2017, six of them cost 3 % more pixels than padding each image
separately), and compiled kernels can be reused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt

Shape = tuple[int, int]  # (height, width)
IntArray = npt.NDArray[np.int64]


def resize_scale(height: int, width: int, min_size: int, max_size: int) -> float:
    """The factor that makes the short side `min_size`, or less if the long side would exceed
    `max_size`.
    """
    return min(min_size / min(height, width), max_size / max(height, width))


def resized_size(height: int, width: int, min_size: int, max_size: int) -> Shape:
    """(height, width) after the resize of torchvision's `GeneralizedRCNNTransform`: rounded down,
    at least 1.

    >>> resized_size(480, 640, 800, 1333)
    (800, 1066)
    """
    return scaled_size(height, width, resize_scale(height, width, min_size, max_size))


def scaled_size(height: int, width: int, scale: float) -> Shape:
    """(height, width) times `scale`, rounded down, at least 1."""
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


@dataclass(frozen=True, eq=False)
class Buckets:
    """A partition of N images into K buckets, from the smallest padded shape to the largest."""

    of_image: IntArray  # [N] bucket of each image
    min_sizes: tuple[int, ...]  # S sizes of the short side
    # [S, K, 2] (height, width) that fits every image of the bucket at that size
    padded_shapes: IntArray

    def __len__(self) -> int:
        return int(self.padded_shapes.shape[1])

    @property
    def num_images(self) -> int:
        return len(self.of_image)

    def padded_shape(self, indices: Sequence[int] | IntArray, min_size: int) -> Shape:
        """(height, width) for a batch: its bucket's shape, or one that fits all if it mixes
        buckets.
        """
        used = np.unique(self.of_image[np.asarray(indices)])
        height, width = self.padded_shapes[self.min_sizes.index(min_size), used].max(axis=0)
        return int(height), int(width)

    def all_padded_shapes(self) -> set[Shape]:
        """The shape of every possible batch: of one bucket, or of several.

        Two of those set the height and the width.
        """
        found = set()
        for pair in combinations_with_replacement(range(len(self)), 2):
            for height, width in self.padded_shapes[:, pair].max(axis=1).tolist():
                found.add((height, width))
        return found

    def next_larger(self, bucket: int) -> int | None:
        """The smallest other bucket with room for this one's images at every size, or None."""
        larger = self.padded_shapes[:, bucket + 1 :]
        fits = (larger >= self.padded_shapes[:, bucket, None]).all(axis=(0, 2))
        if not fits.any():
            return None
        return bucket + 1 + int(fits.argmax())


def make_buckets(
    sizes: npt.ArrayLike,
    *,
    min_sizes: Sequence[int],
    max_size: int,
    num_buckets: int = 6,
    divisor: int = 32,
) -> Buckets:
    """Split images of `sizes` [N, 2] (height, width) into at most `num_buckets` runs of similar
    aspect ratio.

    The cut points minimize the total padded area, summed over images and `min_sizes`; if fewer
    buckets reach the same area, there are fewer. Padded sides are multiples of `divisor`. There is
    at least one image.
    """
    stored = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)

    # merge equal sizes, then equal padded shapes: the search below handles dozens of kinds instead
    # of every image
    base = int(stored.max()) + 1  # one number a size, which sorts as the pair does
    kinds, image_kind = np.unique(stored[:, 0] * base + stored[:, 1], return_inverse=True)
    stored = np.column_stack(np.divmod(kinds, base))
    resized = []
    for height, width in stored.tolist():
        resized.append([resized_size(height, width, size, max_size) for size in min_sizes])
    padded = -(-np.array(resized, dtype=np.int64) // divisor) * divisor  # [kinds, S, 2]
    shapes, shape_of_kind = np.unique(padded.reshape(len(padded), -1), axis=0, return_inverse=True)
    shapes = shapes.reshape(-1, len(min_sizes), 2)
    image_shape = shape_of_kind.reshape(-1)[image_kind.reshape(-1)]

    # from tall to wide, so that a run of neighbours is a range of aspect ratios
    by_ratio = np.argsort((shapes[..., 1] / shapes[..., 0]).mean(axis=1), kind="stable")
    counts = np.bincount(image_shape, minlength=len(shapes))
    runs = _best_runs(shapes[by_ratio], counts[by_ratio], num_buckets)

    largest = [shapes[by_ratio[run]].max(axis=0) for run in runs]
    padded_shapes = np.stack(largest, axis=1)  # [S, K, 2]
    by_area = np.argsort(padded_shapes.prod(axis=2).sum(axis=0), kind="stable")
    bucket_of_shape = np.empty(len(shapes), dtype=np.int64)
    for bucket, run in enumerate(by_area):
        bucket_of_shape[by_ratio[runs[run]]] = bucket
    return Buckets(bucket_of_shape[image_shape], tuple(min_sizes), padded_shapes[:, by_area])


def _best_runs(shapes: IntArray, counts: IntArray, most: int) -> list[slice]:
    """Cut `shapes` [U, S, 2] of `counts` [U] images into at most `most` runs of least total area,
    by dynamic programming.
    """
    total = len(counts)
    most = min(most, total)
    # [k, end]: the least area of shapes[:end] in k runs, and where the last of those runs begins
    area = np.full((most + 1, total + 1), np.inf)
    start_of = np.zeros((most + 1, total + 1), dtype=np.int64)
    area[0, 0] = 0.0
    for start in range(total):
        # of the run start..end, for every end
        largest = np.maximum.accumulate(shapes[start:], axis=0)
        run_area = largest.prod(axis=2).sum(axis=1) * np.cumsum(counts[start:])
        for k in range(1, most + 1):
            candidate = area[k - 1, start] + run_area
            better = candidate < area[k, start + 1 :]
            area[k, start + 1 :][better] = candidate[better]
            start_of[k, start + 1 :][better] = start
    runs: list[slice] = []
    end = total
    for k in range(int(area[:, total].argmin()), 0, -1):  # argmin: the fewest runs among equals
        start = int(start_of[k, end])
        runs.insert(0, slice(start, end))
        end = start
    return runs
