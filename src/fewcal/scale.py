"""Where blocks are computed: here, in processes on this machine (joblib), or on a Dask cluster.

Every way yields the same blocks with the same numbers; only the order differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from fewcal.engine import Block, Engine, Job, run_block
from fewcal.errors import FewcalError, InputError

# Times that a block is tried again after the worker that held it was lost.
_RETRIES = 10


def run_blocks(
    job: Job,
    todo: Sequence[tuple[int, int]],
    *,
    engine: Engine,
    n_jobs: int = 1,
    scheduler: str | None = None,
) -> Iterator[Block]:
    """Compute the blocks `todo`, in any order."""
    if not todo:
        return
    if scheduler is not None:
        yield from _dask(job, todo, scheduler)
    elif n_jobs == 1:
        for start, stop in todo:
            yield engine.run(start, stop)
    else:
        yield from _joblib(job, todo, n_jobs)


def _joblib(job: Job, todo: Sequence[tuple[int, int]], n_jobs: int) -> Iterator[Block]:
    from joblib import Parallel, delayed, effective_n_jobs

    if n_jobs == 0:
        raise InputError("n_jobs=0 has no meaning; use 1, a number of processes, or -1 for all cores")
    workers = min(effective_n_jobs(n_jobs), len(todo))
    threads = max(1, (os.cpu_count() or 1) // workers)
    # joblib memory-maps the job's arrays, so that workers share one copy of them.
    parallel = Parallel(n_jobs=workers, return_as="generator_unordered", mmap_mode="c", pre_dispatch="2*n_jobs")
    yield from parallel(delayed(run_block)(job, start, stop, threads) for start, stop in todo)


def _dask(job: Job, todo: Sequence[tuple[int, int]], scheduler: str) -> Iterator[Block]:
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError as error:
        raise InputError("a Dask scheduler needs the package distributed: pip install 'fewcal[dask]'") from error
    cluster: Any = None
    if scheduler.startswith("local"):
        _, _, count = scheduler.partition(":")
        workers = int(count) if count.isdigit() else max(1, os.cpu_count() or 1)
        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    try:
        client = Client(cluster if cluster is not None else scheduler, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise FewcalError(
            f"no Dask scheduler answers at {scheduler!r} ({error}); start one with `dask scheduler`, "
            "or use 'local:N' for workers on this machine"
        ) from error
    try:
        if not client.scheduler_info()["workers"]:
            client.wait_for_workers(1, timeout=60)
        missing = dict.fromkeys(todo)
        tries = 0
        while missing:
            # The job goes to every worker once; a worker that joins later takes it from another.
            [shipped] = client.scatter([job], broadcast=True, hash=False)
            futures = {
                client.submit(run_block, shipped, a, b, 1, retries=_RETRIES, pure=False): (a, b) for a, b in missing
            }
            for future in as_completed(futures):
                if future.status == "finished":
                    block = future.result()
                    if missing.pop(futures[future], 0) is None:
                        yield block
                elif future.status == "error" and not _worker_lost(future.exception()):
                    raise future.exception()
            tries += 1
            if missing and tries > _RETRIES:
                raise FewcalError(f"{len(missing)} blocks failed {tries} times because workers were lost; add workers")
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


def _worker_lost(error: BaseException) -> bool:
    """Whether a block failed because its worker, or the only copy of the job, went away."""
    return type(error).__name__ in (
        "KilledWorker",
        "FutureCancelledError",
        "CancelledError",
        "LostWorker",
        "CommClosedError",
    )
