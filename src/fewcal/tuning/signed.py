"""Storages in which a trial names its worker from the moment it runs, so that one of the dead is known as such at once.

A new trial is written with its name. One from the queue cannot be: Optuna changes its state and its attributes in two
steps. There a worker says beforehand that it will try, so that a trial without a name belongs to one of those who did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from fewcal.tuning.worker_process import CLAIM, WORKER, me


def _mine() -> FrozenTrial:
    trial = create_trial(state=TrialState.RUNNING, user_attrs={WORKER: me()})
    trial.datetime_start = datetime.now()
    return trial


def _take(storage: BaseStorage, trial_id: int, set_running: Callable[[], bool]) -> bool:
    """Claim a trial of the queue, take it, sign it; False where another one was faster, whose name it will bear."""
    worker = me()
    claim = f"{CLAIM}{worker['host']} {worker['pid']}"
    storage.set_trial_user_attr(trial_id, claim, worker)
    taken = set_running()
    storage.set_trial_user_attr(trial_id, *((WORKER, worker) if taken else (claim, None)))
    return taken


class SignedJournal(JournalStorage):
    """Optuna's journal, with signed trials."""

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """As Optuna's, and signed."""
        return super().create_new_trial(study_id, template_trial or _mine())

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's; a trial that begins to run is signed."""
        change = partial(super().set_trial_state_values, trial_id, state, values)
        return _take(self, trial_id, change) if state == TrialState.RUNNING else change()


class SignedDatabase(RDBStorage):
    """Optuna's database, with signed trials."""

    # Private of optuna: its cache, which stands before every database, calls this and not `create_new_trial`.
    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        return super()._create_new_trial(study_id, template_trial or _mine())

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's; a trial that begins to run is signed."""
        change = partial(super().set_trial_state_values, trial_id, state, values)
        return _take(self, trial_id, change) if state == TrialState.RUNNING else change()
