"""Results of an evaluation: every task's outcome for every method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.evaluation.outcome import BY_METHOD, Outcome
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.stats import paired_table
from fewcal.evaluation.summary import MethodResults, MethodSummary, Summary


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Results(Outcome):
    """Every task's outcome for every method; printed, it is the table of its summary.

    Attributes
    ----------
    classes, queries, correct, detection, bins, seconds
        See `Outcome`.
    protocol : Protocol
    class_names : list of str
        Classes of the split that tasks were drawn from.
    settings : dict of dict, kind and parameters of each method, as they were used on this bank
    identity : dict
        What fixes the tasks: fingerprints of the features, and the protocol.
    """

    protocol: Protocol
    class_names: list[str]
    settings: dict[str, JSONObject]
    identity: JSONObject = field(default_factory=dict)

    def method(self, name: str) -> MethodResults:
        """The outcome of one method."""
        own = {part: getattr(self, part).get(name) for part in (*BY_METHOD, "settings")}
        return MethodResults(self.class_names, self.classes, self.queries, **own)

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
