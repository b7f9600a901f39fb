"""The classifier of a project: fitted on the labelled items, asked about all others.

Pure functions over arrays: R items with features `x (R, D)`, of which some are labelled.

*Label this next* is the item that covers most doubt not yet covered. Item j has doubt u_j = 1 − (p₁ − p₂), 1 before
there are answers. s(i, j) is the cosine of centred features where it is positive. An item is covered as far as its most
similar labelled item resembles it, c_j = max_l s(l, j). The gain of labelling i is Σ_j u_j · max(0, s(i, j) − c_j).
Before any label this finds the most typical item of the largest group; later it goes to groups without a label and to
doubtful regions, never to a lone outlier, which covers itself alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fewcal.bank import BaseBank

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

# The gain is a sum over pairs; beyond this many items, pairs are taken from an even sample.
MOST_PAIRED = 2000
# Each left-out item is a fit of its own: beyond this many an even sample of them is taken.
MOST_LEFT_OUT = 100


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a classifier is made: base classes or none, a preset of the paper's GDC or HGDC, and the power for `beta`."""

    bank: BaseBank | None = None
    preset: str | None = None
    beta: float = 1.0

    def make(self) -> TaskClassifier:
        """A new classifier, not fitted."""
        from fewcal.apply.predict import make_classifier

        return make_classifier(self.bank, self.preset)


@dataclass(frozen=True)
class LeftOut:
    """How many of the examples that were left out, one at a time, were answered rightly."""

    right: int
    asked: int


@dataclass(frozen=True)
class Expected:
    """The accuracy to expect of the answers to items without a label, and a 95% interval of it."""

    accuracy: float
    low: float
    high: float


def fitted(recipe: Recipe, x: np.ndarray, labels: np.ndarray) -> TaskClassifier | None:
    """A classifier fitted on labelled rows, or None where there are fewer than two classes."""
    return None if len(np.unique(labels)) < 2 else recipe.make().fit(x, labels)


def doubt(probabilities: np.ndarray) -> np.ndarray:
    """1 − (p₁ − p₂) of each row `(R, N)`: 1 where two classes are level, 0 where one is certain.

    >>> doubt(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    best = np.partition(probabilities, -2, axis=1)
    return 1 - (best[:, -1] - best[:, -2])


def leave_one_out(
    recipe: Recipe, x: np.ndarray, labels: np.ndarray, stopped: Callable[[], bool] = lambda: False
) -> LeftOut | None:
    """Each labelled item answered by a classifier fitted on the others; None as well where `stopped` says so meanwhile.

    Items that are alone in their class are not asked, since without them the class is unknown; they stay in the fits.
    None where no item can be asked. Every answer comes from one example fewer than there are, and examples that were
    proposed resemble no other: their share of right answers is far below that of the other items.
    """
    classes, codes, shots = np.unique(labels, return_inverse=True, return_counts=True)
    asked = np.flatnonzero(shots[codes] > 1)
    if len(classes) < 2 or not len(asked):
        return None
    asked = asked[spaced(len(asked), MOST_LEFT_OUT)]
    right = 0
    for i in asked:
        if stopped():
            return None
        others = np.arange(len(x)) != i
        p = recipe.make().fit(x[others], codes[others]).predict_proba(x[i : i + 1])[0]
        right += int(p.argmax() == codes[i])
    return LeftOut(right, len(asked))


def expected_accuracy(probabilities: np.ndarray, labelled: np.ndarray) -> Expected | None:
    """What the probabilities of the answers `(R, N)` say themselves: their mean over the items without a label.

    Probabilities are only as good as the n examples they were fitted on. The interval is that of an accuracy seen on n
    checked items, the central 95% of Beta(n·p + ½, n·(1 − p) + ½); benchmarks/accuracy/expected.py measures how often
    it holds. None where every item has a label.

    >>> p = np.array([[0.9, 0.1], [0.7, 0.3], [1.0, 0.0], [0.0, 1.0]])
    >>> found = expected_accuracy(p, np.array([False, False, True, True]))
    >>> round(found.accuracy, 2), round(found.low, 2), round(found.high, 2)
    (0.8, 0.19, 0.99)
    """
    from scipy.special import betaincinv

    if labelled.all():
        return None
    p, n = float(probabilities[~labelled].max(axis=1).mean()), int(labelled.sum())
    low, high = betaincinv(n * p + 0.5, n * (1 - p) + 0.5, [0.025, 0.975])
    return Expected(p, float(low), float(high))


def spaced(total: int, most: int) -> np.ndarray:
    """At most `most` of `total` positions, evenly spaced.

    >>> spaced(5, 2).tolist()
    [0, 2]
    """
    return np.arange(total) if total <= most else (np.arange(most) * total) // most


def similarities(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Cosines `(R, R)` of centred rows, as float32, negative ones 0; `beta` is a power for features ≥ 0."""
    if beta != 1.0 and (x >= 0).all():
        x = x**beta
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x - x.mean(axis=0)
    x = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    return np.maximum(x @ x.T, 0)


def label_next(similar: np.ndarray, labelled: np.ndarray, doubts: np.ndarray, most: int = 1) -> list[int]:
    """Positions of the unlabelled items to label next, the best first; see the module.

    Each is chosen as if those before it were labelled already, so that they differ from each other.

    Parameters
    ----------
    similar : (R, R) from `similarities`
    labelled : (R,) bool
    doubts : (R,) from `doubt`, ones before there are answers
    most : how many to choose

    >>> s = np.array([[1, 0.9, 0, 0], [0.9, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    >>> label_next(s, np.array([False, False, True, False]), np.array([1, 1, 0, 0.5]), 3)
    [0, 3, 1]
    """
    covered = similar[labelled].max(axis=0, initial=0.0)
    free = np.flatnonzero(~labelled)
    pairs = similar[np.ix_(free, free)]
    covered, weights = covered[free], doubts[free]
    chosen: list[int] = []
    for _ in range(min(most, len(free))):
        gains = np.maximum(pairs - covered, 0) @ weights
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        covered = np.maximum(covered, pairs[chosen[-1]])
    return free[chosen].tolist()
