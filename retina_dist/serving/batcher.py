"""Items that come one by one, from many, handled several at a time by one thread. Layer 0."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Calls `run` with up to `max_batch` items in the order they came, always in the same thread.

    From the first item of a batch on it waits `wait_s` seconds at most for others, and not at all for more than are there when
    the batch is full. `run` returns a result for each item, in order; what it raises is the result of every item of the batch.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Sequence[Result]], *, max_batch: int, wait_s: float) -> None:
        self.run, self.max_batch, self.wait_s = run, max_batch, wait_s
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """The result to come; one that is cancelled in time is not computed. Raises RuntimeError once closed."""
        future: Future[Result] = Future()
        with self._closing:
            if self._closed:
                raise RuntimeError("this batcher is closed")
            self._queue.put((item, future))
        return future

    @property
    def alive(self) -> bool:
        """Whether items are still taken and handled."""
        return self._thread.is_alive() and not self._closed

    def close(self) -> None:
        """Take nothing more, finish what was taken, and return then."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        closed = False
        while not closed:
            entries, closed = self._gather()
            wanted = [(item, future) for item, future in entries if future.set_running_or_notify_cancel()]
            if not wanted:
                continue
            try:
                results = self.run([item for item, _ in wanted])
                for (_, future), result in zip(wanted, results, strict=True):
                    future.set_result(result)
            except BaseException as error:
                for _, future in wanted:
                    if not future.done():
                        future.set_exception(error)

    def _gather(self) -> tuple[list[tuple[Item, Future[Result]]], bool]:
        """The next batch, and whether it is the last."""
        entries: list[tuple[Item, Future[Result]]] = []
        deadline = None
        while len(entries) < self.max_batch:
            try:
                left = None if deadline is None else deadline - time.monotonic()
                entry = self._queue.get() if left is None else self._queue.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if entry is None:
                return entries, True
            entries.append(entry)
            deadline = deadline or time.monotonic() + self.wait_s
        return entries, False
