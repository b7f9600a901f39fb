"""The outcome of tasks for every method, as arrays: what blocks and results consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fewcal._utils.types import JSONObject

BY_METHOD = ("correct", "detection", "bins", "seconds")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Outcome:
    """The outcome of T tasks for every method.

    Attributes
    ----------
    classes : array (T, N)
        Classes of each task, as positions in the split's class list; −1 where a task has fewer than others.
    queries : array (T, N), queries of each class
    correct : dict of arrays (T, N), right answers among them
    detection : dict of arrays (T, 2), AUROC and recall of outliers; empty where tasks have none
    bins : dict of arrays (3, B), see `calibration_bins`
    seconds : dict of float
        Time of each method as if it ran alone, added up over processes: with shared work that it found ready, without
        work on the base classes as a whole, once for all tasks.
    """

    classes: np.ndarray
    queries: np.ndarray
    correct: dict[str, np.ndarray]
    detection: dict[str, np.ndarray]
    bins: dict[str, np.ndarray]
    seconds: dict[str, float]


def join(parts: Sequence[Outcome]) -> JSONObject:
    """The fields of the outcome of all parts, in their order."""

    def each(name: str, combine: Callable[..., object]) -> JSONObject:
        return {method: combine([getattr(p, name)[method] for p in parts]) for method in getattr(parts[0], name)}

    return {
        "classes": np.concatenate([p.classes for p in parts]),
        "queries": np.concatenate([p.queries for p in parts]),
        **{name: each(name, np.concatenate) for name in ("correct", "detection")},
        **{name: each(name, sum) for name in ("bins", "seconds")},
    }


def to_arrays(outcome: Outcome) -> JSONObject:
    """The outcome as arrays for npz; `from_arrays` reads them back."""
    arrays: JSONObject = {"classes": outcome.classes, "queries": outcome.queries}
    for name in BY_METHOD:
        arrays |= {f"{name}/{method}": np.asarray(value) for method, value in getattr(outcome, name).items()}
    return arrays


def from_arrays(arrays: Mapping[str, np.ndarray], methods: Sequence[str], tasks: int) -> JSONObject:
    """The fields of an outcome of so many tasks; raises where they are not all there or contradict each other."""
    classes, queries = arrays["classes"], arrays["queries"]
    correct = {m: arrays[f"correct/{m}"] for m in methods}
    counts = (classes, queries, *correct.values())
    if any(a.shape != (tasks, classes.shape[1]) or a.dtype.kind not in "iu" for a in counts):
        raise ValueError(f"results are not of {tasks} tasks")
    if any((a < 0).any() or (a > queries).any() for a in correct.values()):
        raise ValueError("results count more right answers than queries")
    return {
        "classes": classes,
        "queries": queries,
        "correct": correct,
        "detection": {m: arrays[f"detection/{m}"] for m in methods if f"detection/{m}" in arrays},
        "bins": {m: arrays[f"bins/{m}"].reshape(3, -1) for m in methods},
        "seconds": {m: float(arrays[f"seconds/{m}"]) for m in methods},
    }
