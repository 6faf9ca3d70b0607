"""Random batches that lie on the device, for benchmarks of computation and communication alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from retina_dist.errors import ConfigError
from retina_dist.seeding import derived_seed

AnyBatch = TypeVar("AnyBatch")


def noise(height: int, width: int, seed: int, image: int) -> Tensor:
    """[3, height, width] uint8 on the CPU, uniform; a function of (seed, image)."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "synthetic pixels", image))
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


class SyntheticData(Generic[AnyBatch]):
    """The same micro-batches at every step, made once; a `TaskData`.

    `make_batch(images, weight)` makes the batch of these images, numbers below `num_images`, on the device; `weight` is its
    share in the step, see `TrainSampler`. An image must not depend on the others of its batch, so that any number of ranks trains
    on the same `batch_size` images. Raises ConfigError where a micro-batch would have none.
    """

    def __init__(
        self,
        make_batch: Callable[[Sequence[int], float], AnyBatch],
        *,
        num_images: int,
        batch_size: int,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.batch_size = batch_size
        self.steps_per_epoch = -(-num_images // batch_size)
        if batch_size < world_size * accumulate:
            raise ConfigError(
                f"data.batch_size={batch_size} leaves some of the {world_size} x {accumulate} micro-batches of a step "
                f"without an image; random data need at least data.batch_size={world_size * accumulate}."
            )
        images = np.arange(batch_size) % num_images
        slots = [np.array_split(group, world_size)[rank] for group in np.array_split(images, accumulate)]
        self.batches = [make_batch(slot.tolist(), len(slot) * world_size / batch_size) for slot in slots]

    def train_steps(self, start: int, stop: int) -> Iterator[Sequence[AnyBatch]]:
        """The micro-batches, once for each step from `start` up to `stop`."""
        for _ in range(start, stop):
            yield self.batches

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before optimizer step `step`."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return epoch, index * self.batch_size
