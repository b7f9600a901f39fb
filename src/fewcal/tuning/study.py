"""A study: begun, continued or joined, and its trials, which any number of processes compute."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fewcal._utils.names import nearest_names
from fewcal._utils.types import JSONObject, Progress
from fewcal.errors import FewcalError, InputError
from fewcal.evaluation.run_folder import first_difference
from fewcal.features import FeatureSet
from fewcal.tuning.objective import Objective, make_objective
from fewcal.tuning.search import Search
from fewcal.tuning.storage import damaged, open_storage, require_optuna, shown_url, storage_errors

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

IDENTITY = "fewcal"


@dataclass(frozen=True)
class StudyPlace:
    """The address of a database, from `storage_url`, and the name of a study in it."""

    url: str
    name: str

    @property
    def file(self) -> Path | None:
        """The file of the database, if it is one."""
        return Path(self.url.removeprefix("sqlite:///")) if self.url.startswith("sqlite") else None


def make_search_objective(features: FeatureSet, search: Search, device: str) -> Objective:
    """The objective of a search."""
    space, rules = search.make_space(), search.rules
    objective = make_objective(features, space, search.search_tasks, interval=rules.interval, device=device)
    if search.fixed:
        trial = require_optuna().create_study(sampler=search.sampler(0)).ask()
        objective.method(trial)
        for name in search.fixed:
            if name not in trial.params:
                raise InputError(f"space {space.name!r} has no parameter {name!r}{nearest_names(name, trial.params)}")
    return objective


def identity_of(search: Search, features: FeatureSet) -> JSONObject:
    """What all workers of a study share."""
    settings = {k: v for k, v in search.to_dict().items() if k not in ("trials", "final_tasks")}
    fingerprints = {name: features.split(name).fingerprint() for name in ("base", search.split)}
    return {"search": settings, "features": fingerprints}


def open_study(place: StudyPlace, search: Search, identity: JSONObject, resume: bool) -> Study:
    """Begin a study, or continue one that has the same identity."""
    optuna = require_optuna()
    storage = open_storage(place.url)
    with storage_errors(place.url):
        try:
            study = optuna.create_study(
                storage=storage,
                study_name=place.name,
                direction="maximize",
                load_if_exists=True,
                sampler=search.sampler(None),  # workers that join draw other random numbers
                pruner=search.rules.pruner(),
            )
            begun = study.user_attrs.get(IDENTITY)
            study.get_trials(deepcopy=False)
        except (LookupError, TypeError, ValueError, AssertionError) as error:  # rows that no study has
            raise damaged(place.url, error) from error
        if begun is not None and not resume:
            raise InputError(
                f"{shown_url(place.url)} already holds a study {place.name!r}; continue or join it with --resume"
            )
        if begun is not None and begun != identity:
            raise InputError(
                f"the study {place.name!r} has other settings or features: {first_difference(begun, identity)}; "
                "use the same ones, or another folder or --study"
            )
        if begun is None:
            first = search.make_space().first
            if first and not study.trials:
                study.enqueue_trial({**first, **search.fixed})
            study.sampler = search.sampler(search.seed)
            study.set_metric_names(["accuracy"])
            study.set_user_attr(IDENTITY, identity)
    return study


def count_finished(study: Study) -> int:
    """Number of trials that are complete or pruned."""
    return len(study.get_trials(deepcopy=False, states=_finished()))


def complete_trials(study: Study) -> list[FrozenTrial]:
    """Complete trials, the best first."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda t: (-(t.value or 0.0), t.number))


def optimize(study: Study, objective: Objective, place: StudyPlace, trials: int, progress: Progress) -> None:
    """Compute trials until so many are finished, those of other workers included."""
    optuna = require_optuna()

    def after(study: Study, _: FrozenTrial) -> None:
        if place.file is not None and not place.file.exists():
            raise FewcalError(f"{place.file} was deleted or moved during the search; start it again")
        progress(min(count_finished(study), trials), trials)

    stop = optuna.study.MaxTrialsCallback(trials, states=_finished())
    while (left := trials - count_finished(study)) > 0:
        try:
            study.optimize(objective, n_trials=left, callbacks=[stop, after])
        except optuna.exceptions.UpdateFinishedTrialError:
            continue  # this process was suspended, and another worker repeats its trial
    progress(trials, trials)


def _finished() -> tuple[object, ...]:
    from optuna.trial import TrialState

    return TrialState.COMPLETE, TrialState.PRUNED


# ---- several processes ----------------------------------------------------------------------------------------------


@contextmanager
def worker_processes(
    count: int, features: FeatureSet, search: Search, identity: JSONObject, place: StudyPlace, device: str
) -> Iterator[list[SpawnProcess]]:
    """Let so many processes compute trials of a study beside this one, and end them with it."""
    threads = torch.get_num_threads()
    context = multiprocessing.get_context("spawn")
    each = max(1, threads // (count + 1))
    arguments = (features, search, identity, place, device, each)
    processes = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(count)]
    torch.set_num_threads(each)
    try:
        with _ignore_sigint():
            for process in processes:
                process.start()
        yield processes
    finally:
        torch.set_num_threads(threads)
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _work(
    features: FeatureSet, search: Search, identity: JSONObject, place: StudyPlace, device: str, threads: int
) -> None:
    torch.set_num_threads(threads)
    with suppress(FewcalError):  # the parent meets the same error and reports it
        objective = make_search_objective(features, search, device)
        study = open_study(place, search, identity, resume=True)
        assert search.trials is not None
        with storage_errors(place.url):
            optimize(study, objective, place, search.trials, _follow_parent)


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
