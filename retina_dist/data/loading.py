"""Batches made by data workers, whatever a batch is.

Data workers are started by a fork server: unlike plain forks they are safe beside CUDA, MPI and InfiniBand, and unlike
spawned processes they start at once. They do not import the main script, so it needs no `if __name__ == "__main__":`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from retina_dist.data.samplers import BatchSpec
from retina_dist.errors import UserError

LOGGER = logging.getLogger("retina_dist")
START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

AnyBatch = TypeVar("AnyBatch", covariant=True)


class BatchSource(Protocol[AnyBatch]):
    """Makes the batch that a spec names."""

    def __getitem__(self, spec: BatchSpec) -> AnyBatch: ...


def read_batches(
    dataset: BatchSource[AnyBatch], specs: Iterable[BatchSpec], *, num_workers: int, pin_memory: bool
) -> Generator[AnyBatch, None, None]:
    """The batches of `specs` in their order, made by `num_workers` processes that read ahead; 0 reads in this process.

    What a worker logs is logged here, and its UserError raised here. Closing the generator stops the workers.
    """
    loader = DataLoader(
        _Reports(dataset),
        batch_size=None,  # an item is a batch already
        sampler=specs,
        num_workers=num_workers,
        multiprocessing_context=START_METHOD if num_workers else None,
        pin_memory=pin_memory and torch.cuda.is_available(),
        worker_init_fn=_end_with_main_process if num_workers else None,
        generator=torch.Generator(),  # or else every start would draw from the global one
    )
    with without_main():
        items: Any = iter(loader)
    try:
        for batch, records in items:
            for record in records:
                logging.getLogger(record.name).handle(record)
            if isinstance(batch, UserError):
                raise batch
            yield batch
    finally:
        if num_workers:
            items._shutdown_workers()  # now, not at the next garbage collection


class _Reports(Dataset[tuple[Any, list[logging.LogRecord]]]):
    """A batch and what a worker logged. User errors are returned instead of raised: a worker would add its traceback."""

    def __init__(self, dataset: BatchSource[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, spec: BatchSpec) -> tuple[Any, list[logging.LogRecord]]:
        handler = BufferingHandler(sys.maxsize)
        if get_worker_info() is not None:
            LOGGER.addHandler(handler)
        try:
            return self.dataset[spec], handler.buffer
        except UserError as error:
            return error, handler.buffer
        finally:
            LOGGER.removeHandler(handler)


@contextmanager
def without_main() -> Iterator[None]:
    """Within it, processes of `multiprocessing` start without importing the main script, which they do not need.

    `multiprocessing.spawn.get_preparation_data` reads these two names.
    """
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        del main["__spec__"]
        main.update(hidden)


def _end_with_main_process(worker: int) -> None:
    """In a data worker: end when the main process has ended, and not before.

    torch's workers watch the fork server, which outlives a main process that was killed. Only the main process answers
    signals that the terminal or the scheduler sends to all processes.
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
    """Let the fork server import torch and the module `preload` while the main process builds its model: workers start sooner.

    It blocks the signals that Slurm sends to every process of a step, since no worker outlives it.
    """
    if START_METHOD == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        forkserver.set_forkserver_preload([preload])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # blocked signals are inherited
        try:
            resource_tracker.ensure_running()  # blocks SIGTERM by itself; starting it unblocks that here
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
