"""Pieces of work side by side: one thread a piece, so that no number depends on how many threads there are."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_scripted: dict[object, object] = {}


def in_parallel(function: Callable[[T], R], pieces: Iterable[T], threads: int | None = None) -> Iterator[R]:
    """`function(piece)` for each piece, in order, `threads` at a time: as many as torch may use, unless it is said.

    torch computes every piece with one thread of its own. For small tensors that is faster than sharing each operation
    among all cores, nobody waits for a core that is busy elsewhere, and results are the same bytes with any number of
    threads. (With `threads=1` the caller computes, with what torch may use.) What a thread sets for itself, as
    `torch.inference_mode`, must be set inside `function`, which several threads call at once, and which must not call
    `in_parallel` again.

    >>> list(in_parallel(lambda x: x * x, [1, 2, 3]))
    [1, 4, 9]
    """
    threads = torch.get_num_threads() if threads is None else threads
    return map(function, pieces) if threads == 1 else _pool(threads).map(function, pieces)


def without_gil(function: F) -> F:
    """`function` by TorchScript, where it can: a loop of many small operations, which threads then run side by side.

    In plain Python two threads hand the interpreter's lock to and fro at every operation; 800 steps of SGD on 64
    features took twice as long in two threads as in one. The numbers are the same either way. TorchScript does not
    come with every Python (not with 3.14): then the function runs as it is.
    """
    with _lock:
        if function not in _scripted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is no longer developed, and says so
                try:
                    _scripted[function] = torch.jit.script(function)
                except Exception:  # whatever its parser meets
                    _scripted[function] = function
        return cast(F, _scripted[function])


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
    # A thread takes over the default at its first question, so it is asked now, while that is 1.
    assert torch.get_num_threads() == 1


def _forget() -> None:
    """Threads do not survive a fork: the child makes its own."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
