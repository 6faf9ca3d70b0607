"""Samplers: the images of each optimizer step, and each rank's share of them.

Every batch is a pure function of the step: a resume replays nothing, and with another number of
ranks sees the same images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retina_dist.base.seeding import derived_seed
from retina_dist.data.buckets import Buckets, IntArray

FloatArray = npt.NDArray[np.float64]


def own_slots(group: IntArray, count: int, rank: int, world_size: int) -> list[IntArray]:
    """The rank's run of the `count` slots of a group of images."""
    own = count // world_size
    return np.array_split(group, count)[rank * own : (rank + 1) * own]


def divide_up(count: int, size: int) -> int:
    """How many groups of `size` hold `count`: the quotient, rounded up."""
    return -(-count // size)


@dataclass(frozen=True)
class BatchSpec:
    """The specification of a batch, for a data worker."""

    epoch: int
    # of images; of N, image i has the index i + N where it comes again in the epoch, then i + 2N …
    indices: tuple[int, ...]
    padded_shape: tuple[int, int]  # (height, width) in pixels
    min_size: int  # pixels of the short side after the resize
    weight: float = 1.0  # of the batch's mean loss in the optimizer step, see `Batch`
    size: int = 1  # the least number of images in the batch; padding samples make up the rest


@dataclass(kw_only=True, eq=False)
class TrainSampler:
    """Each epoch's images, each exactly once or as `repeats` say, `batch_size` per optimizer step
    over all ranks.

    All images of a step have one padded shape. A step's n images are split into `accumulate`
    groups, those of an epoch's last, short step into as few as hold them, and each group into
    `world_size` slots, whose lengths differ by at most one; no count needs to divide another.
    Micro-batch `a` of rank `r` is slot `r` of group `a`, so the images of a micro-batch, over all
    ranks, do not depend on the number of ranks. Its weight is len(slot) * world_size / n: the mean
    over ranks of the sum of weight * (mean over the slot) is the mean over the step. Padding
    samples fill every slot to one size, so every rank takes part in every micro-batch, with one
    shape per bucket.

    With `virtual_ranks` V, which excludes `accumulate`, a step has V slots at any `world_size`, and
    rank r has the r-th of `world_size` equal runs of them as its micro-batches; a weight is
    len(slot) * V / n.
    """

    buckets: Buckets
    batch_size: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True
    repeats: FloatArray | None = None
    virtual_ranks: int | None = None

    def __post_init__(self) -> None:
        self.num_images = self.buckets.num_images
        if self.repeats is not None:
            self.num_images = images_per_epoch(self.repeats)
        self.steps_per_epoch = divide_up(self.num_images, self.batch_size)
        self._cached: tuple[int, list[IntArray]] = (-1, [])

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before `step`."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return epoch, index * self.batch_size

    @property
    def _full_step(self) -> int:
        """Images of a step that is not short."""
        return min(self.batch_size, self.num_images)

    def num_micro_batches(self, step: int) -> int:
        """`accumulate`, or in an epoch's short step as few as hold its images, so that batch norms
        see many at a time; with virtual ranks one for each of this rank's.
        """
        if self.virtual_ranks:
            return self.virtual_ranks // self.world_size
        _, consumed = self.position(step)
        remaining = self.num_images - consumed
        if remaining >= self._full_step:
            return self.accumulate
        micro_batch = divide_up(self._full_step, self.accumulate)
        return divide_up(remaining, micro_batch)

    def step(self, step: int) -> list[BatchSpec]:
        """The micro-batches of this rank, of the same padded shape as those of the others."""
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = self._epoch_plan(epoch)[index]
        sizes = self.buckets.min_sizes
        min_size = sizes[derived_seed(self.seed, "min_size", epoch, step) % len(sizes)]
        padded_shape = self.buckets.padded_shape(batch % self.buckets.num_images, min_size)
        num_slots = self.virtual_ranks or self.world_size  # of a group, over all ranks
        slot_size = divide_up(self._full_step, num_slots * self.accumulate)
        num_groups = 1 if self.virtual_ranks else self.num_micro_batches(step)
        slots = []
        for group in np.array_split(batch, num_groups):
            slots += own_slots(group, num_slots, self.rank, self.world_size)
        specs = []
        for slot in slots:
            spec = BatchSpec(
                epoch=epoch,
                indices=tuple(slot.tolist()),
                padded_shape=padded_shape,
                min_size=min_size,
                weight=len(slot) * num_slots / len(batch),
                size=slot_size,
            )
            specs.append(spec)
        return specs

    def _epoch_plan(self, epoch: int) -> list[IntArray]:
        if self._cached[0] == epoch:
            return self._cached[1]
        rng = None
        if self.shuffle:
            rng = np.random.default_rng(derived_seed(self.seed, "epoch", epoch))
        images = np.arange(self.buckets.num_images)
        if self.repeats is not None:
            images = draw_repeats(self.repeats, derived_seed(self.seed, "repeats", epoch))
        steps = plan_epoch(self.buckets, self.batch_size, rng, images)
        self._cached = (epoch, steps)
        return steps


@dataclass(kw_only=True, eq=False)
class EvalSampler:
    """This rank's share of one pass over a split; all ranks together cover every image once.

    `batch_size` is per rank. Each image keeps its bucket's padded shape whatever the batch size and
    the number of ranks, so neither changes the model's input; the price is one short batch per
    bucket. Shares can differ in length and can be empty.
    """

    buckets: Buckets
    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __iter__(self) -> Iterator[BatchSpec]:
        min_size = self.buckets.min_sizes[-1]
        batches = []
        for bucket in range(len(self.buckets)):
            batches += _cut(np.flatnonzero(self.buckets.of_image == bucket), self.batch_size)
        for batch in batches[self.rank :: self.world_size]:
            shape = self.buckets.padded_shape(batch, min_size)
            yield BatchSpec(0, tuple(batch.tolist()), shape, min_size)


def repeat_factors(labels: Sequence[IntArray], threshold: float) -> FloatArray:
    """[N] how often an epoch holds each image, by the rarest class in it.

    That is max(1, sqrt(threshold / f)), where f is the share of the images that have the class.
    Gupta et al. 2019, LVIS, appendix B, https://arxiv.org/abs/1908.03195

    >>> labels = [np.array([0]), np.array([0, 0]), np.array([0, 1]), np.array([], int)]
    >>> repeat_factors(labels, 0.5).round(3).tolist()
    [1.0, 1.0, 1.414, 1.0]
    """
    every = np.concatenate([np.zeros(0, np.int32), *labels], dtype=np.int32)
    num_classes = int(every.max(initial=0)) + 1
    narrow = np.min_scalar_type(-len(labels) * num_classes)  # half the memory, half the time
    image = np.repeat(np.arange(len(labels), dtype=narrow), list(map(len, labels)))
    # np.unique, which hashes, takes seven times as long for such keys
    pairs = np.sort(image * num_classes + every)
    is_first = np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]
    image, label = np.divmod(pairs[is_first], num_classes)
    factor = np.sqrt(threshold * len(labels) / np.maximum(np.bincount(label), 1))
    factors = np.ones(len(labels))
    np.maximum.at(factors, image, factor[label])
    return factors


