"""The batches of one rank: data workers read images and make batches of any kind.

Data workers are started by a fork server: unlike plain forks they are safe beside CUDA, MPI and
InfiniBand, and unlike spawned processes they start at once. They do not import the main script, so
it needs no `if __name__ == "__main__":`.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from logging.handlers import BufferingHandler
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info
from typing_extensions import Self

from retina_dist.base.errors import ImageError, UserError, first_line
from retina_dist.data.buckets import Buckets
from retina_dist.data.images import MAX_PIXELS, read_image
from retina_dist.data.samplers import BatchSpec, EvalSampler, TrainSampler
from retina_dist.data.settings import ImageDataSettings
from retina_dist.data.sources import Source, is_remote, read_all

LOGGER = logging.getLogger("retina_dist")

AnyBatch = TypeVar("AnyBatch")
Contents = Mapping[int, bytes | ImageError]  # of images, by their number
CPU = torch.device("cpu")
MORE_SHARED_MEMORY = (
    "give the container more (docker run --shm-size=16g; on Kubernetes an emptyDir), "
    "or set data.num_workers=0"
)
MORE_MEMORY = "lower data.num_workers (0 reads in this process), or give the job more memory"


class ImageDataset(Dataset[AnyBatch]):
    """Images by number; a task's subclass makes whole batches of them, `dataset[spec]`.

    `sizes` [N, 2] are the annotated (height, width), if there are any. With `bad_images="skip"`, an
    image that cannot be read is left out of its batch with a warning, and the batch's weight
    shrinks by its share, so that the other images count as before.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sizes: Tensor | None,
        bad_images: str = "error",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.bad_images = bad_images
        self.max_pixels = max_pixels
        self._sizes = sizes
        self._sources: list[Source] = []
        for source in sources:
            # text is smaller than a Path when it is sent to a worker
            self._sources.append(str(source) if isinstance(source, Path) else source)

    def __len__(self) -> int:
        """Number of images, not of batches."""
        return len(self._sources)

    def read(self, index: int, fetched: Contents | None = None) -> Tensor:
        """The pixels of image `index`, whose bytes `fetch` may have got. Raises ImageError."""
        content = fetched.get(index) if fetched else None
        if isinstance(content, ImageError):
            raise content
        annotated: tuple[int, int] | None = None
        if self._sizes is not None:
            height, width = self._sizes[index].tolist()
            annotated = (int(width), int(height))
        return read_image(self._sources[index], annotated, self.max_pixels, content)

    def fetch(self, indices: Sequence[int]) -> Contents:
        """The bytes of the images that are behind a URL, fetched together."""
        remote = [i for i in dict.fromkeys(indices) if is_remote(self._sources[i])]
        return dict(zip(remote, read_all([self._sources[i] for i in remote]), strict=True))


@contextmanager
def skipping(bad_images: str) -> Iterator[None]:
    """Within it, an ImageError ends the block with a warning if `bad_images` is "skip"."""
    try:
        yield
    except ImageError as error:
        if bad_images == "error":
            raise
        LOGGER.warning(str(error))


class _Reports(Dataset[tuple[object, list[logging.LogRecord]]]):
    """A batch and what a worker logged.

    User errors are returned instead of raised: a worker would add its traceback.
    """

    def __init__(self, dataset: ImageDataset[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, spec: BatchSpec) -> tuple[object, list[logging.LogRecord]]:
        if get_worker_info() is None:
            return self.dataset[spec], []
        handler = BufferingHandler(sys.maxsize)
        LOGGER.addHandler(handler)
        try:
            batch = self.dataset[spec]
            batch.share_memory()
            return batch, handler.buffer
        except UserError as error:
            return error, handler.buffer
        except (MemoryError, RuntimeError) as error:
            if not _is_lack_of_memory(error):
                raise
            return UserError(f"a data worker has no memory left; {MORE_MEMORY}."), handler.buffer
        finally:
            LOGGER.removeHandler(handler)


def _is_lack_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(
        error
    )  # torch's, and errno 12


def _why_failed(workers: Sequence[multiprocessing.Process], error: Exception) -> Exception:
    """What ended a data worker, in words; `error` itself where all of them live."""
    if _is_lack_of_memory(error):
        return UserError(f"no memory is left for a batch; {MORE_MEMORY}.")
    deadline = time.monotonic() + 1.0  # a worker that was killed may still be on its way out
    codes: list[int] = []
    while not codes and time.monotonic() < deadline:
        codes = [worker.exitcode for worker in workers if worker.exitcode is not None]
        time.sleep(0.01)
    if not codes:
        return error
    if -signal.SIGBUS in codes:
        return UserError(f"a data worker found /dev/shm full; {MORE_SHARED_MEMORY}.")
    if -signal.SIGKILL in codes:
        return UserError(f"a data worker was killed, usually for want of memory; {MORE_MEMORY}.")
    return UserError(
        f"a data worker ended with exit code {codes[0]} ({first_line(error)}); "
        "data.num_workers=0 reads in this process and shows why."
    )


@contextmanager
def without_main() -> Iterator[None]:
    """Within it, processes start without importing the main script.

    `multiprocessing` finds it by these two names.
    """
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, object] = {}
    for name in ("__spec__", "__file__"):
        if name in main:
            hidden[name] = main.pop(name)
    main["__spec__"] = None
    try:
        yield
    finally:
        del main["__spec__"]
        main.update(hidden)


