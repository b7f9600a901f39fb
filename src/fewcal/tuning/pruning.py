"""When a trial is stopped: what is reported of it after how many tasks, and Optuna's pruner that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from fewcal.tuning.storage import require_optuna

# NumPy, too, would be felt in `fewcal --help`, which names protocols.
if TYPE_CHECKING:
    import numpy as np
    import optuna


class Pruning(Protocol):
    """A rule that stops trials.

    Attributes
    ----------
    first, then : int
        Tasks to compute before the first look, and between two looks.
    """

    first: ClassVar[int]
    then: ClassVar[int]

    def pruner(self) -> optuna.pruners.BasePruner:
        """Optuna's pruner."""

    def report(self, trial: optuna.Trial, accuracy: np.ndarray, fresh: int, tasks: int) -> bool:
        """Report the newest `fresh` of the accuracies so far step by step; whether to stop there, of `tasks` in all."""


class PairedPruning:
    """Wilcoxon's test pairs the mean of each four tasks with that of the best trial; a test every 60 tasks.

    With 14 pairs or more Wilcoxon's test is the quick one; below, SciPy tries thousands of permutations.
    """

    first: ClassVar[int] = 60
    then: ClassVar[int] = 60
    step: ClassVar[int] = 4

    def pruner(self) -> optuna.pruners.BasePruner:
        """Optuna's `WilcoxonPruner`."""
        pruner: optuna.pruners.BasePruner = require_optuna().pruners.WilcoxonPruner(
            p_threshold=0.05, n_startup_steps=self.first // self.step
        )
        return pruner

    def report(self, trial: optuna.Trial, accuracy: np.ndarray, fresh: int, tasks: int) -> bool:
        """Report the mean of each step."""
        means = steps(accuracy, self.step)
        for i in range((len(accuracy) - fresh) // self.step, len(means)):
            seen = min((i + 1) * self.step, len(accuracy))
            trial.report(float(means[i]), i)
            if seen < tasks and seen % self.then == 0 and trial.should_prune():
                return True
        return False


class MedianPruning:
    """The paper's: the mean so far is compared with the median of other trials every 10 tasks, after the first 100."""

    first: ClassVar[int] = 100
    then: ClassVar[int] = 20
    step: ClassVar[int] = 10

    def pruner(self) -> optuna.pruners.BasePruner:
        """Optuna's `MedianPruner`."""
        pruner: optuna.pruners.BasePruner = require_optuna().pruners.MedianPruner(
            n_startup_trials=100, n_warmup_steps=self.first, interval_steps=self.step
        )
        return pruner

    def report(self, trial: optuna.Trial, accuracy: np.ndarray, fresh: int, tasks: int) -> bool:
        """Report the mean so far after each step; Optuna compares the best of them, so not before the first look."""
        for start in range((len(accuracy) - fresh) // self.step * self.step, len(accuracy), self.step):
            seen = min(start + self.step, len(accuracy))
            if seen < min(self.first, tasks):
                continue
            trial.report(float(accuracy[:seen].mean()), seen)
            if seen < tasks and trial.should_prune():
                return True
        return False


def steps(accuracy: np.ndarray, size: int) -> np.ndarray:
    """Means of each `size` tasks, the last of what is left over.

    >>> import numpy as np
    >>> steps(np.arange(12.0), 10).tolist()
    [4.5, 10.5]
    """
    import numpy as np

    return np.array([accuracy[i : i + size].mean() for i in range(0, len(accuracy), size)])
