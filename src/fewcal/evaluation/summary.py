"""What a run's results come to: figures of every method, paired differences, and the tables that show them.

A statistic of a method is one entry of `STATISTICS`: the summary stores it, and the Markdown table, the terminal and
the HTML report have a column for it.

    STATISTICS["median"] = Statistic("median", "median %", lambda m: float(np.median(m.accuracy)), percent)

What is undefined (the half-width of a single task, the accuracy of a class that was never asked) is NaN in Python and
null in JSON.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.errors import FewcalWarning
from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.stats import (
    CalibrationBins,
    ClassInterval,
    Paired,
    class_bootstrap,
    per_class_accuracy,
    summarise,
)

UNDEFINED = "–"
# What a statistic may be.
Value = float | ClassInterval | None


@dataclass(frozen=True, eq=False)
class MethodResults:
    """Every task's outcome for one method: what a statistic is computed from.

    Attributes
    ----------
    protocol : Protocol
    class_names : list of str
    classes : array (T, N), positions in `class_names`
    correct : array (T, N), right answers among the Q queries of each class
    bins : CalibrationBins
    seconds : float
    """

    protocol: Protocol
    class_names: list[str]
    classes: np.ndarray
    correct: np.ndarray
    bins: CalibrationBins
    seconds: float

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy of every task, `(T,)`, in 0..1."""
        accuracy: np.ndarray = self.correct.sum(axis=1) / (self.protocol.way * self.protocol.query)
        return accuracy

    def per_class(self) -> dict[str, float]:
        """Accuracy over all queries of each class; NaN for a class that no task has."""
        count = len(self.class_names)
        totals = np.bincount(self.classes.ravel(), minlength=count) * self.protocol.query
        right = np.bincount(self.classes.ravel(), self.correct.ravel(), minlength=count)
        return dict(zip(self.class_names, per_class_accuracy(right, totals).tolist(), strict=True))


# ---- statistics of a method -----------------------------------------------------------------------------------------


def percent(value: float) -> str:
    """A share in per cent with two digits.

    >>> percent(0.58217)
    '58.22'
    """
    return f"{100 * value:.2f}"


@dataclass(frozen=True)
class Statistic:
    """A figure of a method, and how tables show it.

    Attributes
    ----------
    name : str
        Key in `summary.json`.
    title : str
        Header of its column.
    compute : callable(MethodResults) -> float, ClassInterval or None
        NaN or None where it is undefined.
    format : callable(value) -> str
        Text of a defined value.
    costly : bool
        Left out where a summary is asked for without intervals over classes.
    """

    name: str
    title: str
    compute: Callable[[MethodResults], Value]
    format: Callable[[Any], str]
    costly: bool = False

    def text(self, value: Value) -> str:
        """The value as a table shows it; a dash where it is undefined."""
        return UNDEFINED if _undefined(value) else self.format(value)

    @staticmethod
    def sort_key(value: Value) -> float | None:
        """The number that a column is sorted by."""
        number = value.low if isinstance(value, ClassInterval) else value
        return None if number is None or math.isnan(number) else number


