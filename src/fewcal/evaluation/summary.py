"""The summary of a run: figures of every method, paired differences, and the tables that show them.

A statistic of a method is one entry of `STATISTICS`: the summary stores it, and the Markdown table, the terminal and
the HTML report have a column for it where it is defined for some method. An undefined one (the half-width of a single
task, the accuracy of a class without queries) is NaN or None in Python and null in JSON.

    STATISTICS["median"] = Statistic("median", "median %", lambda m: float(np.median(m.accuracy)), percent)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from fewcal._utils.tables import html_table
from fewcal._utils.types import JSONObject
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.stats import ClassInterval, Paired, calibration_error, class_bootstrap, plain, summarise

UNDEFINED = "–"
TRANSDUCTIVE_NOTE = "Transductive methods see all queries of a task together: compare them with each other."
# What a statistic may be.
Value = float | ClassInterval | None


@dataclass(frozen=True, eq=False)
class MethodResults:
    """Every task's outcome for one method: what a statistic is computed from.

    Attributes
    ----------
    class_names : list of str
    classes : array (T, N), positions in `class_names`, −1 for none
    queries : array (T, N), queries of each class
    correct : array (T, N), right answers among them
    detection : array (T, 2) or None, AUROC and recall of outliers
    bins : array (3, B), see `calibration_bins`
    seconds : float
    settings : dict
    """

    class_names: list[str]
    classes: np.ndarray
    queries: np.ndarray
    correct: np.ndarray
    detection: np.ndarray | None
    bins: np.ndarray
    seconds: float
    settings: JSONObject

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy of every task on the queries of its classes, `(T,)`, in 0..1."""
        accuracy: np.ndarray = self.correct.sum(axis=1) / self.queries.sum(axis=1)
        return accuracy

    def per_class(self) -> dict[str, float]:
        """Accuracy over all queries of each class; NaN for a class without any."""
        count, drawn = len(self.class_names), self.classes >= 0
        right, total = (
            np.bincount(self.classes[drawn], n[drawn], minlength=count) for n in (self.correct, self.queries)
        )
        accuracy = np.divide(right, total, out=np.full(count, np.nan), where=total > 0)
        return dict(zip(self.class_names, accuracy.tolist(), strict=True))


# ---- statistics of a method -----------------------------------------------------------------------------------------


def percent(value: float) -> str:
    """A share in per cent with two digits."""
    return f"{100 * value:.2f}"


@dataclass(frozen=True)
class Statistic:
    """A figure of a method, and how tables show it.

    Attributes
    ----------
    name, title : str
        Its key in `summary.json` and the header of its column.
    compute : callable(MethodResults) -> float, ClassInterval or None; NaN or None where it is undefined
    format : callable(value) -> str, for a defined value
    costly : bool
        Left out of a summary without intervals over classes.
    """

    name: str
    title: str
    compute: Callable[[MethodResults], Value]
    format: Callable[[Any], str]
    costly: bool = False

    def text(self, value: Value) -> str:
        """The value as a table shows it; a dash where it is undefined."""
        return UNDEFINED if is_undefined(value) else self.format(value)

    @staticmethod
    def sort_key(value: Value) -> float | None:
        """The number that a column is sorted by."""
        number = value.low if isinstance(value, ClassInterval) else value
        return None if number is None or math.isnan(number) else number