def _end_with_main_process(worker: int) -> None:
    """In a data worker: end with the main process (torch watches the fork server, which outlives
    it), not by a signal to all.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    main = multiprocessing.parent_process()
    assert main is not None, "this runs in a worker"

    def watch() -> None:
        main.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_fork_server(preload: str) -> None:
    """Let the fork server import torch and the module `preload` while the main process builds its
    model: workers start sooner.

    It blocks the signals that Slurm sends to every process of a step, since no worker outlives it.
    """
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload([preload])
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGUSR1}
    )  # blocked signals are inherited
    try:
        # blocks SIGTERM by itself; starting it unblocks that here
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class TensorBatch:
    """Base of a frozen dataclass whose tensors have one row for each image.

    `real` tells images from padding samples, which keep the shape of a batch that lacks images;
    they are in no loss, no gradient and no statistic.
    """

    images: Tensor
    image_ids: Tensor  # [B] int64
    real: Tensor | None  # [B] bool, False for a padding sample; None without padding samples

    def __len__(self) -> int:
        return self.images.shape[0]

    def real_rows(self) -> list[int]:
        """The rows of the images, without padding samples; on a GPU the host waits for them."""
        if self.real is None:
            return list(range(len(self)))
        return self.real.nonzero().flatten().tolist()

    def image(self, i: int) -> Self:
        """Its image `i` alone."""
        return self._map(itemgetter(slice(i, i + 1)))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Any:
        """The same batch with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls it."""
        return self._map(methodcaller("pin_memory"))

    def share_memory(self) -> None:
        """Move the tensors into shared memory, in the data worker that made them.

        Otherwise a thread of the worker's queue does it, which prints a traceback where it fails
        and sends nothing, so that the main process waits forever. Raises UserError where /dev/shm
        is full.
        """
        try:
            self._map(methodcaller("share_memory_"))
        except RuntimeError as error:
            if "shared memory" not in str(error):
                raise
            raise UserError(
                f"/dev/shm is full ({first_line(error)}); {MORE_SHARED_MEMORY}."
            ) from error

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        values = {}
        for name, value in vars(self).items():
            values[name] = function(value) if isinstance(value, Tensor) else value
        return type(self)(**values)


Split = tuple[ImageDataset[AnyBatch], Buckets]


class DataModule(Generic[AnyBatch]):
    """This rank's batches of the training and the validation split.

    Args:
        settings: `num_workers` processes make the batches, or this one; a worker's log records and
            UserErrors arrive here. `batch_size` is the number of images per optimizer step over
            all ranks.
        train: the data set and its buckets, or None where only the other is used.
        val: as `train`.
        rank: this process's number.
        world_size: how many processes share the images.
        device: for a GPU, batches are made in page-locked memory.
        sampling: `accumulate`, `seed`, `repeats` and `virtual_ranks` of `TrainSampler`.
    """

    def __init__(
        self,
        settings: ImageDataSettings,
        train: Split[AnyBatch] | None,
        val: Split[AnyBatch] | None,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device = CPU,
        **sampling: Any,
    ) -> None:
        self._num_workers = settings.num_workers
        self._pin_memory = device.type == "cuda"
        if train is not None:
            self.train_dataset, buckets = train
            self.train_sampler = TrainSampler(
                buckets=buckets,
                batch_size=settings.batch_size,
                rank=rank,
                world_size=world_size,
                shuffle=settings.shuffle,
                **sampling,
            )
            self.position = self.train_sampler.position
        if val is not None:
            dataset, buckets = val
            batch_size = settings.val_batch_size
            sampler = EvalSampler(
                buckets=buckets, batch_size=batch_size, rank=rank, world_size=world_size
            )
            self._val = dataset, sampler
        split = train or val
        if settings.num_workers and split:
            start_fork_server(type(split[0]).__module__)

    def train_steps(self, start: int, stop: int) -> Iterator[list[AnyBatch]]:
        """The micro-batches of each step from `start` up to `stop`, by one set of workers, which
        closing the iterator stops.
        """
        sampler = self.train_sampler
        specs = chain.from_iterable(map(sampler.step, range(start, stop)))
        batches = self._read(self.train_dataset, specs)
        try:
            for step in range(start, stop):
                yield list(islice(batches, sampler.num_micro_batches(step)))
        finally:
            batches.close()

    def val_batches(self) -> Iterator[AnyBatch]:
        """This rank's share of the validation images, each image once over all ranks; possibly
        nothing.
        """

        return self._read(*self._val)

    def _read(
        self, dataset: ImageDataset[AnyBatch], specs: Iterable[BatchSpec]
    ) -> Generator[AnyBatch, None, None]:
        """The batches of `specs` in their order. Closing the generator stops the workers.

        Raises UserError where the system gives no more processes or memory.
        """
        loader = DataLoader(
            _Reports(dataset),
            batch_size=None,  # an item is a batch already
            sampler=specs,
            pin_memory=self._pin_memory and torch.cuda.is_available(),
            generator=torch.Generator(),  # or else every start would draw from the global one
            num_workers=self._num_workers,
            multiprocessing_context="forkserver" if self._num_workers else None,
            worker_init_fn=_end_with_main_process,
        )
        try:
            with without_main():
                items: Any = iter(loader)
        except (OSError, EOFError, MemoryError) as error:
            if not self._num_workers:
                raise
            reason = first_line(error)
            raise UserError(
                f"data workers cannot start ({reason}); {MORE_MEMORY} "
                "or more open files (ulimit -n)."
            ) from error
        try:
            while True:
                try:
                    batch, records = next(items)
                except StopIteration:
                    return
                except (RuntimeError, OSError, EOFError) as error:
                    if not self._num_workers:
                        raise
                    raise _why_failed(items._workers, error) from error
                for record in records:
                    logging.getLogger(record.name).handle(record)
                if isinstance(batch, UserError):
                    raise batch
                yield batch
        finally:
            if self._num_workers:
                items._shutdown_workers()  # now, not at the next garbage collection
