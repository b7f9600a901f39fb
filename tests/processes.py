"""Processes of their own that begin at once: they come from one that has loaded what is heavy."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *("fewcal.apply.studio.server", "fewcal.apply.studio.app", "fewcal.estimators"),
        *("fewcal.tuning", "optuna", "hypothesis", "pytest", "distributed", "sklearn"),
        "torch",  # which modules of fewcal load when they use it first
    ]
)


@contextmanager
def forked_dask_workers() -> Iterator[None]:
    """Workers that Dask starts come from that process, too, instead of loading torch each for itself."""
    import dask

    ensure_running()  # before Dask chooses what is loaded
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield
