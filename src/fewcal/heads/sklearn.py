"""Any scikit-learn classifier as a head, trained task by task on support ∪ samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal.heads.base import Head
from fewcal.heads.calibrated import Calibrated
from fewcal.heads.registry import HeadTrainer


class SklearnHead(Head):
    """One fitted classifier for each task, `fitted`; rows go through NumPy and the CPU."""

    def __init__(self, classifier: Any, x: Tensor, y: Tensor, n_classes: int) -> None:
        from sklearn.base import clone

        self.n_classes = n_classes
        self.fitted = [
            clone(classifier).fit(points, target)
            for points, target in zip(x.cpu().numpy(), y.cpu().numpy(), strict=True)
        ]

    def logits(self, x: Tensor) -> Tensor:
        """Log-probabilities where the classifier has them, its decision values otherwise, else the predicted class."""
        scores = [self._scores(c, rows) for c, rows in zip(self.fitted, x.cpu().numpy(), strict=True)]
        return torch.from_numpy(np.stack(scores)).to(x)

    def to(self, device: torch.device | str) -> SklearnHead:
        """Itself: scikit-learn classifiers live on the CPU."""
        return self

    def _scores(self, classifier: Any, rows: np.ndarray) -> np.ndarray:
        if hasattr(classifier, "predict_proba"):
            return np.log(np.maximum(classifier.predict_proba(rows), 1e-12))
        if hasattr(classifier, "decision_function"):
            values: np.ndarray = classifier.decision_function(rows)
            return np.stack([-values, values], axis=1) if values.ndim == 1 else values
        return np.where(np.arange(self.n_classes) == classifier.predict(rows)[:, None], 0.0, -10.0)


@dataclass(frozen=True)
class SklearnTrainer(HeadTrainer):
    """Trains clones of `classifier`; it has no name, the classifier itself stands for it."""

    classifier: Any = None

    def train(self, task: Calibrated) -> SklearnHead:
        return SklearnHead(self.classifier, *task.points(), task.batch.n_classes)
