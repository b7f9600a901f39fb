"""A project at one moment, and the answers to it. Both are values: who holds them never sees two moments mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fewcal.apply.predict import NONE_OF_THESE
from fewcal.apply.studio.answers import (
    MOST_PAIRED,
    Expected,
    LeftOut,
    Recipe,
    doubt,
    expected_accuracy,
    fitted,
    label_next,
    similarities,
    spaced,
)
from fewcal.apply.studio.embedder import Progress
from fewcal.apply.studio.store import NONE_CLASS, Item

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

MOST_SUGGESTED = 6


@dataclass(frozen=True, eq=False)
class Moment:
    """What a project holds.

    ids, x : the items that have features, and those `(R, D)`; the same array as long as features are the same
    classes : names by id, "none of these" among them
    labels : class ids by item
    history : in words, what undo and redo would do
    left_out : how examples were answered that were left out, for the labels of a moment ago
    """

    revision: int
    items: list[Item]
    ids: list[int]
    x: np.ndarray
    classes: dict[int, str]
    labels: dict[int, int]
    history: tuple[str | None, str | None]
    recipe: Recipe
    reject: float | None
    extractor: str | None
    progress: Progress
    left_out: LeftOut | None

    def support(self) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Features and class names of the labelled items that have features, and their labels by item."""
        at = [n for n, i in enumerate(self.ids) if i in self.labels]
        used = {self.ids[n]: self.labels[self.ids[n]] for n in at}
        return self.x[at], np.array([self.classes[label] for label in used.values()], dtype=str), used

    def asks_the_same(self, other: Moment) -> bool:
        """Whether the answers to both are the same."""
        mine, theirs = (
            (m.labels, m.classes, m.reject, m.recipe.beta, m.recipe.preset, m.recipe.bank is None)
            for m in (self, other)
        )
        return self.x is other.x and self.ids == other.ids and mine == theirs


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosines between the rows `at` of the features `x`; they take longer than a fit, and labels leave most as is."""

    x: np.ndarray
    beta: float
    at: np.ndarray
    matrix: np.ndarray

    def serves(self, x: np.ndarray, beta: float, at: np.ndarray) -> bool:
        return self.x is x and self.beta == beta and np.array_equal(self.at, at)


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to a moment, a row for each item that has features."""

    moment: Moment
    classifier: TaskClassifier | None
    columns: list[int]  # class id of each column of probabilities
    probabilities: np.ndarray | None  # (R, N)
    outliers: np.ndarray | None  # (R,) p-values of "none of these", with a bank
    suggested: list[int]  # items to label next, the best first
    similarity: Similarity | None

    def answer(self, n: int) -> int | None:
        """The class id that row n gets; None before there are answers."""
        if self.probabilities is None:
            return None
        level = self.moment.reject
        if self.outliers is not None and level is not None and self.outliers[n] >= level:
            return NONE_CLASS
        return self.columns[int(self.probabilities[n].argmax())]

    def expected(self) -> Expected | None:
        """The accuracy to expect; None before there are answers, and where nothing is left to answer."""
        if self.probabilities is None:
            return None
        return expected_accuracy(self.probabilities, np.array([i in self.moment.labels for i in self.moment.ids]))


def answered(moment: Moment, last: Answered | None = None) -> Answered:
    """The answers to a moment; of the last ones everything is taken that still holds."""
    if last is not None and moment.asks_the_same(last.moment):
        return replace(last, moment=moment)
    support, names, labels = moment.support()
    classifier = fitted(moment.recipe, support, names)
    by_name = {name: i for i, name in moment.classes.items()} | {NONE_OF_THESE: NONE_CLASS}
    probabilities = outliers = None
    columns: list[int] = []
    if classifier is not None:
        probabilities = classifier.predict_proba(moment.x)
        columns = [by_name[str(name)] for name in classifier.classes_]
        if moment.reject is not None:
            outliers = classifier.outlier_pvalue(moment.x)
    suggested, similarity = _suggested(moment, labels, probabilities, None if last is None else last.similarity)
    return Answered(moment, classifier, columns, probabilities, outliers, suggested, similarity)


def _suggested(
    moment: Moment, labels: dict[int, int], probabilities: np.ndarray | None, known: Similarity | None
) -> tuple[list[int], Similarity | None]:
    ids, x, beta = moment.ids, moment.x, moment.recipe.beta
    if not ids:
        return [], None
    labelled = np.array([i in labels for i in ids])
    doubts = np.ones(len(ids)) if probabilities is None else doubt(probabilities)
    # All labelled items and an even sample of the others.
    free = np.flatnonzero(~labelled)
    at = np.sort(np.concatenate([np.flatnonzero(labelled), free[spaced(len(free), MOST_PAIRED)]]))
    if known is None or not known.serves(x, beta, at):
        known = Similarity(x, beta, at, similarities(x[at], beta))
    order = label_next(known.matrix, labelled[at], doubts[at], MOST_SUGGESTED)
    return [ids[at[n]] for n in order], known