def images_per_epoch(repeats: FloatArray) -> int:
    """Images of an epoch: the sum of `repeats`, rounded down."""
    whole = np.floor(repeats)
    return int(whole.sum() + np.floor((repeats - whole).sum() + 1e-9))


def draw_repeats(repeats: FloatArray, seed: int) -> IntArray:
    """The images of an epoch, see `BatchSpec.indices`: each as often as its repeats, rounded down
    or up; as many in each epoch.

    Systematic sampling over the fractions in a random order, so that an image is rounded up in the
    right share of the epochs.
    """
    rng = np.random.default_rng(seed)
    counts = np.floor(repeats).astype(np.int64)
    more = images_per_epoch(repeats) - int(counts.sum())
    if more:
        order = rng.permutation(len(repeats))
        sums = np.cumsum((repeats - counts)[order])
        sums *= more / sums[-1]
        sums[-1] = more  # without rounding
        ends = np.concatenate([[0], np.floor(sums + rng.random()).astype(np.int64)])
        counts[order] += ends[1:] - ends[:-1]
    images = np.repeat(np.arange(len(counts)), counts)
    again = np.arange(len(images)) - np.repeat(np.cumsum(counts) - counts, counts)
    return images + len(counts) * again


def plan_epoch(
    buckets: Buckets, batch_size: int, rng: np.random.Generator | None, images: IntArray
) -> list[IntArray]:
    """The `images` of one epoch by step; only the last step can hold fewer than `batch_size`.

    Whole steps are cut within each bucket. The remainder moves to the next larger bucket, at the
    cost of padding; the remainders of buckets that fit in no other (usually tall and wide images)
    share the last steps. `rng` shuffles images within buckets, and all full steps; None keeps the
    order.
    """
    of_image = buckets.of_image[images % buckets.num_images]
    members = [images[of_image == bucket] for bucket in range(len(buckets))]
    steps = []
    last = []
    for bucket in range(len(buckets)):
        left = members[bucket]
        if rng is not None:
            left = rng.permutation(left)
        whole = len(left) // batch_size * batch_size
        steps += _cut(left[:whole], batch_size)
        larger = buckets.next_larger(bucket)
        if larger is None:
            last.append(left[whole:])
        else:
            members[larger] = np.concatenate([members[larger], left[whole:]])
    steps += _cut(np.concatenate(last), batch_size)
    if rng is not None:
        is_short = len(steps[-1]) < batch_size
        full = len(steps) - is_short
        steps[:full] = [steps[i] for i in rng.permutation(full)]
    return steps


def _cut(images: IntArray, batch_size: int) -> list[IntArray]:
    return [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
