"""Items of requests that arrive together are computed together.

A network of pictures takes not much longer for sixteen than for one. An item that finds nothing at work starts at once.
Those that arrive meanwhile go in the next batch, in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Overloaded(Exception):
    """The service has too much to do; the client may come again later."""


class Batcher(Generic[T, R]):
    """Gathers items of many requests for one function of many items.

    `compute` runs in a thread of its own, one batch at a time, and gives a result for each item in their order. Where
    it fails, items are computed one by one, so that an item spoils no other.
    """

    def __init__(self, compute: Callable[[list[T]], list[R]], max_batch: int, max_waiting: int) -> None:
        self._compute, self._max_batch, self._max_waiting = compute, max_batch, max_waiting
        self._queue: asyncio.Queue[tuple[T, asyncio.Future[R]]] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fewcal-batch")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items that wait for a batch."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; items that still wait are cancelled. Servers stop taking requests before."""
        if self._task is not None:
            self._task.cancel()
        while self.waiting:
            self._queue.get_nowait()[1].cancel()
        await asyncio.to_thread(self._pool.shutdown, True)

    async def submit(self, items: Sequence[T]) -> list[R | BaseException]:
        """The result of each item, or the error that it ended in."""
        if self.waiting + len(items) > self._max_waiting:
            raise Overloaded(f"{self.waiting} items wait already; try again in a moment")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[R]] = [loop.create_future() for _ in items]
        for item, future in zip(items, futures, strict=True):
            self._queue.put_nowait((item, future))
        return await asyncio.gather(*futures, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            arrived = [await self._queue.get()]
            while self.waiting and len(arrived) < self._max_batch:
                arrived.append(self._queue.get_nowait())
            batch = [(item, future) for item, future in arrived if not future.done()]  # clients may have left
            results = await loop.run_in_executor(self._pool, self._results, [item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)

    def _results(self, items: list[T]) -> Sequence[R | Exception]:
        try:
            return self._compute(items) if items else []
        except Exception as error:
            return [error] if len(items) == 1 else [result for item in items for result in self._results([item])]
