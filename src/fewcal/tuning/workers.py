"""Who computes the trials: processes on this machine, or a Dask cluster; and whoever watches."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fewcal.errors import InputError
from fewcal.evaluation.executors import dask_client, ship, worker_lost
from fewcal.params import GDCParams
from fewcal.tuning.search import Search, SearchData, refuse, work
from fewcal.tuning.spaces import Picks, Space
from fewcal.tuning.storage import Counts, complete_trials, count, drop_lost, give_up
from fewcal.tuning.study import StudyPlace, open_study
from fewcal.tuning.trials import TrialRunner

if TYPE_CHECKING:
    import optuna


# Seconds between two looks at the study while worker processes are busy.
_LOOK = 1.0


@dataclass(frozen=True)
class Snapshot:
    """How far a search is, for whoever watches it."""

    counts: Counts
    target: int
    best: list[tuple[int, float, Picks]]
    fresh: int
    seconds: float

    @property
    def rate(self) -> float:
        """Trials per second since this process began to watch."""
        return self.fresh / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take at this rate."""
        return (self.target - self.counts.finished) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        done = self.counts.finished
        share = self.counts.pruned / done if done else 0.0
        left = f", {self.left:.0f} s left" if self.left is not None and done < self.target else ""
        best = f", best {100 * self.best[0][1]:.2f}%" if self.best else ""
        return f"{done}/{self.target} trials, {self.rate:.2f} trials/s{left}, {share:.0%} pruned{best}"


Watch = Callable[[Snapshot], None]


class Watcher:
    """Tells `watch` how far the search is."""

    def __init__(self, study: optuna.Study, search: Search, watch: Watch | None) -> None:
        self.study, self.search, self.watch = study, search, watch
        self.began: float | None = None
        self.first = 0

    def __call__(self) -> None:
        if self.watch is None:
            return
        now = time.monotonic()
        counts = count(self.study)
        if self.began is None:
            self.began, self.first = now, counts.finished
        rows = [(t.number, t.value or 0.0, dict(t.params)) for t in complete_trials(self.study)[:5]]
        self.watch(Snapshot(counts, self.search.trials, rows, counts.finished - self.first, now - self.began))


def in_processes(place: StudyPlace, search: Search, data: SearchData, device: str, workers: int, see: Watcher) -> None:
    """Run worker processes until none is left; those that die are not missed as long as one lives."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // workers)
    arguments = (place, search, data, device, threads)
    processes = [context.Process(target=_worker, args=arguments, daemon=True) for _ in range(workers)]
    try:
        with ignore_sigint():
            for process in processes:
                process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(_LOOK)
            see()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join()


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C, which would catch them anywhere; their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _worker(place: StudyPlace, search: Search, data: SearchData, device: str, threads: int) -> None:
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt):  # the parent tells of it
        study, _ = open_study(place, search, data, resume=True)
        work(study, data.runner(search, device), search)


def wait_for_others(study: optuna.Study, search: Search, runner: TrialRunner, see: Watcher) -> None:
    """Let others end their trials; take over those of the dead."""
    while count(study).running:
        if drop_lost(study):
            work(study, runner, search, see)
        else:
            time.sleep(_LOOK)
            see()


# ---- Dask -----------------------------------------------------------------------------------------------------------

_READY: dict[str, TrialRunner] = {}


def _measure(shipped: tuple[str, SearchData, Search], params: GDCParams) -> np.ndarray | str:
    """On a Dask worker: accuracies of a trial, or why its parameters are refused."""
    token, data, search = shipped
    if token not in _READY:
        _READY.clear()
        torch.set_num_threads(1)
        _READY[token] = data.runner(search, "cpu")
    try:
        return _READY[token].accuracy(params)
    except InputError as error:
        return str(error)


def on_dask(study: optuna.Study, space: Space, search: Search, data: SearchData, scheduler: str, see: Watcher) -> None:
    """Trials on a cluster: this process asks and tells, workers compute. Lost workers' trials are sent out again."""
    from optuna.trial import TrialState

    with dask_client(scheduler) as client:
        from distributed import wait

        shipped = ship(client, (uuid.uuid4().hex, data, search), scheduler)
        busy: dict[Any, tuple[optuna.Trial, GDCParams]] = {}
        try:
            while True:
                slots = max(1, sum(w["nthreads"] for w in client.scheduler_info()["workers"].values()))
                drop_lost(study)
                now = count(study)
                while len(busy) < slots + 1 and now.finished + len(busy) < search.trials:
                    trial = study.ask()
                    params = space.suggest(trial)
                    busy[client.submit(_measure, shipped, params, pure=False)] = (trial, params)
                if not busy:
                    return
                done = wait(list(busy), return_when="FIRST_COMPLETED").done
                for future in done:
                    trial, params = busy.pop(future)
                    try:
                        found = future.result()
                    except Exception as error:
                        if not worker_lost(error):
                            raise
                        shipped = ship(client, (uuid.uuid4().hex, data, search), scheduler)
                        busy[client.submit(_measure, shipped, params, pure=False)] = (trial, params)
                        continue
                    if isinstance(found, str):
                        refuse(study, trial, InputError(found))
                    elif search.rules.pruning.report(trial, found, len(found), search.tasks):
                        study.tell(trial, state=TrialState.PRUNED)
                    else:
                        study.tell(trial, float(found.mean()))
                    see()
        finally:
            for trial, _ in busy.values():
                give_up(study, trial)
