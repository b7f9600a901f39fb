"""The objective of a search: the accuracy of a trial's parameters on tasks that are the same for every trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.evaluation import Protocol
from fewcal.features import FeatureSet
from fewcal.methods import Method
from fewcal.tuning.spaces import Space, find_space
from fewcal.tuning.storage import require_optuna
from fewcal.tuning.trials import TaskRunner

if TYPE_CHECKING:
    from optuna.trial import BaseTrial, Trial

# A paired test compares means of so many tasks: fewer ties than with single ones, and fewer rows in the database.
STEP_TASKS = 4


class Objective:
    """What `make_objective` returns; `accuracy(method)` measures any method on the same tasks."""

    def __init__(self, runner: TaskRunner, space: Space, interval: int) -> None:
        self.runner, self.space, self.interval = runner, space, interval

    def method(self, trial: BaseTrial) -> Method:
        """The method of a trial with its parameters (`.settings`)."""
        return self.space.method(trial, len(self.runner.bank))

    def accuracy(self, method: Method) -> np.ndarray:
        """The accuracy of every task, `(T,)`."""
        return self.runner.accuracy(method)

    def __call__(self, trial: Trial) -> float:
        """The mean accuracy of a trial; raises `optuna.TrialPruned` where the pruner stops it."""
        optuna = require_optuna()
        found = np.empty(0)
        try:
            for part in self.runner.run(self.method(trial), self.interval):
                found = np.append(found, part)
                self._report(trial, found, len(part))
                if len(found) < self.runner.tasks and trial.should_prune():
                    raise optuna.TrialPruned(f"after {len(found)} tasks")
        except InputError as error:  # parameters that these features do not admit
            trial.set_user_attr("refused", one_line(error, 400))
            raise optuna.TrialPruned(str(error)) from error
        return float(found.mean())

    def _report(self, trial: Trial, found: np.ndarray, fresh: int) -> None:
        if isinstance(trial.study.pruner, require_optuna().pruners.WilcoxonPruner):
            for start in range(len(found) - fresh, len(found), STEP_TASKS):
                trial.report(float(found[start : start + STEP_TASKS].mean()), start)
        else:
            trial.report(float(found.mean()), len(found))


def make_objective(
    features: FeatureSet | StrPath,
    space: str | Space = "hgdc",
    protocol: Protocol | None = None,
    *,
    head: str | None = None,
    interval: int = 60,
    device: str | torch.device | None = None,
) -> Objective:
    """Make an objective for a study of your own, to be maximised.

    It returns the mean accuracy. A `WilcoxonPruner` gets the mean of each 4 tasks, which it pairs with those of the
    best trial; any other pruner gets the mean so far.

    Parameters
    ----------
    features : FeatureSet or folder
        With the splits `base` and that of the protocol.
    space : str or Space
        A name in `fewcal.tuning.SPACES`, or a space of your own.
    protocol : Protocol or None
        The tasks, the same for every trial; None: 200 tasks of the split `val`.
    head : str or None
        The one head of a space of GDC; None: those of the space.
    interval : int
        Tasks between two looks of the pruner.
    device : "cpu", "cuda", "auto"

    Examples
    --------
    >>> import optuna
    >>> from fewcal.features.synthetic import make_features
    >>> features = make_features(base=12, val=6, novel=0, rows=12, dim=8)
    >>> objective = make_objective(features, "hgdc", Protocol(tasks=20, query=5, split="val"))
    >>> study = optuna.create_study(direction="maximize")
    >>> study.optimize(objective, n_trials=3)
    >>> objective.method(study.best_trial).name
    'hgdc'
    """
    if interval < STEP_TASKS or interval % STEP_TASKS:
        raise InputError(f"interval={interval} must be a multiple of {STEP_TASKS} tasks")
    chosen = find_space(space, head)
    loaded = features if isinstance(features, FeatureSet) else FeatureSet.load(features)
    runner = TaskRunner(loaded, protocol or Protocol(tasks=200, split="val"), str(pick_device(device)))
    return Objective(runner, chosen, interval)
