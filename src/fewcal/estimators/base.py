"""What the classifiers share: fits on few rows, answers, and examples that come later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from pathlib import Path
from typing import ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from fewcal._utils.arrays import pick_device
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.types import StrPath
from fewcal.errors import InputError
from fewcal.estimators.explain import Explanation, explain_contributions, no_bank_explanation
from fewcal.estimators.inputs import check_fitted, check_rows, check_support, class_codes, join_labels, map_rows
from fewcal.estimators.saved import FileMeta, FileTensors, read_classifier, write_classifier
from fewcal.heads.base import Head, TaskBatch
from fewcal.methods.base import Contributions, Method, RowMap


class TaskClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of one few-shot task, fitted by a method.

    A fit takes milliseconds, so more examples are a new fit on all of them: the result is the same in every bit. What
    is fitted stays on the CPU, so that it can be pickled and loaded anywhere.
    """

    file_kind: ClassVar[str]  # as files name it
    device: str | torch.device | None
    classes_: np.ndarray
    n_features_in_: int
    support_: tuple[np.ndarray, np.ndarray]
    feature_names_in_: np.ndarray
    extractor_: str | None = None
    row_map_: RowMap
    head_: Head

    @abstractmethod
    def _method(self, X: np.ndarray, y: np.ndarray) -> Method:
        """The prepared method for support rows `X (S, D)` with labels `y (S,)`."""

    def seed(self) -> int:
        return 0

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit on support rows.

        Parameters
        ----------
        X : array-like of shape (S, D)
            Support rows: one or more for each class, in any numbers.
        y : array-like of shape (S,)
            Their classes.
        """
        rows, labels = check_support(self, X, y)
        return self.fit_rows(np.array(rows), np.array(labels))  # copies: they are kept

    def fit_rows(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Fit on rows and labels that were checked."""
        classes, _ = class_codes(y)
        method = self._method(X, y)
        batch = self._batch(method, X, y)
        head = method.fit(batch).to("cpu")
        # Set at the end: rows that cannot be fitted leave the classifier as it was.
        self.classes_, self.support_ = classes, (X, y)
        self.row_map_, self.head_ = method.row_map.to("cpu"), head
        self._fitted(method, batch)
        return self

    def _batch(self, method: Method, X: np.ndarray, y: np.ndarray) -> TaskBatch:
        """Support rows as a batch of one task."""
        classes, codes = class_codes(y)
        device = pick_device(self.device)
        labels = torch.from_numpy(codes).to(device)[None]
        support = map_rows(method.row_map, X, device)[None]
        return TaskBatch(support, labels, len(classes), TaskRandom(self.seed(), device=device))

    def _fitted_method(self) -> Method:
        """The method of the last fit."""
        return self._method(*self.support_)

    def _fitted(self, method: Method, batch: TaskBatch) -> None:
        """Keep more of a fit."""

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _logits(self, X: ArrayLike) -> np.ndarray:
        check_fitted(self)
        rows, device = check_rows(self, X, reset=False), pick_device(self.device)
        with torch.inference_mode():
            out = self.head_.to(device).logits(map_rows(self.row_map_, rows, device)[None])[0]
        return out.cpu().numpy().astype(np.float64)

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores of query rows `X (Q, D)`: `(Q, n_classes)`, or `(Q,)` for two classes, > 0 for `classes_[1]`."""
        scores = self._logits(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Logarithms of the probabilities for query rows `X (Q, D)`, `(Q, n_classes)`."""
        return log_softmax(self._logits(X))

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the classes for query rows `X (Q, D)`, `(Q, n_classes)`."""
        return cast(np.ndarray, np.exp(self.predict_log_proba(X)))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of each query row `X (Q, D)`, `(Q,)`."""
        best = self._logits(X).argmax(axis=1)
        return cast(np.ndarray, self.classes_[best])

    def explain(self) -> Explanation:
        """Explain what base classes contributed to each class, and when to doubt the answers."""
        check_fitted(self)
        contributions = self._contributions()
        if contributions is None:
            return no_bank_explanation()
        names = self.classes_.tolist()
        shots = [int((self.support_[1] == name).sum()) for name in names]
        return explain_contributions(contributions, names, shots, self._features)

    def _contributions(self) -> Contributions | None:
        method = self._fitted_method()
        return method.contributions(self._batch(method, *self.support_))

    @property
    def _features(self) -> str:
        return getattr(self.row_map_, "words", "")

    # ---- examples that come later -----------------------------------------------------------------------------------

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Fit on more rows; the result is that of one `fit` on all rows so far.

        Parameters
        ----------
        X, y
            As for `fit`. The first call needs rows of at least two classes, unless `classes` names more: then rows are
            kept, and there are answers as soon as a second class has a row.
        classes : array-like or None
            As in scikit-learn, all classes there will be; other labels are refused. Classes without a row yet are no
            answers.

        Examples
        --------
        >>> from fewcal import FewShotClassifier
        >>> clf = FewShotClassifier().partial_fit([[0.0, 1.0]], ["cat"], classes=["cat", "dog"])
        >>> clf.partial_fit([[1.0, 0.0]], ["dog"]).predict([[0.9, 0.2]]).tolist()
        ['dog']
        """
        if classes is not None and not np.isin(np.asarray(y), np.asarray(classes)).all():
            listed = {str(c) for c in np.asarray(classes).tolist()}
            other = sorted({str(label) for label in np.asarray(y).tolist()} - listed)
            raise InputError(f"y has the class {other[0]!r}, which is not among `classes`; add it there")
        if hasattr(self, "support_"):
            return self._fit_more(X, y)
        if classes is None or len(np.unique(np.asarray(classes))) < 2:
            return self.fit(X, y)
        rows, labels = check_support(self, X, y)
        return self._fit_or_wait(np.array(rows), np.array(labels))

    def add_examples(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add labelled rows `X (R, D)`, `y (R,)` of the fitted classes, and fit on all; `add_class` adds a class."""
        check_fitted(self)
        if other := sorted({str(label) for label in np.asarray(y).tolist() if label not in self.classes_.tolist()}):
            raise InputError(f"there is no class {other[0]!r}; add_class adds one, or correct the label")
        return self._fit_more(X, y)

    def add_class(self, X: ArrayLike, name: Hashable) -> Self:
        """Add a class by one or more rows `X (R, D)` of it, and fit on all.

        >>> from fewcal import FewShotClassifier
        >>> clf = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.add_class([[5.0, 5.0]], "mouse").predict([[4.0, 6.0]]).tolist()
        ['mouse']
        """
        check_fitted(self)
        if name in self.classes_.tolist():
            raise InputError(f"there is a class {str(name)!r} already; use add_examples for more rows of it")
        return self._fit_more(X, np.array([name] * len(np.asarray(X))))

    def _fit_more(self, X: ArrayLike, y: ArrayLike) -> Self:
        rows, labels = check_rows(self, X, reset=False), np.asarray(y)
        if labels.shape != (len(rows),):
            raise InputError(f"X has {len(rows)} rows and y has shape {labels.shape}; give exactly one label per row")
        own, names = self.support_
        return self._fit_or_wait(np.concatenate([own, rows]), join_labels(names, labels))

    def _fit_or_wait(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Fit on rows of two classes or more; keep those of one class, for another is to come."""
        if len(set(y.tolist())) > 1:
            return self.fit_rows(X, y)
        self.support_ = (X, y)
        return self

    # ---- files ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def file_parts(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """What a file holds beside the support: values and tensors."""

    @classmethod
    @abstractmethod
    def from_parts(cls, meta: FileMeta, tensors: FileTensors) -> Self:
        """The classifier of a file, not fitted yet."""

    @abstractmethod
    def restore(self, X: np.ndarray, y: np.ndarray, meta: FileMeta, tensors: FileTensors) -> None:
        """Fit as the file has it, on its support."""

    def save(self, path: StrPath, *, extractor: str | None = None) -> Path:
        """Write what prediction and later examples need as one safetensors file, which appears when it is complete.

        Parameters
        ----------
        path : path
        extractor : str or None
            What made the features, as `Extractor.stamp`; by default that of the file which was loaded.
        """
        check_fitted(self)
        return write_classifier(self, Path(path), extractor or self.extractor_)

    def to_onnx(self, path: StrPath) -> Path:
        """Write features to label and probabilities as an ONNX graph, for ONNX Runtime in any language.

        Input `X (Q, D)` float32; outputs `label (Q,)` and `probabilities (Q, N)`, equal to `predict_proba` to 1e-5.
        """
        from fewcal.estimators.onnx_export import write_onnx

        check_fitted(self)
        return write_onnx(self, Path(path))

    @classmethod
    def load(cls, path: StrPath, *, device: str | torch.device | None = None) -> Self:
        """Read a classifier that `save` wrote; it answers as the one that was saved."""
        return read_classifier(cls, Path(path), device)


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Log-probabilities of scores `(Q, N)`.

    >>> np.exp(log_softmax(np.array([[0.0, 0.0]]))).tolist()
    [[0.5, 0.5]]
    """
    scores = scores - scores.max(axis=1, keepdims=True)
    return cast(np.ndarray, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
