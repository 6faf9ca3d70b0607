"""Batches of the images of concurrent requests."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Batcher:
    """Runs `predict` on the images of all requests, one batch at a time on another thread.

    Images are taken in the order in which they were submitted, without those whose request has
    ended. An idle model waits `wait_s` seconds for more images before it takes fewer than
    `max_batch`. An error of `predict` is raised by `submit` for every image of its batch.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[object]], list[Any]],
        max_batch: int,
        wait_s: float,
    ) -> None:
        self.predict = predict
        self.max_batch = max_batch
        self.wait_s = wait_s
        self._queue: asyncio.Queue[tuple[object, asyncio.Future[object]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "predict")

    async def submit(self, image: object) -> object:
        """The result for an image; cancel it to take the image out of the queue."""
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((image, future))
        return await future

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            batch = await self._next_batch()
            if not batch:
                continue

            images = [image for image, _ in batch]
            loop = asyncio.get_running_loop()
            try:
                results = await loop.run_in_executor(self._thread, self.predict, images)
            except Exception as error:
                results = [error] * len(batch)

            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _next_batch(self) -> list[tuple[object, asyncio.Future[object]]]:
        """Up to `max_batch` images that are still asked for, and where their results go."""
        item = await self._queue.get()
        if self._queue.qsize() + 1 < self.max_batch:
            await asyncio.sleep(self.wait_s)

        batch = []
        while True:
            if not item[1].done():
                batch.append(item)
            if len(batch) == self.max_batch or self._queue.empty():
                return batch
            item = self._queue.get_nowait()
