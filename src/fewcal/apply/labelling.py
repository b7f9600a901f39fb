"""Which item to label next, how doubtful an answer is, and the accuracy to expect. Pure functions over arrays.

R items have features `x (R, D)`; some have labels.

*Label next* is the item that covers most doubt that no label covers yet. s(i, j) is the cosine of centred features,
where positive. An item is covered by its most similar labelled item, c_j = max_l s(l, j). Its doubt is
u_j = max(1 − (p₁ − p₂), 1 − c_j), or 1 before there are answers. The gain of labelling item i is
Σ_j u_j · max(0, s(i, j) − c_j). Without the floor 1 − c_j, a class whose items all get another class's name with
certainty would never be proposed.

*The accuracy to expect* is the mean probability of the answers, times the share of items whose class has an example.
That share is estimated after Good and Turing: with f₁ of n labels alone in their class, 1 − f₁/n. Labels that follow
each other in one class count once there: labels given class by class are no evidence of the classes to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

# Limits of the share of items that may belong to a class without an example, and of half the width of the 95% interval,
# beyond which no accuracy is given: benchmarks/accuracy/expected.py.
MAX_UNSEEN, MAX_HALF_WIDTH = 0.1, 0.125


def centre(x: np.ndarray) -> np.ndarray:
    """Rows of unit length, centred and again of unit length, as float32."""
    if not len(x):
        return np.empty(x.shape, np.float32)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x - x.mean(axis=0)
    return (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def similarities(z: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """Cosines `(R, S)` of rows from `centre` and those of another array, or themselves; negative ones 0."""
    return np.maximum(z @ (z if other is None else other).T, 0)


def doubt(probabilities: np.ndarray) -> np.ndarray:
    """1 − (p₁ − p₂) of each row `(R, N)`: 1 where two classes are level, 0 where one is certain.

    >>> doubt(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    best = np.partition(probabilities, -2, axis=1)
    return 1 - (best[:, -1] - best[:, -2])


def label_next(
    similar: np.ndarray, covered: np.ndarray, labelled: np.ndarray, doubts: np.ndarray, number: int = 1
) -> list[int]:
    """Positions of the unlabelled items to label next, the best first; see the module.

    Each is chosen as if those before it were labelled already, so that they differ from each other.

    Parameters
    ----------
    similar : (R, R) cosines, negative ones 0
    covered : (R,) the largest cosine with a labelled item, or 0
    labelled : (R,) bool
    doubts : (R,) from `doubt`, ones before there are answers
    number : how many to choose

    >>> s = np.array([[1, 0.9, 0, 0], [0.9, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    >>> label_next(s, s[2], np.array([False, False, True, False]), np.zeros(4), 3)
    [0, 3, 1]
    """
    free = np.flatnonzero(~labelled)
    pairs = similar[np.ix_(free, free)]
    covered, weights = covered[free], np.maximum(doubts, 1 - covered)[free]
    chosen: list[int] = []
    for _ in range(min(number, len(free))):
        gains = np.maximum(pairs - covered, 0) @ weights
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        covered = np.maximum(covered, pairs[chosen[-1]])
    return free[chosen].tolist()


@dataclass(frozen=True)
class Expected:
    """The accuracy to expect of the answers to items without a label.

    accuracy : None where it is too early for one figure
    low, high : 95% interval of it
    unseen : share of items that may belong to a class without an example
    """

    accuracy: float | None
    low: float
    high: float
    unseen: float


def expected_accuracy(probabilities: np.ndarray, labels: Sequence[Hashable], labelled: np.ndarray) -> Expected | None:
    """What the answers and the order of the labels allow to expect; None where every item has a label.

    The interval is that of an accuracy seen on n checked items, the central 95% of Beta(n·a + ½, n·(1 − a) + ½).

    Parameters
    ----------
    probabilities : (R, N) of the answers
    labels : classes in the order in which the labels were given
    labelled : (R,) bool

    >>> p, labelled = np.full((60, 2), (0.9, 0.1)), np.arange(60) < 40
    >>> found = expected_accuracy(p, ["a", "b"] * 20, labelled)
    >>> round(found.accuracy, 2), round(found.low, 2), round(found.high, 2)
    (0.9, 0.78, 0.97)
    >>> found = expected_accuracy(p, ["a"] * 20 + ["b"] * 20, labelled)
    >>> found.accuracy is None, found.unseen
    (True, 1.0)
    """
    from scipy.special import betaincinv

    if labelled.all():
        return None
    unseen = unseen_share(labels)
    accuracy, n = (1 - unseen) * float(probabilities[~labelled].max(axis=1).mean()), len(labels)
    low, high = map(float, betaincinv(n * accuracy + 0.5, n * (1 - accuracy) + 0.5, [0.025, 0.975]))
    possible = unseen_share(labels, 1)
    early = possible > MAX_UNSEEN or high - low > 2 * MAX_HALF_WIDTH
    return Expected(None if early else accuracy, low, high, possible)


def unseen_share(labels: Sequence[Hashable], more: int = 0) -> float:
    """The share f₁/n of items whose class has no example, from labels in their order; see the module.

    `more` adds as many labels that are alone in their class, for a cautious estimate.

    >>> unseen_share(["a", "b", "a", "c"]), unseen_share(["a", "a", "b", "b"]), unseen_share(["a", "b"] * 2, 1)
    (0.5, 1.0, 0.2)
    """
    counts = Counter(label for label, _ in groupby(labels))
    alone = more + sum(count == 1 for count in counts.values())
    return alone / (more + counts.total())
