"""Measured accuracies as JSON holds them: counts of right answers of every task, the same tasks for every method.

Statistics are computed where results are shown: a machine that only computes needs torch and NumPy alone.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypedDict

import numpy as np

from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol
from fewcal.evaluation.stats import Paired, paired, summarise
from fewcal.methods import Method
from fewcal.paper.budget import Case

WAY, QUERY = 5, 15
# Tasks in which two methods must differ, of many, for an interval by the normal distribution.
FEWEST = 20
# Tasks below which nothing is judged: accuracies go in steps of a 75th, and a few of them may be equal by chance.
FEWEST_JUDGED = 5


# ---- novel tasks ----------------------------------------------------------------------------------------------------


class Measured(TypedDict):
    """Counts of right answers of every task by method, all on the same first tasks; parameters and seconds."""

    per_task: int
    correct: dict[str, list[int]]
    settings: dict[str, dict[str, object]]
    seconds: dict[str, float]


# A setting of a search: values by the name of the parameter.
Setting: TypeAlias = dict[str, float]
Axes: TypeAlias = Mapping[str, Sequence[float]]


class Choice(TypedDict):
    """The best of some settings on validation tasks: its accuracy, how many were tried, on how many tasks.

    A published setting, for which nothing is tried, has no accuracy on them.
    """

    chosen: Setting
    val: float | None
    tried: int
    tasks: int


def measure(methods: Mapping[str, Method], case: Case, tasks: int | None = None, split: str = "novel") -> Measured:
    """Run methods on the first `tasks` tasks of a case, by default all of its budget."""
    count = case.budget.tasks if tasks is None else tasks
    protocol = Protocol(WAY, case.shot, QUERY, count, case.budget.seed, split)
    with quiet():
        found = case.evaluations.run(methods, case.features, protocol, case.device)
    return {
        "per_task": WAY * QUERY,
        "correct": {name: one.correct for name, one in found.items()},
        "settings": {name: one.settings for name, one in found.items()},
        "seconds": {name: round(one.seconds, 3) for name, one in found.items()},
    }


def join(*records: Measured) -> Measured:
    """Records on the same tasks as one; some may have fewer of them."""
    out: Measured = {"per_task": records[0]["per_task"], "correct": {}, "settings": {}, "seconds": {}}
    for record in records:
        if twice := set(out["correct"]) & set(record["correct"]):
            raise ValueError(f"{sorted(twice)[0]!r} was measured twice")
        out["correct"] |= record["correct"]
        out["settings"] |= record["settings"]
        out["seconds"] |= record["seconds"]
    return out


def accuracy(record: Measured, name: str) -> np.ndarray:
    """Accuracy of every task, `(T,)`."""
    return np.asarray(record["correct"][name], float) / record["per_task"]


def mean_accuracy(record: Measured, name: str) -> float:
    """Mean accuracy over the tasks."""
    return float(accuracy(record, name).mean())


def difference(record: Measured, a: str, b: str) -> Paired:
    """a minus b on the tasks that both have seen."""
    one, other = accuracy(record, a), accuracy(record, b)
    both = min(len(one), len(other))
    return paired(one[:both], other[:both], a, b)


def mean_text(record: Measured, name: str) -> str:
    """Mean ± 95% half-width in percent.

    >>> mean_text({"per_task": 4, "correct": {"a": [1, 2, 3, 2]}, "settings": {}, "seconds": {}}, "a")
    '50.00 ± 32.48'
    """
    s = summarise(accuracy(record, name))
    return f"{100 * s.mean:.2f}" + (f" ± {100 * s.ci95:.2f}" if math.isfinite(s.ci95) else "")


def beyond(p: Paired) -> bool:
    """Whether a difference lies beyond its interval, which a handful of tasks cannot make, nor one among many equal."""
    enough = p.n >= FEWEST_JUDGED and round((p.won + p.lost) * p.n) >= min(FEWEST, p.n / 2)
    return enough and math.isfinite(p.ci95) and abs(p.difference) > p.ci95


def gain_text(p: Paired) -> str:
    """A difference ± its 95% half-width in percentage points.

    Many tasks can tell a thousandth of a point from nothing; then it is shown as one, not as 0.00 ± 0.00.
    """
    digits = 4 if 0 < p.ci95 < 0.5e-4 and beyond(p) else 2
    return points(p.difference, digits) + (f" ± {100 * p.ci95:.{digits}f}" if math.isfinite(p.ci95) else "")


def points(share: float, digits: int = 2) -> str:
    """A difference of accuracies in percentage points, with its sign.

    >>> points(-0.0123), points(-1e-9), points(0.000024, 4)
    ('−1.23', '+0.00', '+0.0024')
    """
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}".replace("-", "−")


# ---- a search on validation tasks -----------------------------------------------------------------------------------


def grid(axes: Axes, most: int, seed: int) -> list[Setting]:
    """All combinations of the values on the axes, or `most` different ones drawn at random.

    >>> grid({"k": [1, 2], "m": [0.0, 1.0]}, 10, 0)[1]
    {'k': 1, 'm': 1.0}
    >>> len(grid({"k": range(100), "m": range(100)}, 5, 0))
    5
    """
    sizes = [len(values) for values in axes.values()]
    total = math.prod(sizes)
    if total <= most:
        picks: Iterable[tuple[int, ...]] = itertools.product(*(range(s) for s in sizes))
    else:
        drawn = np.random.default_rng([seed, total]).choice(total, size=most, replace=False)
        picks = zip(*np.unravel_index(drawn, sizes), strict=True)
    return [{name: values[int(i)] for (name, values), i in zip(axes.items(), pick, strict=True)} for pick in picks]


def choose_on_val(
    case: Case,
    settings: Sequence[Setting],
    make: Callable[[Setting], Method],
    tasks: int | None = None,
) -> Choice:
    """Try settings on the same validation tasks and name the best; novel classes are not looked at.

    Settings that these features do not admit are skipped.
    """
    case.features.split("val")  # where there is none, this is no matter of settings
    count = case.budget.trial_tasks if tasks is None else tasks
    tried: list[tuple[float, Setting]] = []
    for one in settings:
        try:
            tried.append((val_accuracy(make(one), case, count), one))
        except InputError:
            continue
    if not tried:
        raise InputError("none of the settings of the search can be used on these features")
    best, setting = max(tried, key=lambda t: t[0])  # the first of equals
    return {"chosen": setting, "val": best, "tried": len(tried), "tasks": count}


def val_accuracy(method: Method, case: Case, tasks: int | None = None) -> float:
    """Mean accuracy of a method on validation tasks, by default on as many as a trial of the budget has."""
    return mean_accuracy(measure({"trial": method}, case, tasks or case.budget.trial_tasks, "val"), "trial")


@contextmanager
def quiet() -> Iterator[None]:
    """Grids go through settings that one would not choose; warnings about those are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        yield
