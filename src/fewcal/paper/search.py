"""Searches on validation classes: TPE, as the paper tuned, for GDC and DC alike.

Optuna proposes settings in batches; each batch is one run of `fewcal.evaluation`, so that a killed search finds its
trials again. Novel classes are not looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TypeAlias

from fewcal.errors import InputError
from fewcal.methods import Method
from fewcal.paper.measure import Case, Choice, kind

# Values by the name of a parameter, and the values that a search may take.
Setting: TypeAlias = dict[str, float]
Axes: TypeAlias = Mapping[str, Sequence[float]]
# A search of 100 trials takes ten settings at a time.
BATCHES = 10


def can_search(case: Case) -> str:
    """Why nothing can be tuned on these features; "" where it can."""
    if case.of.features.val is None:
        return "nothing is tuned: the features have no validation classes"
    return "" if find_spec("optuna") else "nothing is tuned: install optuna (pip install 'fewcal[tune]')"


def search(case: Case, axes: Axes, make: Callable[[Setting], Method], first: Sequence[Setting] = ()) -> Choice:
    """The best setting of a search by TPE on the same validation tasks; `first` are settings to begin with.

    TPE sees the position of each value on its axis, which is in order. Settings that these features do not admit are
    skipped.
    """
    import optuna

    sgd = kind(make({name: values[0] for name, values in axes.items()})) == "sgd"
    budget = case.budget
    trials, tasks = (budget.sgd_trials, budget.sgd_trial_tasks) if sgd else (budget.trials, budget.trial_tasks)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    batch = max(1, trials // BATCHES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        random = max(1, min(10, trials // 2))
        sampler = optuna.samplers.TPESampler(seed=budget.seed, n_startup_trials=random, constant_liar=batch > 1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for setting in first:
        study.enqueue_trial({name: _nearest(values, setting[name]) for name, values in axes.items()})

    def suggest(trial: optuna.Trial) -> Setting:
        return {name: values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in axes.items()}

    tried: list[tuple[float, Setting]] = []
    for start in range(0, trials, batch):
        batch_trials = [study.ask() for _ in range(min(batch, trials - start))]
        settings = [suggest(trial) for trial in batch_trials]
        found = _accuracies(case, [make(one) for one in settings], tasks)
        for trial, setting, accuracy in zip(batch_trials, settings, found, strict=True):
            if accuracy is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, accuracy)
                tried.append((accuracy, setting))
    if not tried:
        raise InputError("no setting of the search can be used on these features")
    accuracy, setting = max(tried, key=lambda one: one[0])  # the first of equals
    return {"setting": setting, "accuracy": accuracy, "trials": len(tried), "tasks": tasks}


def validation_accuracies(case: Case, methods: Sequence[Method], tasks: int) -> list[float]:
    """Mean accuracy of methods on the first validation tasks."""
    named = {f"trial {i}": method for i, method in enumerate(methods)}
    found = case.runs.evaluate(named, case.of, case.shot or 1, tasks, "val", case.budget.seed)
    return [float(found[name].accuracy.mean()) for name in named]


def _accuracies(case: Case, methods: Sequence[Method], tasks: int) -> Sequence[float | None]:
    try:
        return validation_accuracies(case, methods, tasks)
    except InputError:
        if len(methods) == 1:
            return [None]
        return [one for method in methods for one in _accuracies(case, [method], tasks)]


def _nearest(values: Sequence[float], value: float) -> int:
    return min(range(len(values)), key=lambda i: abs(values[i] - value))
