"""Jobs on another thread: in order, again where that may help, and never for longer than agreed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from retina_dist.reporting.retry_queue import RetryQueue


class Away(Exception):
    """Worth another try."""


def retry_queue(errors: list[Exception], again_after_s: float = 0.0) -> RetryQueue:
    def failed(error: Exception) -> bool:
        errors.append(error)
        return isinstance(error, Away)

    return RetryQueue(failed, again_after_s)


def failing(times: int, error: Exception, done: list[str]) -> Callable[[], None]:
    left = [error] * times

    def job() -> None:
        if left:
            raise left.pop()
        done.append("late")

    return job


def test_jobs_are_done_in_order_and_one_that_cannot_be_is_left_out() -> None:
    done: list[str] = []
    errors: list[Exception] = []
    c = retry_queue(errors)
    c.give(lambda: done.append("a"))
    c.give(failing(1, ValueError("no"), done))
    c.give(lambda: done.append("b"))
    assert c.close(10, 10)
    assert (done, [str(e) for e in errors]) == (["a", "b"], ["no"])


def test_a_job_is_done_again_before_those_behind_it() -> None:
    done: list[str] = []
    errors: list[Exception] = []
    c = retry_queue(errors)
    c.give(failing(3, Away(), done))
    reached = threading.Event()
    c.give(lambda: (done.append("next"), reached.set()))
    assert reached.wait(10)
    assert (done, len(errors)) == (["late", "next"], 3)
    assert c.close(10, 10)


def test_closing_tries_once_more_at_once() -> None:
    for times, complete in ((1, True), (2, False)):
        done: list[str] = []
        errors: list[Exception] = []
        c = retry_queue(errors, again_after_s=600)
        c.give(failing(times, Away(), done))
        while not errors:
            time.sleep(0.01)
        assert c.close(60, 60) is complete
        assert (done, len(errors)) == (["late"] * complete, times)


def test_a_job_that_hangs_is_left_to_itself() -> None:
    held, done = threading.Event(), []
    c = retry_queue([])
    c.give(lambda: held.wait(60))
    c.give(lambda: done.append("behind it"))
    assert not c.close(0.2, 60)
    held.set()
    time.sleep(0.1)
    assert done == []


def test_all_jobs_together_have_a_limit() -> None:
    c = retry_queue([])
    for _ in range(200):
        c.give(lambda: time.sleep(0.1))
    assert not c.close(60, 0.5)
