"""Pieces of work side by side: one thread a piece, so that no number depends on how many threads there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def in_parallel(function: Callable[[T], R], pieces: Iterable[T], threads: int | None = None) -> Iterator[R]:
    """`function(piece)` for each piece, in order, `threads` at a time; None for as many as torch may use.

    torch computes every piece with one thread of its own. For small tensors that is faster than sharing each operation
    among all cores, no thread waits for a core that is busy elsewhere, and results are the same bytes with any number
    of threads. (With `threads=1` the caller computes, with what torch may use.) What a thread sets for itself, as
    `torch.inference_mode`, must be set inside `function`, which several threads call at once, and which must not call
    `in_parallel` again.

    >>> list(in_parallel(lambda x: x * x, [1, 2, 3]))
    [1, 4, 9]
    """
    threads = torch.get_num_threads() if threads is None else threads
    return map(function, pieces) if threads == 1 else _pool(threads).map(function, pieces)


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch compute with one thread, for decompositions of D×D matrices.

    Their threads wait for each other again and again. On a core that is busy elsewhere such a wait never ends soon:
    eigenvalues of a 1280×1280 matrix took 0.44 s with one thread and 14 s with two, of which one had to share its core.

    The setting is the calling thread's own. Other threads keep theirs, but one that uses torch for the first time
    inside the block starts with one thread.

    >>> with single_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if before == 1:  # setting it would make 1 the number of all new threads
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            before = torch.get_num_threads()
            pool = ThreadPoolExecutor(threads, "fewcal", _alone)
            together = threading.Barrier(threads)
            list(pool.map(lambda _: together.wait(), range(threads)))  # starts them all
            torch.set_num_threads(before)  # the threads' own setting also became the default of new ones
            _pools[threads] = pool
        return _pools[threads]


def _alone() -> None:
    torch.set_num_threads(1)
    # A thread takes over the default at its first query, which is made now, while that is 1.
    assert torch.get_num_threads() == 1


def _after_fork() -> None:
    """Threads do not survive a fork, and OpenMP would wait for its own for ever: the child has one thread."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
