"""The objective of a search: the accuracy of a trial's parameters on tasks that are the same for every trial."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from fewcal._utils.arrays import pick_device
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol
from fewcal.evaluation.engine import Engine, Job
from fewcal.features import FeatureSet
from fewcal.methods import Method
from fewcal.tuning.spaces import Space, find_space
from fewcal.tuning.storage import require_optuna

if TYPE_CHECKING:
    from optuna.trial import BaseTrial, Trial

# A paired test compares means of so many tasks: fewer ties than with single ones, and fewer rows in the database.
STEP_TASKS = 4
# What a bank keeps of earlier trials: bytes of its rows in other spaces, and number of other derived values.
SPACES_BYTES, MEMO_VALUES = 1 << 30, 100


class Objective:
    """What `make_objective` returns: call it with a trial, or `accuracy` with any method."""

    def __init__(self, features: FeatureSet, space: Space, protocol: Protocol, interval: int, device: str) -> None:
        check_tasks(features, protocol)
        self.space, self.tasks, self.interval = space, protocol.tasks, interval
        base, split = features.split("base"), features.split(protocol.split)
        rows = (base.features, base.require_labels())
        job = Job(rows, split.features, split.require_labels(), {}, protocol.spec, None, device, "tuning")
        self.engine = Engine(job)
        assert self.engine.bank is not None
        self.bank: BaseBank = self.engine.bank

    def method(self, trial: BaseTrial) -> Method:
        """The method of a trial with its parameters (`.settings`)."""
        return self.space.method(trial, len(self.bank))

    def accuracy(self, method: Method) -> np.ndarray:
        """The accuracy of every task, `(T,)`."""
        return np.concatenate(list(self._run(method, self.tasks)))

    def __call__(self, trial: Trial) -> float:
        """The mean accuracy of a trial; raises `optuna.TrialPruned` where the pruner stops it."""
        optuna = require_optuna()
        done = np.empty(0)
        # A GPU computes all tasks as fast as some.
        interval = self.interval if self.engine.device.type == "cpu" else self.tasks
        try:
            for part in self._run(self.method(trial), interval):
                done = np.append(done, part)
                self._report(trial, done, len(part))
                if len(done) < self.tasks and trial.should_prune():
                    raise optuna.TrialPruned(f"after {len(done)} tasks")
        except InputError as error:  # parameters that these features do not admit
            trial.set_user_attr("refused", one_line(error, 400))
            raise optuna.TrialPruned(str(error)) from error
        return float(done.mean())

    def _report(self, trial: Trial, done: np.ndarray, new: int) -> None:
        if isinstance(trial.study.pruner, require_optuna().pruners.WilcoxonPruner):
            for start in range(len(done) - new, len(done), STEP_TASKS):
                trial.report(float(done[start : start + STEP_TASKS].mean()), start)
        else:
            trial.report(float(done.mean()), len(done))

    def _run(self, method: Method, size: int) -> Iterator[np.ndarray]:
        """Accuracies of so many tasks at a time."""
        self.bank.forget_spaces(SPACES_BYTES)
        self.bank.memo.keep_last(MEMO_VALUES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewcalWarning)  # one trial of many may clip α2
            engine = self.engine.with_methods({"trial": method})
            for start in range(0, self.tasks, size):
                block = engine.run(start, min(start + size, self.tasks))
                yield block.correct["trial"].sum(axis=1) / block.queries.sum(axis=1)


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
    tasks = protocol or Protocol(tasks=200, split="val")
    return Objective(loaded, chosen, tasks, interval, str(pick_device(device)))


def check_tasks(features: FeatureSet, protocol: Protocol) -> None:
    """Raise unless the split of a protocol is outside the bank and has classes and rows for its tasks."""
    if protocol.split == "base":
        raise InputError("tasks of a search are drawn from classes outside the bank; use split='val'")
    split = features.split(protocol.split)
    sample_episodes(split.require_labels(), protocol.spec, range(1), split.classes)