def _undefined(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _speed(m: MethodResults) -> float:
    return len(m.classes) / m.seconds if m.seconds > 0 else math.nan


# In the order of their columns. Fields of `MethodSummary` of the same name hold the first six; any other goes to
# `MethodSummary.more`.
STATISTICS: dict[str, Statistic] = {
    s.name: s
    for s in (
        Statistic("accuracy", "accuracy %", lambda m: summarise(m.accuracy).mean, percent),
        Statistic("ci95", "95% half-width", lambda m: summarise(m.accuracy).ci95, percent),
        Statistic(
            "class_interval",
            "over classes 95%",
            lambda m: class_bootstrap(m.accuracy, m.classes),
            lambda i: f"{100 * i.low:.1f}–{100 * i.high:.1f}",
            costly=True,
        ),
        Statistic("worst10", "worst 10%", lambda m: summarise(m.accuracy).worst10, percent),
        Statistic("ece", "ECE", lambda m: m.bins.error(), "{:.3f}".format),
        Statistic("tasks_per_second", "tasks/s", _speed, "{:.0f}".format),
    )
}


# ---- the summary ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodSummary:
    """Figures of one method. See `fewcal.evaluation.stats` for what the intervals mean.

    Attributes
    ----------
    accuracy, sd, ci95 : float
        Mean over tasks, standard deviation, half-width of the 95% interval over tasks.
    paper_doubled : float
        Twice the half-width, as the script behind the paper's tables printed it.
    worst10 : float
        Mean of the worst tenth of the tasks.
    class_interval : ClassInterval or None
        95% interval over draws of the classes.
    ece : float
        Expected calibration error.
    per_class : dict of float
    tasks : int
    seconds, tasks_per_second : float
    settings : dict
        Parameters as they were used.
    more : dict
        Statistics that were added to `STATISTICS`.
    """

    accuracy: float
    sd: float
    ci95: float
    paper_doubled: float
    worst10: float
    class_interval: ClassInterval | None
    ece: float
    per_class: dict[str, float]
    tasks: int
    seconds: float
    tasks_per_second: float
    settings: JSONObject
    more: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, results: MethodResults, settings: JSONObject, *, class_intervals: bool = True) -> MethodSummary:
        """All statistics of a method; those that are costly only with `class_intervals`."""
        over_tasks = summarise(results.accuracy)
        computed = [s for s in STATISTICS.values() if class_intervals or not s.costly]
        found: JSONObject = {"class_interval": None} | {s.name: s.compute(results) for s in computed}
        return cls(
            sd=over_tasks.sd,
            paper_doubled=over_tasks.paper_doubled,
            per_class=results.per_class(),
            tasks=over_tasks.n,
            seconds=results.seconds,
            settings=settings,
            **{name: found.pop(name) for name in list(found) if name in _FIELDS},
            more=found,
        )

    def value(self, name: str) -> Value:
        """A statistic by its name; None where this summary does not have it."""
        found: Value = getattr(self, name) if name in _FIELDS else self.more.get(name)
        return found

    def to_dict(self) -> JSONObject:
        """Plain values for JSON."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "more"}
        return {k: v if k == "settings" else _plain(v) for k, v in {**own, **self.more}.items()}

    @classmethod
    def from_dict(cls, plain: JSONObject) -> MethodSummary:
        """The summary that `to_dict` made plain."""
        own = {k: v for k, v in plain.items() if k in _FIELDS}
        interval = own.pop("class_interval", None)
        per_class = {k: _number(v) for k, v in own.pop("per_class").items()}
        return cls(
            **{k: _number(v) for k, v in own.items()},
            class_interval=None if interval is None else ClassInterval(**interval),
            per_class=per_class,
            more={k: v for k, v in plain.items() if k not in _FIELDS},
        )


_FIELDS = {f.name for f in dataclasses.fields(MethodSummary)} - {"more"}


@dataclass(frozen=True)
class Summary:
    """A run in figures: its protocol, every method, and the paired differences on the same tasks.

    >>> summary = Summary(Protocol(tasks=2), {}, [])
    >>> Summary.from_dict(summary.to_dict()) == summary
    True
    """

    protocol: Protocol
    methods: dict[str, MethodSummary]
    paired: list[Paired]

    @property
    def best(self) -> str:
        """The method with the highest mean accuracy; of equals the first."""
        return max(self.methods, key=lambda name: self.methods[name].accuracy)

    def difference(self, a: str, b: str) -> Paired:
        """The paired difference a − b, whichever way round it was computed."""
        for pair in self.paired:
            if {pair.a, pair.b} == {a, b}:
                return pair if pair.a == a else pair.reversed()
        raise KeyError(f"{a!r} and {b!r} were not compared")

    def to_dict(self) -> JSONObject:
        """Plain values for JSON: `summary.json` of a run."""
        return {
            "protocol": self.protocol.to_dict(),
            "methods": {name: m.to_dict() for name, m in self.methods.items()},
            "paired": [pair.to_dict() for pair in self.paired],
        }

    @classmethod
    def from_dict(cls, plain: JSONObject) -> Summary:
        """The summary that `to_dict` made plain."""
        return cls(
            Protocol(**plain["protocol"]),
            {name: MethodSummary.from_dict(m) for name, m in plain["methods"].items()},
            [Paired.from_dict(pair) for pair in plain["paired"]],
        )

    def to_markdown(self) -> str:
        """Two Markdown tables: methods, and differences between them."""
        columns = list(STATISTICS.values())
        lines = [
            str(self.protocol),
            "",
            *_table(
                ["method", *(s.title for s in columns)],
                [[name, *(s.text(m.value(s.name)) for s in columns)] for name, m in self.methods.items()],
            ),
        ]
        if self.paired:
            header = ["difference", "points", "95% half-width", "p (t, Holm)", "p (Wilcoxon, Holm)"]
            rows = [
                [
                    f"{d.a} − {d.b}",
                    f"{100 * d.difference:+.2f}",
                    show_points(d.ci95),
                    show_p(d.p_t_holm),
                    show_p(d.p_wilcoxon_holm),
                ]
                for d in self.paired
            ]
            lines += ["", *_table(header, rows)]
        return "\n".join(lines) + "\n"

    def __getitem__(self, key: str) -> Any:
        warnings.warn(
            f"summary[{key!r}] reads a dictionary of earlier releases; use summary.{key} or summary.to_dict()",
            FewcalWarning,
            stacklevel=2,
        )
        return self.to_dict()[key]


def show_points(value: float | None) -> str:
    """A share in points; a single task has no interval."""
    return UNDEFINED if value is None or math.isnan(value) else percent(value)


def show_p(value: float | None) -> str:
    """A p-value; what is smaller than anyone needs to know is not spelled out."""
    if value is None or math.isnan(value):
        return UNDEFINED
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _plain(value: Any) -> Any:
    """For JSON: what is not finite becomes None."""
    if isinstance(value, ClassInterval):
        return value.to_dict()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return math.nan if value is None else value
