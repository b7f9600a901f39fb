"""The classifier of a project: the one place where the studio fits and predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fewcal.bank import BaseBank

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a classifier is made: base classes or None, a preset of the paper's GDC or None for the recommendation."""

    bank: BaseBank | None = None
    preset: str | None = None

    def make(self) -> TaskClassifier:
        """A new classifier, not fitted."""
        from fewcal.apply.predict import make_classifier

        return make_classifier(self.bank, self.preset)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A fitted classifier and its answers to all items.

    names : classes of the columns
    probabilities : (R, N)
    outliers : (R,) p-values of "belongs to one of the classes", or None
    """

    classifier: TaskClassifier
    names: list[str]
    probabilities: np.ndarray
    outliers: np.ndarray | None


def predict_items(
    recipe: Recipe, x: np.ndarray, labelled: np.ndarray, names: np.ndarray, outliers: bool = False
) -> Prediction | None:
    """Fit on the labelled rows of `x (R, D)`, answer all; None with fewer than two classes.

    Parameters
    ----------
    labelled : positions (n,) of the examples
    names : their classes (n,)
    outliers : whether to compute p-values; without base classes a class needs two examples for them
    """
    from fewcal.estimators.few_shot import FewShotClassifier

    if len(np.unique(names)) < 2:
        return None
    classifier = recipe.make().fit(x[labelled], names)
    comparable = recipe.bank is not None or len(np.unique(names)) < len(names)
    tested = outliers and comparable and recipe.preset is None
    probabilities = classifier.predict_proba(x)
    if isinstance(classifier, FewShotClassifier):  # with a bank, items without a label help with each other
        others = np.delete(np.arange(len(x)), labelled)
        if len(others):
            probabilities[others] = classifier.predict_proba_together(x[others])
    return Prediction(
        classifier,
        [str(name) for name in classifier.classes_],
        probabilities,
        classifier.outlier_pvalue(x) if tested else None,
    )
