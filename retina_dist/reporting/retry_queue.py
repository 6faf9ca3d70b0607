"""A queue of jobs on a background thread, with retries."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

AGAIN_AFTER_S = 30.0


class RetryQueue:
    """Runs jobs one after another, in order, on a daemon thread.

    If a job raises, `failed(error)` is called on that thread. If it returns true, the job runs again `again_after_s` seconds later,
    while those behind it wait; otherwise the job is dropped.
    """

    def __init__(self, failed: Callable[[Exception], bool], again_after_s: float = AGAIN_AFTER_S) -> None:
        self._failed, self._again_after_s = failed, again_after_s
        self._jobs: deque[Callable[[], None]] = deque()  # the first is running
        self._changed = threading.Condition()
        self._finished = 0
        self._closing = False
        self._given_up = False
        threading.Thread(target=self._work, name="retry_queue", daemon=True).start()

    def give(self, job: Callable[[], None]) -> None:
        """Add a job; never waits."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def close(self, patience_s: float, limit_s: float) -> bool:
        """Wait for the remaining jobs, at most `patience_s` seconds for each and `limit_s` for all; return whether all were done.

        A job that failed before runs once more; another failure ends the waiting. A job that exceeds the limits keeps
        running in the background.
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
