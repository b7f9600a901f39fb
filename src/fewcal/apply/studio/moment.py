"""A project at one moment, and the answers to it. Both are values: who holds them never sees two moments mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fewcal.apply.check import ExampleCheck
from fewcal.apply.labelling import Expected, centre, doubt, expected_accuracy, label_next, similarities
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.apply.studio.answers import Prediction, Recipe, predict_items
from fewcal.apply.studio.embedder import Progress
from fewcal.apply.studio.store import NONE_CLASS, Item

SUGGESTIONS = 6
# Gains of labels and distances of examples are over pairs: beyond this many items, an even sample is taken.
MAX_PAIRED = 2000


@dataclass(frozen=True, eq=False)
class Checked:
    """A check of the examples: which items they were, with which labels, and what was found, or None."""

    labels: dict[int, int]
    items: list[int]
    check: ExampleCheck | None


@dataclass(frozen=True, eq=False)
class Moment:
    """What a project holds.

    ids, x : the items that have features, and those `(R, D)`; the same array as long as features are the same
    classes : names by id, "none of these" among them
    labels : class ids by item, in the order in which they were given
    history : in words, what undo and redo would do
    checked : the last check of the examples, for the labels of a moment ago
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
    checked: Checked | None

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the labelled items that have features, and their class names."""
        at = [n for n, i in enumerate(self.ids) if i in self.labels]
        names = [self.classes[self.labels[self.ids[n]]] for n in at]
        return np.array(at, int), np.array(names, dtype=str)

    def has_same_inputs(self, other: Moment) -> bool:
        """Whether the answers to both are the same."""
        mine, theirs = (
            (list(m.labels.items()), m.classes, m.reject, m.recipe.preset, m.recipe.bank is None) for m in (self, other)
        )
        return self.x is other.x and self.ids == other.ids and mine == theirs


@dataclass(frozen=True, eq=False)
class Similarity:
    """What labels leave as it is: centred rows z of the features `x`, and cosines between those of a sample."""

    x: np.ndarray
    z: np.ndarray
    sample: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, last: Similarity | None) -> Similarity:
        """That of `x`: the last one where it still holds, as pairs take longer than a fit."""
        if last is not None and last.x is x:
            return last
        z, sample = centre(x), spaced(np.arange(len(x)))
        return cls(x, z, sample, similarities(z[sample]))

    def label_next(self, examples: np.ndarray, prediction: Prediction | None) -> list[int]:
        """Rows of the sample to label next, the best first."""
        at, labelled = self.sample, np.isin(self.sample, examples)
        covered = similarities(self.z[at], self.z[examples]).max(axis=1, initial=0.0)
        doubts = np.ones(len(at)) if prediction is None else doubt(prediction.probabilities[at])
        return at[label_next(self.pairs, covered, labelled, doubts, SUGGESTIONS)].tolist()


@dataclass(frozen=True, eq=False)
class Answered:
    """The answers to a moment, a row for each item that has features; `suggested` are items, the best first."""

    moment: Moment
    prediction: Prediction | None
    columns: list[int]  # class id of each column of probabilities
    suggested: list[int]
    similarity: Similarity

    @property
    def probabilities(self) -> np.ndarray | None:
        return None if self.prediction is None else self.prediction.probabilities

    def answer(self, n: int) -> int | None:
        """The class id that row n gets; None before there are answers."""
        if self.prediction is None:
            return None
        outliers, level = self.prediction.outliers, self.moment.reject
        if outliers is not None and level is not None and outliers[n] < level:
            return NONE_CLASS
        return self.columns[int(self.prediction.probabilities[n].argmax())]

    def expected(self) -> Expected | None:
        """The accuracy to expect; None before there are answers, and where nothing is left to answer."""
        if self.prediction is None:
            return None
        ids, labels, ready = self.moment.ids, self.moment.labels, set(self.moment.ids)
        given = [label for item, label in labels.items() if item in ready]
        found = expected_accuracy(self.prediction.probabilities, given, np.array([i in labels for i in ids]))
        # A class that has a name and no example is one that items are answered without.
        missing = not {*self.moment.classes, NONE_CLASS} <= {*given, NONE_CLASS}
        return replace(found, accuracy=None) if found is not None and missing else found


def answer_moment(moment: Moment, last: Answered | None = None) -> Answered:
    """The answers to a moment; of the last ones everything is taken that still holds."""
    if last is not None and moment.has_same_inputs(last.moment):
        return replace(last, moment=moment)
    at, names = moment.examples()
    prediction = predict_items(moment.recipe, moment.x, at, names, moment.reject is not None)
    by_name = {name: i for i, name in moment.classes.items()} | {NONE_OF_THESE: NONE_CLASS}
    columns = [] if prediction is None else [by_name[name] for name in prediction.names]
    similarity = Similarity.of(moment.x, None if last is None else last.similarity)
    suggested = [moment.ids[n] for n in similarity.label_next(at, prediction)]
    return Answered(moment, prediction, columns, suggested, similarity)


def spaced(positions: np.ndarray) -> np.ndarray:
    """The positions, or an even sample of `MAX_PAIRED`."""
    total = len(positions)
    return positions if total <= MAX_PAIRED else positions[np.arange(MAX_PAIRED) * total // MAX_PAIRED]
