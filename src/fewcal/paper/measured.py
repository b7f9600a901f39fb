"""Measured accuracies as JSON holds them: counts of right answers of every task, the same tasks for every method.

Statistics are computed where results are shown: a machine that only computes needs torch and NumPy alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewcal.episodes import EpisodeSpec
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.stats import Paired, paired, summarise
from fewcal.features import FeatureSet
from fewcal.methods import Method
from fewcal.tune.trials import TrialRunner

WAY, QUERY = 5, 15
# More features than this are many: work that grows with D² or D³ is cut down then. Eigenvalues of a D×D matrix for each
# support point, as the authors' script takes them, are for so many tasks at most, on any device.
LARGEST, EIGEN_TASKS = 700, 100
# Tasks in which two methods must differ, of many, for an interval by the normal distribution.
FEWEST = 20


@dataclass(frozen=True)
class Budget:
    """How much is computed; with the features it fixes every number.

    Attributes
    ----------
    tasks : int
        Novel tasks of methods in closed form.
    sampled : int
        Of methods that draw points and train on them by L-BFGS; the first ones of the same tasks.
    sgd : int
        Of the paper's own head, 200 epochs of SGD, which costs a hundred times the closed form.
    study : int
        Of each variant in studies with many of them.
    trials, trial_tasks : int
        Settings tried in a search on validation classes, and the tasks of each.
    seed : int

    >>> Budget.of(tasks=50).sampled, Budget.of(quick=True).tasks, Budget.of(tasks=5000, device="cuda").sgd
    (50, 200, 5000)
    """

    tasks: int
    sampled: int
    sgd: int
    study: int
    trials: int
    trial_tasks: int
    seed: int = 0

    @classmethod
    def of(
        cls,
        tasks: int | None = None,
        *,
        quick: bool = False,
        device: str = "cpu",
        seed: int = 0,
        sampled: int | None = None,
        sgd: int | None = None,
        trials: int | None = None,
    ) -> Budget:
        """What two CPU cores manage in an hour at 1000 tasks, in ten minutes when `quick`; a GPU spares nothing."""
        asked = tasks if tasks is not None else 200 if quick else 1000
        if device.startswith("cuda"):
            usual = (asked, asked, asked, 20 if quick else 100, 50 if quick else 200)
        else:
            usual = (40, 4, 50, 5, 40) if quick else (1000, 40, 300, 16, 100)
        made = cls(
            asked,
            min(asked, usual[0] if sampled is None else sampled),
            min(asked, usual[1] if sgd is None else sgd),
            min(asked, usual[2]),
            usual[3] if trials is None else trials,
            usual[4],
            seed,
        )
        for name, value in made.to_dict().items():
            if name != "seed" and (isinstance(value, bool) or value < 1):
                raise InputError(f"{name} is {value!r}; it must be an integer of at least 1")
        return made

    def study_tasks(self, features: FeatureSet, device: str) -> int:
        """`study`, or half of it where a CPU has many features to deal with."""
        return self.study if device != "cpu" or features.dimension <= LARGEST else max(1, self.study // 2)

    def to_dict(self) -> dict[str, int]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


# ---- novel tasks ----------------------------------------------------------------------------------------------------


def measure(
    methods: Mapping[str, Method], features: FeatureSet, shot: int, tasks: int, seed: int, device: str = "cpu"
) -> dict[str, Any]:
    """Run methods on the first `tasks` novel tasks of a seed: a record of counts, parameters and seconds."""
    protocol = Protocol(WAY, shot, QUERY, tasks, seed, "novel")
    with quiet():
        results = evaluate(methods, features, protocol, device)
    return {
        "per_task": WAY * QUERY,
        "correct": {name: results.correct[name].sum(axis=1).tolist() for name in methods},
        "settings": results.settings,
        "seconds": {name: round(results.seconds[name], 3) for name in methods},
    }


def join(*records: Mapping[str, Any]) -> dict[str, Any]:
    """Records on the same tasks as one; some may have fewer of them."""
    out: dict[str, Any] = {"per_task": records[0]["per_task"], "correct": {}, "settings": {}, "seconds": {}}
    for record in records:
        for part in ("correct", "settings", "seconds"):
            if twice := set(out[part]) & set(record[part]):
                raise ValueError(f"{sorted(twice)[0]!r} was measured twice")
            out[part] |= record[part]
    return out


def accuracy(record: Mapping[str, Any], name: str) -> np.ndarray:
    """Accuracy of every task, `(T,)`."""
    return np.asarray(record["correct"][name], float) / record["per_task"]


def difference(record: Mapping[str, Any], a: str, b: str) -> Paired:
    """a minus b on the tasks that both have seen."""
    one, other = accuracy(record, a), accuracy(record, b)
    both = min(len(one), len(other))
    return paired(one[:both], other[:both], a, b)


def mean_text(record: Mapping[str, Any], name: str) -> str:
    """Mean ± 95% half-width in percent.

    >>> mean_text({"per_task": 4, "correct": {"a": [1, 2, 3, 2]}}, "a")
    '50.00 ± 32.48'
    """
    s = summarise(accuracy(record, name))
    return f"{100 * s.mean:.2f}" + (f" ± {100 * s.ci95:.2f}" if math.isfinite(s.ci95) else "")


def beyond(p: Paired) -> bool:
    """Whether a difference lies beyond its interval, which a handful of tasks among many equal ones cannot make."""
    enough = round((p.won + p.lost) * p.n) >= min(FEWEST, p.n / 2)
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


def grid(axes: Mapping[str, Sequence[Any]], most: int, seed: int) -> list[dict[str, Any]]:
    """All combinations of the values on the axes, or `most` different ones drawn at random.

    >>> grid({"k": [1, 2], "m": [0.0, 1.0]}, 10, 0)[1]
    {'k': 1, 'm': 1.0}
    >>> len(grid({"k": range(100), "m": range(100)}, 5, 0))
    5
    """
    sizes = [len(values) for values in axes.values()]
    total = math.prod(sizes)
    if total <= most:
        picks: Any = itertools.product(*(range(s) for s in sizes))
    else:
        drawn = np.random.default_rng([seed, total]).choice(total, size=most, replace=False)
        picks = zip(*np.unravel_index(drawn, sizes), strict=True)
    return [{name: values[int(i)] for (name, values), i in zip(axes.items(), pick, strict=True)} for pick in picks]


def choose_on_val(
    features: FeatureSet,
    shot: int,
    settings: Sequence[dict[str, Any]],
    make: Callable[[dict[str, Any]], Method],
    effort: Budget,
    device: str = "cpu",
    runner: TrialRunner | None = None,
) -> dict[str, Any]:
    """Try settings on the same validation tasks and name the best; novel classes are not looked at.

    Settings that these features do not admit are passed over.
    """
    runner = runner or val_runner(features, shot, effort, device)
    tried: list[tuple[float, dict[str, Any]]] = []
    for one in settings:
        try:
            tried.append((float(runner.accuracy(make(one)).mean()), one))
        except InputError:
            continue
    if not tried:
        raise InputError("none of the settings of the search can be used on these features")
    best, setting = max(tried, key=lambda t: t[0])  # the first of equals
    return {"chosen": setting, "val": best, "tried": len(tried), "tasks": effort.trial_tasks}


def val_runner(features: FeatureSet, shot: int, effort: Budget, device: str = "cpu") -> TrialRunner:
    """Validation tasks made ready for any number of trials."""
    base, val = features.split("base"), features.split("val")
    spec = EpisodeSpec(WAY, shot, QUERY, effort.seed)
    rows = (base.features, base.require_labels())
    return TrialRunner(rows, val.features, val.require_labels(), spec, effort.trial_tasks, device)


@contextmanager
def quiet() -> Iterator[None]:
    """Grids go through settings that one would not choose; what fewcal says about those is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        yield
