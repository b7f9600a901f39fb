"""One trial: the accuracy of given parameters on tasks that are the same for every trial."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fewcal.bank import BaseBank
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalWarning
from fewcal.evaluation.engine import Engine, Job
from fewcal.methods import Method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams

# Memory for spaces of the bank that may be asked for again.
_SPACES_BYTES = 2 << 30


class TrialRunner:
    """Bank, features and tasks made ready once; then any number of trials.

    Parameters
    ----------
    base : tuple (X (R, D), y (R,))
    features, labels : arrays (R, D) and (R,)
        The split that tasks are drawn from.
    spec : EpisodeSpec
    tasks : int
    device : str
    """

    def __init__(
        self,
        base: tuple[np.ndarray, np.ndarray],
        features: np.ndarray,
        labels: np.ndarray,
        spec: EpisodeSpec,
        tasks: int,
        device: str = "cpu",
    ) -> None:
        episodes = sample_episodes(labels, spec, range(tasks))
        self.tasks = tasks
        self.engine = Engine(Job(base, features, labels, {}, spec, episodes, device, "tuning"))
        bank = self.engine.bank
        assert bank is not None
        self.bank: BaseBank = bank

    def run(
        self, method: GDCParams | Method, first: int | None = None, then: int | None = None
    ) -> Iterator[np.ndarray]:
        """Accuracies of the tasks: of the `first` so many, and `then` so many at a time; all at once without.

        On a GPU all tasks are computed at once in any case, since a few take as long as all.
        """
        ready = method if isinstance(method, Method) else GDC(method, cap_k=True)
        first = self.tasks if first is None or self.engine.device.type == "cuda" else min(first, self.tasks)
        borders = [0, *range(first, self.tasks, then or self.tasks), self.tasks]
        per_task = self.engine.job.spec.way * self.engine.job.spec.query
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewcalWarning)  # a clipped α2 of one trial in a thousand is expected
            self.bank.forget_spaces(_SPACES_BYTES)
            engine = self.engine.with_methods({"trial": ready})
            for start, stop in pairwise(borders):
                yield engine.run(start, stop).correct["trial"].sum(axis=1) / per_task

    def accuracy(self, method: GDCParams | Method) -> np.ndarray:
        """Accuracy of every task, `(tasks,)`."""
        return np.concatenate(list(self.run(method)))
