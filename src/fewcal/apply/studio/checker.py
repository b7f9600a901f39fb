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
from fewcal.errors import FewcalError, InputError

QUIET_S = 0.4  # without a change before a check begins: while somebody labels, the answers have the processor


class Checker:
    """Checks the examples when they have changed and nothing has happened for a moment; `keep` takes the check."""

    def __init__(self, moment: Callable[[], Moment], keep: Callable[[Checked], None]) -> None:
        self._moment, self._keep = moment, keep
        self._turn, self._stop = 0, False
        self._thread = threading.Thread()

    def wake(self) -> None:
        """Something has changed: give up what is under way, and begin again."""
        self._turn += 1
        if not self._stop:
            timer = threading.Timer(QUIET_S, self._run, [self._turn])
            timer.daemon = True
            self._thread = timer
            timer.start()

    def stop(self) -> None:
        self._stop = True
        self._turn += 1
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _run(self, turn: int) -> None:
        def still(*_: int) -> None:
            if turn != self._turn:
                raise InputError("the examples have changed")

        try:
            still()
            moment = self._moment()
            if moment.checked is None or list(moment.checked.labels.items()) != list(moment.labels.items()):
                self._keep(check_moment(moment, still))
        except FewcalError:  # a page hears of what is wrong by what it does itself
            return


def check_moment(moment: Moment, progress: Callable[[int, int], None] | None = None) -> Checked:
    """The check of the examples of a moment; of very many, of an even sample."""
    at, names = (spaced(values) for values in moment.examples())
    found = None
    if len(np.unique(names)) > 1:
        found = check_examples(moment.x[at], names, moment.recipe.make, progress=progress)
    return Checked(moment.labels, [moment.ids[n] for n in at], found)


def warm_up(recipe: Recipe) -> None:
    """Prepare what the first fit takes seconds for, before there are labels."""
    rows = np.random.default_rng(0).random((2, 4 if recipe.bank is None else recipe.bank.dim), np.float32)
    with catch_warnings():
        simplefilter("ignore")
        predict_items(recipe, rows, np.arange(2), np.array(["a", "b"]))
        expected_accuracy(np.eye(2), ["a", "b"], np.array([True, False]))  # which imports SciPy
