"""Blocks computed elsewhere: in processes on this machine (joblib), or on a Dask cluster.

Every executor yields the same blocks with the same numbers; only the order differs.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fewcal.errors import FewcalError, InputError
from fewcal.evaluation.engine import Block, Job, run_block

# Times that blocks are sent out again after the workers that held them were lost, and that workers are started again
# which were killed while they started.
_RETRIES, _STARTS = 10, 5
# Seconds to wait for a scheduler, and for its first worker.
_CONNECT, _WORKERS = 10, 60
# What Dask raises where a worker, or the only copy of the job, is gone.
_LOST = ("KilledWorker", "FutureCancelledError", "CancelledError", "LostWorker", "CommClosedError")


def check_workers(n_jobs: int, scheduler: str | None) -> None:
    """Refuse numbers of processes and schedulers that have no meaning."""
    if n_jobs == 0:
        raise InputError("n_jobs=0 has no meaning; use 1, a number of processes, or -1 for all cores")
    if scheduler is not None and n_jobs != 1:
        raise InputError(f"n_jobs={n_jobs} and a Dask scheduler exclude each other; use one")


def worker_threads(n_jobs: int, scheduler: str | None, tasks: int) -> int:
    """Threads of each process that computes blocks of a run with so many tasks."""
    if scheduler is not None:
        return 1
    if n_jobs == 1:
        return torch.get_num_threads()
    from joblib import effective_n_jobs

    cores = os.cpu_count() or 1
    return max(1, cores // min(int(effective_n_jobs(n_jobs)), tasks))


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Compute with so many threads in this block."""
    before = torch.get_num_threads()
    if threads == before:  # setting it, even to the same, is not free
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_blocks(
    job: Job, todo: Sequence[tuple[int, int]], threads: int, n_jobs: int = 1, scheduler: str | None = None
) -> Iterator[Block]:
    """Compute the blocks `todo` in worker processes of so many threads each, in any order."""
    if not todo:
        return
    if scheduler is None:
        yield from _joblib(job, todo, n_jobs, threads)
        return
    with dask_client(scheduler) as client:
        yield from _dask(client, job, todo, scheduler, threads)


# ---- joblib ---------------------------------------------------------------------------------------------------------


def _joblib(job: Job, todo: Sequence[tuple[int, int]], n_jobs: int, threads: int) -> Iterator[Block]:
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.externals.loky.process_executor import BrokenProcessPool

    remove_leftovers()
    workers = min(effective_n_jobs(n_jobs), len(todo))
    # joblib memory-maps the job's arrays, so that workers share one copy of them.
    parallel = Parallel(n_jobs=workers, return_as="generator_unordered", mmap_mode="c", pre_dispatch="2*n_jobs")
    try:
        yield from parallel(delayed(run_block)(job, start, stop, threads) for start, stop in todo)
    except BrokenProcessPool as error:
        raise FewcalError(
            "a worker process was killed, most often for want of memory; use fewer n_jobs (a kept run can be resumed)"
        ) from error


def remove_leftovers(folders: Sequence[Path] = (Path("/dev/shm"), Path(tempfile.gettempdir()))) -> list[Path]:
    """Remove arrays that killed runs left in shared memory: joblib's folders of our own whose process has ended.

    Only POSIX can ask whether a process runs without ending it.
    """
    removed = []
    for folder in folders if os.name == "posix" else ():
        for left in folder.glob("joblib_memmapping_folder_*"):
            match = re.match(r"joblib_memmapping_folder_(\d+)_", left.name)
            try:
                if match is None or left.stat().st_uid != os.getuid():
                    continue
                os.kill(int(match[1]), 0)  # no signal: it only finds out whether the process exists
            except ProcessLookupError:
                shutil.rmtree(left, ignore_errors=True)
                removed.append(left)
            except (OSError, OverflowError):
                continue
    return removed


# ---- Dask -----------------------------------------------------------------------------------------------------------


