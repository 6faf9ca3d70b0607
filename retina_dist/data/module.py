"""Training and validation batches of one rank, whatever a batch is."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from retina_dist.data.loading import BatchSource, read_batches, start_fork_server
from retina_dist.data.samplers import BatchSpec, EvalSampler, TrainSampler


class TensorBatch:
    """Base of a frozen dataclass whose tensors have one row for each image; `real` tells images from fillers.

    Fillers keep the shape of a batch that lacks images; they are in no loss, no gradient and no statistic.
    """

    images: Tensor
    real: Tensor | None  # [B] bool, False for a filler; None without fillers

    def __len__(self) -> int:
        return self.images.shape[0]

    def real_rows(self) -> list[int]:
        """The rows of the images, without fillers; on a GPU the host waits for them."""
        return list(range(len(self))) if self.real is None else self.real.nonzero().flatten().tolist()

    def image(self, i: int) -> Self:
        """Its image `i` alone."""
        return self._map(lambda tensor: tensor[i : i + 1])

    def losses_of_each(self, model: nn.Module) -> list[tuple[int, dict[str, float]]]:
        """(row, the losses that the image has on its own) of each image, without fillers."""
        return [(i, {k: float(v) for k, v in model(self.image(i)).items()}) for i in self.real_rows()]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Any:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> Self:
        make: Any = type(self)
        batch: Self = make(**{k: function(v) if isinstance(v, Tensor) else v for k, v in vars(self).items()})
        return batch


AnyBatch = TypeVar("AnyBatch")
AnyDataset = TypeVar("AnyDataset", bound=BatchSource[Any])


class DataModule(Generic[AnyDataset, AnyBatch]):
    """The batches that `train` and `val`, a dataset with the sampler of its batches, give this rank.

    Either may be None where only the other is used. `num_workers` processes read ahead; 0 reads in this process.
    """

    def __init__(
        self,
        train: tuple[AnyDataset, TrainSampler] | None,
        val: tuple[AnyDataset, EvalSampler] | None,
        *,
        num_workers: int,
        pin_memory: bool,
    ) -> None:
        if train is not None:
            self.train_dataset, self.train_sampler = train
        self._val = val
        self._num_workers, self._pin_memory = num_workers, pin_memory
        if num_workers:
            for dataset in {type(pair[0]) for pair in (train, val) if pair}:
                start_fork_server(dataset.__module__)

    @property
    def steps_per_epoch(self) -> int:
        return self.train_sampler.steps_per_epoch

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before optimizer step `step`."""
        return self.train_sampler.position(step)

    def train_steps(self, start: int, stop: int) -> Iterator[list[AnyBatch]]:
        """The micro-batches of each optimizer step from `start` up to `stop`, by one set of workers.

        Closing the iterator early stops the workers.
        """
        sampler = self.train_sampler
        batches = self._read(self.train_dataset, (spec for step in range(start, stop) for spec in sampler.step(step)))
        try:
            for step in range(start, stop):
                yield list(islice(batches, sampler.num_micro_batches(step)))
        finally:
            batches.close()

    def val_batches(self) -> Iterator[AnyBatch]:
        """This rank's share of the validation images, each image once over all ranks; possibly nothing."""
        assert self._val is not None, "there is a validation split"
        return self._read(*self._val)

    def _read(self, dataset: AnyDataset, specs: Iterable[BatchSpec]) -> Generator[AnyBatch, None, None]:
        return read_batches(dataset, specs, num_workers=self._num_workers, pin_memory=self._pin_memory)
