"""The check of the examples in the background: as many fits as there are folds, for which no answer waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from warnings import catch_warnings, simplefilter

import numpy as np

from fewcal.apply.check import check_examples
from fewcal.apply.labelling import expected_accuracy
from fewcal.apply.studio.answers import Recipe, predict_items
from fewcal.apply.studio.moment import Checked, Moment, spaced
from fewcal.errors import FewcalError

QUIET_S = 0.4  # without a change before a check begins


class _ChangedError(Exception):
    """Something changed while a check was under way."""


class Checker:
    """Checks the examples whenever they have changed and nothing has happened for a moment.

    Parameters
    ----------
    moment : gives the project as it is
    keep : takes the check
    """

    def __init__(self, moment: Callable[[], Moment], keep: Callable[[Checked], None]) -> None:
        self._moment, self._keep = moment, keep
        self._news, self._stop = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="fewcal-checker", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        self._news.set()

    def stop(self) -> None:
        """Give up what is under way, and end."""
        self._stop = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        warm_up(self._moment().recipe)
        while True:
            self._news.wait()
            # While somebody labels, the answers have the processor to themselves.
            while self._news.is_set() and not self._stop:
                self._news.clear()
                self._news.wait(QUIET_S)
            if self._stop:
                return
            try:
                moment = self._moment()
                if moment.checked is None or list(moment.checked.labels.items()) != list(moment.labels.items()):
                    self._keep(check_moment(moment, self._give_up))
            except (_ChangedError, FewcalError):  # which a page hears of by what it does itself
                continue

    def _give_up(self, done: int, total: int) -> None:
        if self._news.is_set():
            raise _ChangedError


def check_moment(moment: Moment, progress: Callable[[int, int], None] | None = None) -> Checked:
    """The check of the examples of a moment; of very many, of an even sample."""
    at, names = moment.examples()
    kept = spaced(np.arange(len(at)))
    at, names = at[kept], names[kept]
    found = None
    if len(np.unique(names)) > 1:
        beta = moment.recipe.beta
        found = check_examples(moment.x[at], names, moment.recipe.make, beta=beta, progress=progress)
    return Checked(moment.labels, [moment.ids[n] for n in at], found)


def warm_up(recipe: Recipe) -> None:
    """Prepare what the first fit takes seconds for, before there are labels."""
    rows = np.random.default_rng(0).random((2, 4 if recipe.bank is None else recipe.bank.dim), np.float32)
    with catch_warnings():
        simplefilter("ignore")
        predict_items(recipe, rows, np.arange(2), np.array(["a", "b"]))
        expected_accuracy(np.eye(2), ["a", "b"], np.array([True, False]))  # which imports SciPy
