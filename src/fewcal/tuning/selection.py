"""From trials to one set of parameters.

The best of a thousand trials on 200 tasks owes part of its lead to luck. So the trials that cannot be told from the
best by their own tasks (at most one standard error of the paired difference behind) are measured again as finalists on
fresh tasks of the same classes, together with the preset `default`. Among the finalists the same rule decides: of those
that are at most one standard error behind the best, the one nearest to `default` is taken (the one-standard-error rule,
with the preset as the simplest model).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fewcal.errors import FewcalError, InputError
from fewcal.tuning.spaces import Picks, Space
from fewcal.tuning.storage import complete_trials

# Names of protocols must be there at once: what loads torch or NumPy is here for its types.
if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.trial import FrozenTrial

    from fewcal.params import GDCParams
    from fewcal.tuning.trials import TrialRunner


@dataclass(frozen=True, eq=False)
class Finalist:
    """A trial that was measured again.

    Attributes
    ----------
    number : int
        Of the trial; −1 for a preset that is no trial.
    values : dict, its picks in the space
    params : GDCParams
    tuned : float or None
        Accuracy on the tasks of the search; None for a preset that is no complete trial.
    accuracy : array (tasks,)
        On the fresh tasks.
    """

    number: int
    values: Picks
    params: GDCParams
    tuned: float | None
    accuracy: np.ndarray

    @property
    def mean(self) -> float:
        """Mean accuracy on the fresh tasks."""
        return float(self.accuracy.mean())

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return "preset default" if self.number < 0 else f"trial {self.number}"

    def accuracies(self, fresh_tasks: bool) -> dict[str, float | None]:
        """Its accuracies by the tasks they are of; on fresh tasks only where the protocol has some."""
        return {"search tasks": self.tuned, "fresh tasks": self.mean if fresh_tasks else None}


def behind(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """How far `other` is behind `best` on the same tasks: mean of the paired differences and its standard error.

    >>> import numpy as np
    >>> gap, error = behind(np.array([1.0, 0.5, 0.75, 0.75]), np.array([0.5, 0.5, 0.5, 0.5]))
    >>> round(gap, 3), round(error, 3)
    (0.25, 0.102)
    """
    difference = best - other
    spread = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    return float(difference.mean()), spread / len(difference) ** 0.5


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Complete trials, the best first; there must be some."""
    trials = complete_trials(study)
    if not trials:
        raise FewcalError("no trial of this study is complete; run more trials")
    return trials


def contenders(study: optuna.Study, most: int) -> list[FrozenTrial]:
    """Complete trials that are at most one standard error behind the best, the best first; doubles are left out."""
    trials = ranked(study)
    reference = _steps(trials[0])
    found: list[FrozenTrial] = []
    for trial in trials:
        own = _steps(trial)
        gap, error = behind(reference, own) if own.shape == reference.shape else (math.inf, 0.0)
        if gap <= error + 1e-12 and all(trial.params != other.params for other in found):
            found.append(trial)
        if len(found) == most:
            break
    return found


def _steps(trial: FrozenTrial) -> np.ndarray:
    import numpy as np

    values = trial.intermediate_values
    return np.array([values[step] for step in sorted(values)])


def rerun_finalists(
    study: optuna.Study, space: Space, presets: Sequence[Picks], runner: TrialRunner, most: int
) -> list[Finalist]:
    """The contenders, at most `most`, and presets, measured on the fresh tasks of `runner`; the best first."""
    found = []
    trials = contenders(study, most)
    known = [t.params for t in trials]
    for trial in trials:
        params = space.params(trial.params)
        found.append(Finalist(trial.number, trial.params, params, trial.value, runner.accuracy(params)))
    for values in presets:
        if values not in known:
            params = space.params(values)
            # Not of a pruned trial: its value is that of its last step alone.
            score = next((t.value for t in ranked(study) if t.params == values), None)
            found.append(Finalist(-1, values, params, score, runner.accuracy(params)))
    return sorted(found, key=lambda f: (-f.mean, f.number))


def choose(finalists: Sequence[Finalist], space: Space, simplest: Picks | None) -> Finalist:
    """The one-standard-error rule; without a simplest model, the best."""
    if not finalists:
        raise InputError("there are no finalists to choose from")
    best = finalists[0]
    if simplest is None:
        return best
    gaps = [(f, *behind(best.accuracy, f.accuracy)) for f in finalists]
    close = [f for f, gap, error in gaps if gap - error <= 1e-12]
    return min(close, key=lambda f: (space.distance(f.values, simplest), -f.mean))


def top(study: optuna.Study, space: Space, most: int = 3) -> list[Finalist]:
    """The best complete trials as they are: the paper's candidates."""
    out: list[Finalist] = []
    for t in ranked(study):
        if all(t.params != f.values for f in out):
            out.append(from_trial(t, space))
        if len(out) == most:
            break
    return out


def from_trial(trial: FrozenTrial, space: Space) -> Finalist:
    """A complete trial that was not measured again."""
    import numpy as np

    values = trial.params
    return Finalist(trial.number, values, space.params(values), trial.value, np.array([trial.value]))
