"""Results of an evaluation: every task's outcome for every method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.stats import CalibrationBins, paired_table
from fewcal.evaluation.summary import MethodResults, MethodSummary, Summary


@dataclass(eq=False, repr=False)
class Results:
    """Every task's outcome for every method; printed, it is the table of its summary.

    Attributes
    ----------
    protocol : Protocol
    class_names : list of str
        Classes of the split that tasks were drawn from.
    classes : array (T, N)
        Classes of each task as positions in `class_names`; −1 where a task has fewer than others.
    queries : array (T, N), queries of each class
    correct : dict of arrays (T, N), right answers among them
    detection : dict of arrays (T, 2)
        AUROC and recall of outliers in each task; empty where tasks have none.
    bins : dict of CalibrationBins
    seconds : dict of float
        Time spent in each method, added up over worker processes.
    settings : dict of dict, kind and parameters of each method, as they were used on this bank
    identity : dict
        What fixes the tasks: fingerprints of the features, and the protocol.
    """

    protocol: Protocol
    class_names: list[str]
    classes: np.ndarray
    queries: np.ndarray
    correct: dict[str, np.ndarray]
    detection: dict[str, np.ndarray]
    bins: dict[str, CalibrationBins]
    seconds: dict[str, float]
    settings: dict[str, JSONObject]
    identity: JSONObject = field(default_factory=dict)

    def method(self, name: str) -> MethodResults:
        """The outcome of one method."""
        return MethodResults(
            self.class_names,
            self.classes,
            self.queries,
            self.correct[name],
            self.detection.get(name),
            self.bins[name],
            self.seconds[name],
            self.settings[name],
        )

    def accuracy(self, method: str) -> np.ndarray:
        """Accuracy of every task, `(T,)`, in 0..1."""
        return self.method(method).accuracy

    def summary(self, reference: str | None = None, class_intervals: bool = True) -> Summary:
        """Figures of every method, and the differences of all pairs or of each method from `reference`."""
        methods = {name: MethodSummary.of(self.method(name), class_intervals=class_intervals) for name in self.correct}
        pairs = paired_table({name: self.accuracy(name) for name in self.correct}, reference)
        return Summary(self.protocol, methods, pairs)

    def __repr__(self) -> str:
        return repr(self.summary(class_intervals=False))

    def _repr_html_(self) -> str:
        """The tables of the summary, for notebooks."""
        return self.summary()._repr_html_()
