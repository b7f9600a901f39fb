"""Requests that come together are computed together.

A network of pictures takes not much longer for sixteen than for one. So items wait for a few milliseconds, or until the
computation at hand is done, and then go in one batch, in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Overloaded(Exception):
    """More items wait than the limit allows; the client may come again later."""


@dataclass(frozen=True)
class BatchLimits:
    """most_batch : items computed at once; wait_s : how long the first of a batch waits for others at most;
    most_waiting : items that may wait, beyond which new ones are refused"""

    most_batch: int = 32
    wait_s: float = 0.005
    most_waiting: int = 1024


@dataclass(frozen=True, eq=False)
class _Job(Generic[T, R]):
    items: Sequence[T]
    done: asyncio.Future[list[R]]


class Batcher(Generic[T, R]):
    """Gathers items of many requests for one function of many items.

    `compute` runs in a thread of its own, one batch at a time, and gives a result for each item in their order.
    """

    def __init__(self, compute: Callable[[list[T]], list[R]], limits: BatchLimits) -> None:
        self._compute, self._limits = compute, limits
        self._jobs: list[_Job[T, R]] = []
        self._waiting = 0
        self._come = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fewcal-batch")
        self._task: asyncio.Task[None] | None = None
        self.batches = 0  # computed so far

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; what still waits is cancelled. Servers stop taking requests before, so that nothing does."""
        if self._task is not None:
            self._task.cancel()
        for job in self._jobs:
            job.done.cancel()
        await asyncio.to_thread(self._pool.shutdown, True)

    async def submit(self, items: Sequence[T]) -> list[R]:
        """The results of some items, computed with those of others."""
        if self._waiting + len(items) > self._limits.most_waiting:
            raise Overloaded(f"{self._waiting} items wait already; try again in a moment")
        job: _Job[T, R] = _Job(items, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._waiting += len(items)
        self._come.set()
        return await job.done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._come.wait()
            if self._waiting < self._limits.most_batch:
                await asyncio.sleep(self._limits.wait_s)
            jobs = self._next()
            if not jobs:
                continue
            self.batches += 1
            items = [item for job in jobs for item in job.items]
            try:
                results = await loop.run_in_executor(self._pool, self._compute, items)
            except Exception as error:  # told to those who asked; others are served
                for job in jobs:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            start = 0
            for job in jobs:
                if not job.done.done():  # the client may have given up
                    job.done.set_result(results[start : start + len(job.items)])
                start += len(job.items)

    def _next(self) -> list[_Job[T, R]]:
        """The jobs of the next batch: as many as fit, at least one."""
        taken: list[_Job[T, R]] = []
        count = 0
        while self._jobs and (not taken or count + len(self._jobs[0].items) <= self._limits.most_batch):
            job = self._jobs.pop(0)
            self._waiting -= len(job.items)
            if not job.done.done():
                taken.append(job)
                count += len(job.items)
        if not self._jobs:
            self._come.clear()
        return taken