@contextmanager
def dask_client(scheduler: str) -> Iterator[Any]:
    """A Dask client for the scheduler at an address, or for "local:N": N worker processes of its own."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a Dask scheduler needs the package distributed: pip install 'fewcal[dask]'") from error
    workers = _local_workers(scheduler)
    # Dask prints a traceback for each connection that is lost; a lost scheduler is one line of our own.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":  # Dask's configuration gives some of them a level of their own
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        cluster = None if workers is None else stack.enter_context(_local_cluster(workers))
        try:
            client = stack.enter_context(Client(cluster or scheduler, timeout=_CONNECT))
        except (OSError, ValueError) as error:
            raise FewcalError(
                f"no Dask scheduler answers at {scheduler!r} ({error}); start one with `dask scheduler`, "
                "or use 'local:N' for workers on this machine"
            ) from error
        try:
            yield client
        except Exception as error:
            # Without its scheduler, a client raises whatever its own parts meet first.
            if isinstance(error, FewcalError) or client.status == "running":
                raise
            raise _cluster_gone(scheduler, error) from error


def _local_cluster(workers: int) -> Any:
    """Worker processes on this machine alone: neither the scheduler nor its pages are for the network."""
    from distributed import LocalCluster

    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    for attempt in range(1, _STARTS + 1):
        try:
            return LocalCluster(n_workers=workers, **options)
        except RuntimeError as error:  # a worker was killed before it had started
            if attempt == _STARTS:
                raise FewcalError(
                    f"Dask workers ended while they started, {_STARTS} times ({error}), most often for want of memory; "
                    "use fewer workers"
                ) from error
    return None


def ship(client: Any, value: Any, scheduler: str) -> Any:
    """A future of `value` on every worker; one that joins later takes it from another."""
    for attempt in range(1, _STARTS + 1):
        try:
            client.wait_for_workers(1, timeout=_WORKERS)
            [shipped] = client.scatter([value], broadcast=True, hash=False)
            return shipped
        except (OSError, ValueError, KeyError) as error:
            # A worker that is lost with the value on its way is no reason to give up; one that does not come is.
            if isinstance(error, TimeoutError) or attempt == _STARTS or client.status != "running":
                raise _cluster_gone(scheduler, error) from error
    return None


def _cluster_gone(scheduler: str, error: Exception) -> FewcalError:
    return FewcalError(
        f"the Dask cluster at {scheduler!r} has no workers or is gone ({type(error).__name__}); "
        f"start them with `dask worker {scheduler}` (what is kept on disk can be resumed)"
    )


def _dask(client: Any, job: Job, todo: Sequence[tuple[int, int]], scheduler: str, threads: int) -> Iterator[Block]:
    from distributed import as_completed

    missing = set(todo)
    for _ in range(_RETRIES + 1):
        shipped = ship(client, job, scheduler)
        # The scheduler moves the blocks of a lost worker to others by itself. What it gives up, because the last copy
        # of the job or too many workers were lost with it, comes back cancelled or failed and is sent out once more.
        futures = {client.submit(run_block, shipped, a, b, threads, pure=False): (a, b) for a, b in sorted(missing)}
        for future in as_completed(futures):
            try:
                block = future.result()
            except (Exception, CancelledError) as error:
                if worker_lost(error):
                    continue
                raise
            missing.discard(futures.pop(future))  # drops the cluster's copy of the block
            yield block
        if not missing:
            return
    raise FewcalError(f"{len(missing)} blocks failed {_RETRIES + 1} times because workers were lost; add workers")


def _local_workers(scheduler: str) -> int | None:
    """Worker processes of "local:N"; None for an address, `localhost:8786` among them.

    >>> _local_workers("local:3"), _local_workers("localhost:8786")
    (3, None)
    """
    if scheduler == "local":
        return max(1, os.cpu_count() or 1)
    if not scheduler.startswith("local:"):
        return None
    if not re.fullmatch(r"local:[1-9]\d{0,3}", scheduler):
        raise InputError(f"scheduler={scheduler!r} is neither an address nor local:N with N from 1 worker process on")
    return int(scheduler.removeprefix("local:"))


def worker_lost(error: BaseException) -> bool:
    """Whether a block failed because its worker, or the only copy of the job, went away."""
    return type(error).__name__ in _LOST
