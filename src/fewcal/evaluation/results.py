"""Results of an evaluation: every task's outcome for every method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.stats import CalibrationBins, paired_table
from fewcal.evaluation.summary import MethodResults, MethodSummary, Summary


@dataclass(eq=False)
class Results:
    """Every task's outcome for every method.

    Attributes
    ----------
    protocol : Protocol
    class_names : list of str
        Classes of the split that tasks were drawn from.
    classes : array (T, N), positions in `class_names`
    correct : dict of arrays (T, N), right answers among the Q queries of each class
    bins : dict of CalibrationBins
    seconds : dict of float
        Time spent in each method, added up over worker processes.
    settings : dict of dict, parameters of each method, as they were used on this bank
    identity : dict
        What fixes the tasks: fingerprints of the features, and the protocol.
    """

    protocol: Protocol
    class_names: list[str]
    classes: np.ndarray
    correct: dict[str, np.ndarray]
    bins: dict[str, CalibrationBins]
    seconds: dict[str, float]
    settings: dict[str, JSONObject]
    identity: JSONObject = field(default_factory=dict)

    def method(self, name: str) -> MethodResults:
        """The outcome of one method."""
        return MethodResults(
            self.protocol, self.class_names, self.classes, self.correct[name], self.bins[name], self.seconds[name]
        )

    def accuracy(self, method: str) -> np.ndarray:
        """Accuracy of every task, `(T,)`, in 0..1."""
        return self.method(method).accuracy

    def summary(self, reference: str | None = None, class_intervals: bool = True) -> Summary:
        """Figures of every method, and the differences of all pairs or of each method from `reference`."""
        methods = {
            name: MethodSummary.of(self.method(name), self.settings[name], class_intervals=class_intervals)
            for name in self.correct
        }
        accuracies = {name: self.accuracy(name) for name in self.correct}
        pairs = paired_table(accuracies, reference) if len(accuracies) > 1 else []
        return Summary(self.protocol, methods, pairs)
