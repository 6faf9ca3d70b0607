"""Batches items of many owners for a few worker threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Calls `run` with up to `max_batch` items, on one of `threads` dedicated threads.

    Owners take turns, so one with many items delays another by one item per batch slot; an owner's items keep their order. A batch
    waits at most `wait_s` seconds after its first item to fill up. `run` returns a result for each item, in order; if it raises,
    every item of the batch has that exception. The threads are daemons: they do not keep the process alive.
    """

    def __init__(
        self, run: Callable[[Sequence[Item]], Sequence[Result]], *, max_batch: int, wait_s: float, threads: int = 1
    ) -> None:
        self.run, self.max_batch, self.wait_s = run, max_batch, wait_s
        self._owners: OrderedDict[Hashable, deque[tuple[Item, Future[Result]]]] = OrderedDict()  # the next one first
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name="batcher", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, item: Item, owner: Hashable = None) -> Future[Result]:
        """A future of the result; if cancelled before its batch starts, it is not computed. Raises RuntimeError once closed."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this batcher is closed")
            self._owners.setdefault(owner, deque()).append((item, future))
            self._changed.notify()
        return future

    @property
    def alive(self) -> bool:
        """Whether it accepts and processes items."""
        return not self._closed and all(thread.is_alive() for thread in self._threads)

    def close(self, timeout_s: float | None = None) -> bool:
        """Accept no more items and wait `timeout_s` (None: no limit) for the others; return whether all are finished."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(until - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while entries := self._gather():
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

    def _gather(self) -> list[tuple[Item, Future[Result]]]:
        """The next batch; empty when closed and all items are processed."""
        with self._changed:
            self._changed.wait_for(lambda: self._owners or self._closed)
            entries = self._take(self.max_batch)
            deadline = time.monotonic() + self.wait_s
            while entries and len(entries) < self.max_batch and not self._closed:
                if not self._changed.wait_for(lambda: self._owners or self._closed, deadline - time.monotonic()):
                    break
                entries += self._take(self.max_batch - len(entries))
            return entries

    def _take(self, most: int) -> list[tuple[Item, Future[Result]]]:
        entries: list[tuple[Item, Future[Result]]] = []
        while self._owners and len(entries) < most:
            owner, items = self._owners.popitem(last=False)
            entries.append(items.popleft())
            if items:
                self._owners[owner] = items  # at the end of the queue
        return entries
