"""Cross-validation of labelled examples: recall, confusions, labels to look at, near duplicates, classes in need.

    check = check_examples(x, labels, lambda: FewShotClassifier(bank))
    check.accuracy, check.suspects, check.duplicates

Every example whose class has another one gets an answer from a classifier that has not seen it. Folds are stratified:
each class loses one example of up to ten at a time, so that no class is at a disadvantage. Near duplicates share a
fold, or each would answer for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape

import numpy as np

from fewcal._utils.tables import html_table
from fewcal._utils.types import JSON, Progress
from fewcal.apply.labelling import centre
from fewcal.apply.predict import Classifier
from fewcal.errors import InputError

FOLDS = 10
# Rows count as near duplicates within this share of the median distance to the nearest other row. On photographs of
# birds it finds copies at twice the size, brighter, mirrored or cropped by 3%, and no other pair.
DUPLICATE_RATIO = 0.2
# An example is marked where its answer is more probable than its label by this much. With one wrong label of twenty,
# 40% of the marked labels are wrong, and half to two thirds of the wrong ones marked: accuracy/wrong_labels.py.
LIKELY_MARGIN = 0.5
MIN_DISTANCE = 1e-5  # of float32 cosines: where most rows are copies, their median distance is 0
BLOCK = 1024  # rows whose distances to all are held at once


@dataclass(frozen=True)
class Suspect:
    """An example that is answered otherwise when left out: its row, its label, the answer, and both probabilities."""

    row: int
    label: str
    answer: str
    answer_probability: float
    label_probability: float

    @property
    def likely(self) -> bool:
        """Whether the label is likely to be wrong."""
        return self.answer_probability - self.label_probability > LIKELY_MARGIN

    def to_dict(self) -> dict[str, JSON]:
        return asdict(self) | {"likely": self.likely}


@dataclass(frozen=True)
class ClassCheck:
    """One class: its examples, the tested ones, and those answered correctly.

    `confused` is the class that most of the others were answered with, or None.
    """

    name: str
    examples: int
    tested: int
    right: int
    confused: str | None

    @property
    def recall(self) -> float | None:
        return self.right / self.tested if self.tested else None

    @property
    def need(self) -> float:
        """The error to expect, (wrong + 1)/(tested + 2): ½ where nothing was tested."""
        return (self.tested - self.right + 1) / (self.tested + 2)


@dataclass(frozen=True, eq=False, repr=False)
class ExampleCheck:
    """What cross-validation found.

    classes : by name
    confusion : (C, C) numbers of tested examples by their label (rows) and their answer (columns)
    suspects : examples that are answered otherwise, the surest contradictions first
    duplicates : groups of rows that are nearly the same
    """

    classes: tuple[ClassCheck, ...]
    confusion: np.ndarray
    suspects: tuple[Suspect, ...]
    duplicates: tuple[tuple[int, ...], ...]

    @property
    def tested(self) -> int:
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float | None:
        """The share of tested examples that are answered correctly; None where none could be tested."""
        return self.right / self.tested if self.tested else None

    def __repr__(self) -> str:
        likely = sum(one.likely for one in self.suspects)
        return (
            f"{self.right} of {self.tested} examples are answered correctly when left out; {len(self.suspects)} are "
            f"answered otherwise, {likely} likely mislabelled; {len(self.duplicates)} groups of near duplicates"
        )

    def _repr_html_(self) -> str:
        """The same for notebooks, with every class."""
        head = ["class", "examples", "recall", "confused with"]
        rows = [
            [one.name, str(one.examples), "–" if one.recall is None else f"{one.recall:.0%}", one.confused or ""]
            for one in self.classes
        ]
        return f"<p>{escape(repr(self))}</p>" + html_table(head, rows)

    @property
    def needs(self) -> list[str]:
        """Names of the classes, those first that another example helps most."""
        return [one.name for one in sorted(self.classes, key=lambda one: (-one.need, one.examples))]

    def to_dict(self) -> dict[str, JSON]:
        """Plain values for JSON."""
        return {
            "accuracy": self.accuracy,
            "tested": self.tested,
            "right": self.right,
            "classes": [asdict(one) | {"recall": one.recall} for one in self.classes],
            "confusion": self.confusion.tolist(),
            "suspects": [one.to_dict() for one in self.suspects],
            "duplicates": [list(group) for group in self.duplicates],
            "needs": list(self.needs),
        }


def check_examples(
    x: np.ndarray,
    labels: Sequence[str] | np.ndarray,
    make: Callable[[], Classifier],
    *,
    folds: int = FOLDS,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExampleCheck:
    """Check labelled examples by cross-validation.

    Parameters
    ----------
    x : (R, D) features
    labels : (R,) class names
    make : gives a classifier in the manner of scikit-learn, not fitted
    folds : how many fits are made
    seed : of the folds
    progress : called with the numbers of fits, done and in all; what it raises ends the check

    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> x = np.array([[0, 1], [0.2, 1], [0.4, 1], [0.3, 1], [1, 0], [1, 0.2], [1, 0.4]])
    >>> check = check_examples(x, ["a", "a", "a", "b", "b", "b", "b"], lambda: KNeighborsClassifier(3))
    >>> check.right, check.tested, [(s.row, s.label, s.answer) for s in check.suspects]
    (6, 7, [(3, 'b', 'a')])
    """
    if folds < 2:
        raise InputError(f"folds={folds} must be 2 or more")
    names, codes, counts = np.unique(np.asarray(labels, dtype=str), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise InputError(f"the examples have {len(names)} class; a check takes two or more")
    groups = near_duplicates(centre(np.asarray(x)))
    fold = stratified_folds(codes, groups, folds, seed)
    p = np.full((len(codes), len(names)), np.nan)
    for k in range(folds):
        kept = fold != k
        # A class whose examples are all left out would be answered wrongly for sure: they stay.
        kept |= ~np.isin(codes, codes[kept])
        if not kept.all():
            p[~kept] = make().fit(x[kept], codes[kept]).predict_proba(x[~kept])
        if progress is not None:
            progress(k + 1, folds)
    tested = ~np.isnan(p[:, 0])
    answers = np.where(tested, np.nan_to_num(p).argmax(axis=1), codes)
    confusion = np.zeros((len(names), len(names)), int)
    np.add.at(confusion, (codes[tested], answers[tested]), 1)
    classes = [_class_check(names, c, int(counts[c]), confusion[c]) for c in range(len(names))]
    wrong = np.flatnonzero(answers != codes)
    found = [(float(p[i, answers[i]]), float(p[i, codes[i]]), int(i)) for i in wrong]
    suspects = [
        Suspect(i, str(names[codes[i]]), str(names[answers[i]]), a, b)
        for a, b, i in sorted(found, key=lambda one: one[1] - one[0])
    ]
    return ExampleCheck(tuple(classes), confusion, tuple(suspects), tuple(tuple(g.tolist()) for g in groups))


def _class_check(names: np.ndarray, c: int, examples: int, answers: np.ndarray) -> ClassCheck:
    others = np.where(np.arange(len(names)) == c, 0, answers)
    confused = str(names[others.argmax()]) if others.any() else None
    return ClassCheck(str(names[c]), examples, int(answers.sum()), int(answers[c]), confused)


def near_duplicates(z: np.ndarray) -> list[np.ndarray]:
    """Groups of rows that are nearly the same, from `centre(x)`; `DUPLICATE_RATIO` is the limit.

    >>> near_duplicates(np.array([[1, 0], [0.999, 0.001], [0, 1], [-1, 0]]))
    [array([0, 1])]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if len(z) < 3:  # two rows have nothing to compare their distance with
        return []
    blocks = [slice(start, start + BLOCK) for start in range(0, len(z), BLOCK)]
    nearest = np.concatenate([_distances(z, rows).min(axis=1) for rows in blocks])
    limit = max(DUPLICATE_RATIO * float(np.median(nearest)), MIN_DISTANCE)
    pairs = [np.argwhere(_distances(z, rows) <= limit) + np.array([rows.start, 0]) for rows in blocks]
    first, second = np.concatenate(pairs).T
    near = coo_matrix((np.ones(len(first), bool), (first, second)), shape=(len(z), len(z)))
    number, group = connected_components(near, directed=False)
    sizes = np.bincount(group, minlength=number)
    return [np.flatnonzero(group == g) for g in np.flatnonzero(sizes > 1)]


def _distances(z: np.ndarray, rows: slice) -> np.ndarray:
    """1 − cosine of some rows to all, infinite to themselves."""
    distance = 1 - z[rows] @ z.T
    distance[np.arange(len(distance)), np.arange(len(distance)) + rows.start] = np.inf
    return distance


def stratified_folds(codes: np.ndarray, groups: Sequence[np.ndarray], folds: int, seed: int = 0) -> np.ndarray:
    """The fold `(R,)` of each row: those of a class in turn, at random; the rows of a group in that of its first.

    >>> stratified_folds(np.array([0, 0, 0, 1, 1, 1]), [np.array([0, 1])], 3).tolist()
    [1, 1, 0, 2, 1, 0]
    """
    rng = np.random.default_rng(seed)
    fold = np.empty(len(codes), int)
    start = 0
    for c in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == c))
        fold[rows] = (np.arange(len(rows)) + start) % folds
        start += len(rows)
    for group in groups:
        fold[group] = fold[group[0]]
    return fold
