"""A saved classifier and its extractor behind one call for many items: the service knows no other part of fewcal.

Items of one batch come from different clients. So each is answered by itself: predictions that look at all queries
together (transductive ones) have no place here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fewcal._utils.arrays import LARGEST
from fewcal._utils.types import JSON
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.errors import InputError
from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.features.extractors import Extractor

# A row of features (D,), a picture brought to the extractor's size, or a text.
Item: TypeAlias = np.ndarray | str


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A classifier, its extractor (None: rows of features alone are served) and the level of "none of these"."""

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

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self.classifier.n_features_in_)

    def row(self, values: JSON | np.ndarray, name: str) -> np.ndarray:
        """Features `(D,)` from a list of numbers or an array."""
        is_list = isinstance(values, list) and all(type(value) in (int, float) for value in values)
        if not isinstance(values, np.ndarray | list) or not (is_list or isinstance(values, np.ndarray)):
            raise InputError(f"{name} is no list of numbers")
        if len(values) != self.width:
            raise InputError(f"{name} has {len(values)} numbers and the model takes {self.width}")
        try:
            with np.errstate(over="ignore"):
                x = np.asarray(values, np.float32)
        except OverflowError:  # an integer of hundreds of digits
            x = np.array([np.inf], np.float32)
        if not (np.abs(x) < LARGEST).all():
            raise InputError(f"{name} holds NaN, infinity or a number beyond {LARGEST:.0e}")
        return x

    def picture(self, data: bytes, name: str) -> np.ndarray:
        """An encoded picture as the extractor takes it."""
        assert self.extractor is not None
        return self.extractor.decode(data, name)

    def answer_rows(self, rows: list[np.ndarray]) -> list[bytes]:
        """Answers to rows of features, each `(D,)`, as JSON."""
        x = np.stack(rows)
        p = self.classifier.predict_proba(x)
        p_values = None if self.reject is None else self.classifier.outlier_pvalue(x)
        names = self.classes
        out = []
        for i, row in enumerate(p):
            best = row.argmax()
            probabilities = dict(zip(names, row.tolist(), strict=True))
            answer: dict[str, JSON] = {
                "class": names[best],
                "probability": float(row[best]),
                "probabilities": probabilities,
            }
            if p_values is not None and self.reject is not None:
                answer["outlier_pvalue"] = float(p_values[i])
                if p_values[i] < self.reject:
                    answer["class"] = NONE_OF_THESE
            out.append(json.dumps(answer).encode())
        return out

    def answer_items(self, items: list[Item]) -> list[bytes]:
        """Answers to pictures or texts that are ready for the extractor, as JSON."""
        assert self.extractor is not None
        return self.answer_rows(list(self.extractor(items)))
