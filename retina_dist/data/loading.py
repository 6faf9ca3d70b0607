"""Batches made by data workers, whatever a batch is.

Data workers are started by a fork server: unlike plain forks they are safe beside CUDA, MPI and InfiniBand, and unlike
spawned processes they start at once. They do not import the main script, which so needs no `if __name__ == "__main__":`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from retina_dist.data.samplers import BatchSpec
from retina_dist.errors import UserError

LOGGER = logging.getLogger("retina_dist")


@contextmanager
def without_main() -> Iterator[None]:
    """Within it, processes of `multiprocessing` start without importing the main script.

    They need only modules of this package. The import would run a script without `if __name__ == "__main__":` again in
    each process (`multiprocessing.spawn.get_preparation_data` reads these two names).
    """
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    main.pop("__file__", None)
    try:
        yield
    finally:
        main.pop("__spec__", None)
        main.update(hidden)


@contextmanager
def worker_records() -> Iterator[list[logging.LogRecord]]:
    """In a data worker: what the package logs within it, for the main process to handle; in the main process always empty."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record)  # type: ignore[method-assign]
    if get_worker_info() is not None:
        LOGGER.addHandler(handler)
    try:
        yield records
    finally:
        LOGGER.removeHandler(handler)


WATCH_S = 2.0  # how often a data worker looks whether the main process is still there

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
        multiprocessing_context=_start_method() if num_workers else None,
        pin_memory=pin_memory and torch.cuda.is_available(),
        worker_init_fn=partial(_end_with, os.getpid()) if num_workers else None,
        generator=torch.Generator(),  # or else every start would draw from the global one
    )
    with without_main():
        items = iter(loader)
    try:
        for batch, records in items:
            for record in records:
                logging.getLogger(record.name).handle(record)
            if isinstance(batch, UserError):
                raise batch
            yield batch
    finally:
        # now, and not when the garbage collector gets round to it
        if num_workers:
            items._shutdown_workers()  # type: ignore[attr-defined]


class _Reports(Dataset[tuple[Any, list[logging.LogRecord]]]):
    """A batch and what a worker logged. User errors are returned instead of raised: a worker would add its traceback."""

    def __init__(self, dataset: BatchSource[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, spec: BatchSpec) -> tuple[Any, list[logging.LogRecord]]:
        with worker_records() as records:
            try:
                return self.dataset[spec], records
            except UserError as error:
                return error, records


def _end_with(main_process: int, worker: int) -> None:
    """In a data worker: end when the main process is gone, and not before.

    torch's workers watch their parent, which is the fork server; that outlives a main process that was killed. A signal that
    the terminal or the scheduler sends to all processes is the main one's to answer.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while True:
            time.sleep(WATCH_S)
            try:
                os.kill(main_process, 0)
            except ProcessLookupError:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_fork_server(preload: str) -> None:
    """Let the fork server import torch and the module `preload` while the main process builds its model: workers start sooner.

    It is deaf to the signals that Slurm sends to every process of a step, since no worker outlives it.
    """
    if _start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        forkserver.set_forkserver_preload([preload])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # what is blocked here is inherited
        try:
            resource_tracker.ensure_running()  # deaf to SIGTERM by itself; starting it unblocks that here
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
