"""A saved classifier and its extractor behind one call for many items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fewcal._utils.types import JSON
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.errors import InputError
from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.features.extractors import Extractor

# A row of features (D,), a picture brought to the extractor's size, or a text.
Item: TypeAlias = np.ndarray | str


@dataclass(frozen=True, eq=False)
class ServedModel:
    """What a service answers with; `extractor` is None where the model says nothing about one: rows alone are taken."""

    classifier: FewShotClassifier
    extractor: Extractor | None = None
    reject: float | None = None

    @property
    def kind(self) -> str | None:
        """ "picture", "text", or None for features alone."""
        return None if self.extractor is None else self.extractor.kind

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.classifier.classes_]

    def rows(self, values: JSON | np.ndarray) -> np.ndarray:
        """Features `(R, D)` as a request gives them, checked."""
        try:
            x = np.asarray(values, np.float32)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError("rows must be lists of numbers, all of one length") from error
        if x.ndim != 2 or not len(x):
            raise InputError(f"rows must be a list of lists of numbers, not of shape {x.shape}")
        if x.shape[1] != self.classifier.n_features_in_:
            wanted = self.classifier.n_features_in_
            raise InputError(f"a row has {x.shape[1]} numbers and the model takes {wanted}")
        if not np.isfinite(x).all():
            raise InputError("rows hold NaN or infinity; give finite numbers")
        return x

    def answer_rows(self, rows: list[np.ndarray]) -> list[JSON]:
        """Answers to rows of features, each `(D,)`."""
        return self._answers(np.stack(rows))

    def answer_items(self, items: list[Item]) -> list[JSON]:
        """Answers to pictures or texts that are ready for the extractor."""
        assert self.extractor is not None
        return self._answers(self.extractor(items))

    def _answers(self, x: np.ndarray) -> list[JSON]:
        p = self.classifier.predict_proba(x)
        best = p.argmax(axis=1)
        other = None if self.reject is None else self.classifier.outlier_pvalue(x)
        names = self.classes
        out: list[JSON] = []
        for i, row in enumerate(p):
            answer: dict[str, JSON] = {
                "class": names[best[i]],
                "probability": float(row[best[i]]),
                "probabilities": dict(zip(names, row.tolist(), strict=True)),
            }
            if other is not None and self.reject is not None:
                answer["outlier_pvalue"] = float(other[i])
                if other[i] >= self.reject:
                    answer["class"] = NONE_OF_THESE
            out.append(answer)
        return out
