"""A study: begun, continued or joined, and its trials, which any number of processes compute."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fewcal._utils.text import one_line
from fewcal._utils.types import JSON, JSONObject, Progress
from fewcal.errors import FewcalError, InputError
from fewcal.evaluation.run_folder import first_difference
from fewcal.features import FeatureSet
from fewcal.tuning.objective import Objective, make_objective
from fewcal.tuning.search import Search
from fewcal.tuning.storage import damaged, open_storage, require_optuna, shown_url, storage_errors

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, TrialState

IDENTITY = "fewcal"


@dataclass(frozen=True, eq=False)
class Session:
    """What every worker of a study has: features, settings, device, and the address and name of the study."""

    features: FeatureSet
    search: Search
    device: str
    url: str
    name: str

    @property
    def identity(self) -> JSONObject:
        """What all workers share; the number of trials may grow."""
        settings = {k: v for k, v in self.search.to_dict().items() if k not in ("trials", "final_tasks")}
        splits = ("base", self.search.split)
        return {"search": settings, "features": {name: self.features.split(name).fingerprint() for name in splits}}

    def objective(self) -> Objective:
        """The objective of its search."""
        tasks, interval = self.search.search_tasks, self.search.rules.interval
        return make_objective(self.features, self.search.make_space(), tasks, interval=interval, device=self.device)

    def first_trial(self, objective: Objective) -> dict[str, JSON]:
        """Parameters of the first trial; raises unless the space holds them."""
        study, first = require_optuna().create_study(), self.search.first_trial()
        study.enqueue_trial(first)
        trial, space = study.ask(), objective.space.name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                objective.method(trial)
        except UserWarning as error:
            raise InputError(f"space {space!r} does not hold the first trial: {one_line(error)}") from error
        return {name: value for name, value in trial.params.items() if name in first}

    def open(self, objective: Objective, resume: bool) -> Study:
        """Begin a study, or continue one that has the same identity."""
        optuna = require_optuna()
        first, storage = self.first_trial(objective), open_storage(self.url)
        with storage_errors(self.url):
            try:
                study = optuna.create_study(
                    storage=storage,
                    study_name=self.name,
                    direction="maximize",
                    load_if_exists=True,
                    sampler=self.search.rules.sampler(None),  # workers that join draw other random numbers
                    pruner=self.search.rules.pruner(),
                )
                begun = study.user_attrs.get(IDENTITY)
                study.get_trials(deepcopy=False)
            except (LookupError, TypeError, ValueError, AssertionError) as error:  # rows that no study has
                raise damaged(self.url, error) from error
            if begun is None:
                if first and not study.trials:
                    study.enqueue_trial(first)
                study.sampler = self.search.rules.sampler(self.search.seed)
                study.set_metric_names(["accuracy"])
                study.set_user_attr(IDENTITY, self.identity)
            elif not resume:
                raise InputError(
                    f"{shown_url(self.url)} already holds a study {self.name!r}; continue or join it with --resume"
                )
            elif begun != self.identity:
                raise InputError(
                    f"the study {self.name!r} has other settings or features: "
                    f"{first_difference(begun, self.identity)}; use the same ones, or another folder or --study"
                )
        return study

    def optimize(self, study: Study, objective: Objective, progress: Progress) -> None:
        """Compute trials until so many are finished, those of other workers included."""
        optuna, trials = require_optuna(), self.search.trials or 0
        file = Path(self.url.removeprefix("sqlite:///")) if self.url.startswith("sqlite") else None

        def after(study: Study, _: FrozenTrial) -> None:
            if file is not None and not file.exists():
                raise FewcalError(f"{file} was deleted or moved during the search; start it again")
            if (done := count_finished(study)) < trials:
                progress(done, trials)

        stop = optuna.study.MaxTrialsCallback(trials, states=_finished())
        while (left := trials - count_finished(study)) > 0:
            try:
                study.optimize(objective, n_trials=left, callbacks=[stop, after])
            except (optuna.exceptions.UpdateFinishedTrialError, ValueError, AssertionError) as error:
                if not _is_taken_over(error):
                    raise
        progress(trials, trials)


def count_finished(study: Study) -> int:
    """Number of trials that are complete or pruned."""
    return len(study.get_trials(deepcopy=False, states=_finished()))


def complete_trials(study: Study) -> list[FrozenTrial]:
    """Complete trials, the best first."""
    trials = study.get_trials(deepcopy=False, states=_finished()[:1])
    return sorted(trials, key=lambda t: (-(t.value or 0.0), t.number))


def _finished() -> tuple[TrialState, ...]:
    from optuna.trial import TrialState

    return TrialState.COMPLETE, TrialState.PRUNED


def _is_taken_over(error: Exception) -> bool:
    """Whether a trial cannot be told, as another worker repeats it: this one was suspended for long."""
    lost = require_optuna().exceptions.UpdateFinishedTrialError
    return any(isinstance(e, lost) or str(e).startswith("Cannot tell") for e in (error, error.__context__))


# ---- several processes ----------------------------------------------------------------------------------------------


@contextmanager
def worker_processes(count: int, session: Session) -> Iterator[None]:
    """Let so many processes compute trials beside this one; they end with it."""
    threads = torch.get_num_threads()
    each = max(1, threads // (count + 1))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(session, each), daemon=True) for _ in range(count)]
    torch.set_num_threads(each)
    try:
        with _ignore_sigint():
            for process in processes:
                process.start()
        yield
        for process in processes:
            process.join()
    finally:
        torch.set_num_threads(threads)
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _work(session: Session, threads: int) -> None:
    torch.set_num_threads(threads)
    with suppress(FewcalError), storage_errors(session.url):  # the parent meets the same error and reports it
        objective = session.objective()
        session.optimize(session.open(objective, resume=True), objective, _follow_parent)


def _follow_parent(done: int, total: int) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit()  # it was killed


@contextmanager
def _ignore_sigint() -> Iterator[None]:
    """Start processes that leave Ctrl-C to their parent, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
