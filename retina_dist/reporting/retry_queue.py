"""Work that a training must not wait for, on a thread of its own. Layer 1."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

AGAIN_AFTER_S = 30.0


class RetryQueue:
    """Does jobs one after another, in the order given, on a daemon thread.

    A job that raises is passed to `failed` with its error, on that thread. If the answer is true it is done again
    `again_after_s` seconds later, and those behind it wait; else it is left out.
    """

    def __init__(self, failed: Callable[[Exception], bool], again_after_s: float = AGAIN_AFTER_S) -> None:
        self._failed, self._again_after_s = failed, again_after_s
        self._jobs: deque[Callable[[], None]] = deque()  # the first is being done
        self._changed = threading.Condition()
        self._finished = 0
        self._closing = False
        self._given_up = False
        threading.Thread(target=self._work, name="retry_queue", daemon=True).start()

    def give(self, job: Callable[[], None]) -> None:
        """Add a job, without waiting for anything."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def close(self, patience_s: float, limit_s: float) -> bool:
        """Wait for the jobs that are left, `patience_s` seconds for the next and `limit_s` for all; whether none was given up.

        What has failed before is tried once more; a job that would have to be done again now ends the waiting. One that takes
        longer is left to itself.
        """
        until = time.monotonic() + limit_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._jobs:
                before, left = self._finished, until - time.monotonic()
                if not self._changed.wait_for(partial(self._has_finished, before + 1), min(patience_s, left)):
                    self._give_up()
            return not self._given_up

    def _has_finished(self, jobs: int) -> bool:
        return self._finished >= jobs or not self._jobs

    def _give_up(self) -> None:
        self._given_up = True
        self._jobs.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._closing)
                if not self._jobs:
                    return
                job, last_try = self._jobs[0], self._closing
            again = False
            try:
                job()
            except Exception as error:
                again = self._failed(error)
            with self._changed:
                if self._given_up:
                    return
                if not again:
                    self._jobs.popleft()
                    self._finished += 1
                elif last_try:
                    self._give_up()
                else:
                    self._changed.wait_for(lambda: self._closing, self._again_after_s)
                self._changed.notify_all()