def is_undefined(value: object) -> bool:
    """Whether a statistic has no value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _detection(m: MethodResults, column: int) -> Value:
    return None if m.detection is None else float(np.nanmean(m.detection[:, column]))


def _speed(m: MethodResults) -> float:
    return len(m.classes) / m.seconds if m.seconds > 0 else math.nan


def _ece(m: MethodResults) -> Value:
    return calibration_error(m.bins) if m.settings.get("probabilistic", True) else None


# In the order of their columns. Fields of `MethodSummary` hold those of the same name, `MethodSummary.more` the others.
STATISTICS: dict[str, Statistic] = {
    s.name: s
    for s in (
        Statistic("accuracy", "accuracy %", lambda m: summarise(m.accuracy).mean, percent),
        Statistic("ci95", "95% half-width", lambda m: summarise(m.accuracy).ci95, percent),
        Statistic(
            "class_interval",
            "over classes 95%",
            lambda m: class_bootstrap(m.accuracy, m.classes, m.queries),
            lambda i: f"{100 * i.low:.1f}–{100 * i.high:.1f}",
            costly=True,
        ),
        Statistic("worst10", "worst 10%", lambda m: summarise(m.accuracy).worst10, percent),
        Statistic("ece", "ECE", _ece, "{:.3f}".format),
        Statistic("auroc", "outlier AUROC", lambda m: _detection(m, 0), "{:.3f}".format),
        Statistic("outlier_recall", "outlier recall % at 5%", lambda m: _detection(m, 1), percent),
        Statistic("tasks_per_second", "tasks/s", _speed, "{:.0f}".format),
    )
}


# ---- the summary ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodSummary:
    """Figures of one method. See `fewcal.evaluation.stats` for what the intervals mean.

    Attributes
    ----------
    accuracy, sd, ci95, worst10 : float
        Mean over tasks, standard deviation, half-width of the 95% interval, mean of the worst tenth of the tasks.
    class_interval : ClassInterval or None, over draws of the classes
    ece : float or None, expected calibration error of a method with probabilities
    per_class : dict of float
    tasks : int
    seconds, tasks_per_second : float
    settings : dict, kind and parameters as they were used
    more : dict, the other entries of `STATISTICS`
    """

    accuracy: float
    sd: float
    ci95: float
    worst10: float
    class_interval: ClassInterval | None
    ece: float | None
    per_class: dict[str, float]
    tasks: int
    seconds: float
    tasks_per_second: float
    settings: JSONObject
    more: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, results: MethodResults, *, class_intervals: bool = True) -> MethodSummary:
        """All statistics of a method; those that are costly only with `class_intervals`."""
        computed = [s for s in STATISTICS.values() if class_intervals or not s.costly]
        found: JSONObject = {"class_interval": None} | {s.name: s.compute(results) for s in computed}
        return cls(
            sd=summarise(results.accuracy).sd,
            per_class=results.per_class(),
            tasks=len(results.classes),
            seconds=results.seconds,
            settings=results.settings,
            **{name: found.pop(name) for name in list(found) if name in _FIELDS},
            more=found,
        )

    @property
    def transductive(self) -> bool:
        """Whether it answered all queries of a task together."""
        return bool(self.settings.get("transductive"))

    def value(self, name: str) -> Value:
        """A statistic by its name; None where this summary does not have it."""
        found: Value = getattr(self, name) if name in _FIELDS else self.more.get(name)
        return found

    def to_dict(self) -> JSONObject:
        """Plain values for JSON."""
        own = {name: plain(getattr(self, name)) for name in _FIELDS}
        return own | {k: plain(v) for k, v in self.more.items()} | {"settings": self.settings}


_FIELDS = [f.name for f in dataclasses.fields(MethodSummary) if f.name != "more"]


@dataclass(frozen=True, repr=False)
class Summary:
    """A run in figures: its protocol, every method, and the paired differences on the same tasks."""

    protocol: Protocol
    methods: dict[str, MethodSummary]
    paired: list[Paired]

    @property
    def leaders(self) -> list[str]:
        """The inductive method with the highest mean accuracy, and the transductive one; of equals the first."""
        out = []
        for transductive in (False, True):
            kind = [name for name, m in self.methods.items() if m.transductive == transductive]
            out += sorted(kind, key=lambda name: -self.methods[name].accuracy)[:1]
        return out

    @property
    def best(self) -> str:
        """The leader of the inductive methods; of the transductive ones where there are no others."""
        return self.leaders[0]

    def label(self, name: str) -> str:
        """The name of a method in a table, with its kind where that is transductive."""
        return f"{name} (transductive)" if self.methods[name].transductive else name

    def difference(self, a: str, b: str) -> Paired:
        """The paired difference a − b, whichever way round it was computed."""
        for pair in self.paired:
            if {pair.a, pair.b} == {a, b}:
                return pair if pair.a == a else pair.reversed()
        raise KeyError(f"{a!r} and {b!r} were not compared")

    @property
    def differences(self) -> list[Paired]:
        """The pairs that tables show: those with the reference, or else the best less each other method."""
        if len({pair.b for pair in self.paired}) <= 1:
            return self.paired
        return [self.difference(self.best, name) for name in self.methods if name != self.best]

    def to_dict(self) -> JSONObject:
        """Plain values for JSON: `summary.json` of a run."""
        return {
            "protocol": self.protocol.to_dict(),
            "methods": {name: m.to_dict() for name, m in self.methods.items()},
            "paired": [pair.to_dict() for pair in self.paired],
        }

    def columns(self) -> list[Statistic]:
        """Statistics that are defined for some method, in the order of their columns."""
        return [s for s in STATISTICS.values() if not all(is_undefined(m.value(s.name)) for m in self.methods.values())]

    def notes(self) -> list[str]:
        """Sentences that a reader of the tables needs."""
        shown, pairs = len(self.differences), len(self.paired)
        family = f"Pairs with {self.best}, the best; p-values are corrected over all {pairs} pairs."
        return [family] * (shown < pairs) + [TRANSDUCTIVE_NOTE] * any(m.transductive for m in self.methods.values())

    def _tables(self) -> Iterable[tuple[list[str], list[list[str]]]]:
        """Header and rows of two tables: methods, and differences between them."""
        columns = self.columns()
        yield (
            ["method", *(s.title for s in columns)],
            [[self.label(name), *(s.text(m.value(s.name)) for s in columns)] for name, m in self.methods.items()],
        )
        if self.paired:
            rows = []
            for d in self.differences:
                p_values = (show_p(d.p_t_holm), show_p(d.p_wilcoxon_holm))
                name = f"{self.label(d.a)} − {self.label(d.b)}"
                rows.append([name, f"{100 * d.difference:+.2f}", show_points(d.ci95), *p_values])
            yield ["difference", "points", "95% half-width", "p (t, Holm)", "p (Wilcoxon, Holm)"], rows

    def to_markdown(self) -> str:
        """Two Markdown tables: methods, and differences between them."""
        parts = [str(self.protocol), *("\n".join(_markdown(*t)) for t in self._tables()), *self.notes()]
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        return self.to_markdown().rstrip()

    def _repr_html_(self) -> str:
        """The same tables as HTML, for notebooks."""
        tables = "".join(html_table(header, rows) for header, rows in self._tables())
        return f"<p>{escape(str(self.protocol))}</p>{tables}" + "".join(f"<p>{escape(n)}</p>" for n in self.notes())


def show_points(value: float | None) -> str:
    """A share in points; a single task has no interval."""
    return UNDEFINED if is_undefined(value) or value is None else percent(value)


def show_p(value: float | None) -> str:
    """A p-value with four digits."""
    if value is None or math.isnan(value):
        return UNDEFINED
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]
