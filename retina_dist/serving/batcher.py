"""Batches of the images of concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Batcher:
    """Runs `predict` on the images of all requests, one batch at a time on another thread, in the order submitted.

    An idle model waits `wait_s` seconds for more images before it takes fewer than `max_batch`. An error of `predict` is raised by
    `submit` for every image of its batch.
    """

    def __init__(
        self, predict: Callable[[Sequence[Any]], list[Any]], max_batch: int, wait_s: float
    ) -> None:
        self.predict, self.max_batch, self.wait_s = predict, max_batch, wait_s
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "predict")

    async def submit(self, image: Any) -> Any:
        """The result for an image."""
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((image, future))
        return await future

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            batch = [await self._queue.get()]
            if self._queue.qsize() + 1 < self.max_batch:
                await asyncio.sleep(self.wait_s)
            while len(batch) < self.max_batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            batch = [
                (image, future) for image, future in batch if not future.done()
            ]  # the request may have ended
            if not batch:
                continue
            images, futures = zip(*batch, strict=True)
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self.predict, images
                )
            except Exception as error:
                results = [error] * len(batch)
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_exception(result) if isinstance(
                        result, Exception
                    ) else future.set_result(result)
