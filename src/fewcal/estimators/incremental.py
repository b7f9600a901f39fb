"""Classes and examples that come later, and classifiers in files; what `GDCClassifier` has of them."""

from __future__ import annotations

from collections.abc import Hashable
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from fewcal._utils.types import JSON, StrPath
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.estimators.inputs import (
    PLAIN,
    as_tensor,
    check_fitted,
    check_rows,
    check_support,
    given_params,
    resolve_bank,
)
from fewcal.estimators.saved import SavedFit, joined_labels, moments_only, read_fit, same_answers, write_fit
from fewcal.params import GDCParams


class IncrementalMixin:
    """`partial_fit`, `add_examples`, `add_class`, `save` and `load` on top of `fit`.

    A fit takes milliseconds, so more examples are a new fit on all of them: the result is the same in every bit.
    """

    bank: BaseBank | StrPath | tuple[ArrayLike, ArrayLike] | None
    preset: str | GDCParams
    random_state: int | np.random.RandomState | None
    support_: tuple[np.ndarray, np.ndarray]
    classes_: np.ndarray
    params_: GDCParams | None
    extractor_: str | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the classes from support rows; see the estimator."""
        raise NotImplementedError

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the classes; see the estimator."""
        raise NotImplementedError

    def _learn(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Fit on rows and labels that were checked."""
        raise NotImplementedError

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Fit on more rows; the result is that of one `fit` on all rows so far.

        Parameters
        ----------
        X, y
            As for `fit`. The first call needs rows of at least two classes, unless `classes` says that there will be
            more: then rows are kept, and there are answers as soon as a second class has a row.
        classes : array-like or None
            As scikit-learn has it, all classes there will be; labels beyond them are refused. Classes without a row yet
            are not answered with.

        Examples
        --------
        >>> from fewcal import GDCClassifier
        >>> clf = GDCClassifier().partial_fit([[0.0, 1.0]], ["cat"], classes=["cat", "dog"])
        >>> clf.partial_fit([[1.0, 0.0]], ["dog"]).predict([[0.9, 0.2]]).tolist()
        ['dog']
        """
        if classes is not None and not np.isin(np.asarray(y), np.asarray(classes)).all():
            unknown = sorted(
                {str(label) for label in np.asarray(y).tolist()} - {str(c) for c in np.asarray(classes).tolist()}
            )
            raise InputError(f"y has the class {unknown[0]!r}, which is not among `classes`; add it there")
        if hasattr(self, "support_"):
            return self._learn_more(X, y)
        if classes is None or len(np.unique(np.asarray(classes))) < 2:
            return self.fit(X, y)
        rows, names = check_support(self, X, y)
        return self._learn_or_wait(np.array(rows), np.array(names))

    def add_examples(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add labelled rows `X (R, D)`, `y (R,)`, of known classes or new ones, and fit on all."""
        check_fitted(self)
        return self._learn_more(X, y)

    def _learn_more(self, X: ArrayLike, y: ArrayLike) -> Self:
        rows = check_rows(self, X, reset=False)
        labels = np.asarray(y)
        if labels.shape != (len(rows),):
            raise InputError(f"X has {len(rows)} rows and y has shape {labels.shape}; give exactly one label per row")
        known, names = self.support_
        return self._learn_or_wait(np.concatenate([known, rows]), joined_labels(names, labels))

    def _learn_or_wait(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Fit on rows of two classes or more; those of one class are kept, for another is to come."""
        if len(set(y.tolist())) > 1:
            return self._learn(X, y)
        self.support_ = (X, y)
        return self

    def add_class(self, X: ArrayLike, name: Hashable) -> Self:
        """Add a class by one or more rows `X (R, D)` of it, and fit on all.

        >>> from fewcal import GDCClassifier
        >>> clf = GDCClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.add_class([[5.0, 5.0]], "mouse").predict([[4.0, 6.0]]).tolist()
        ['mouse']
        """
        check_fitted(self)
        if name in self.classes_.tolist():
            raise InputError(f"there is a class {str(name)!r} already; use add_examples for more rows of it")
        return self.add_examples(X, np.array([name] * len(np.asarray(X))))

    def save(self, path: StrPath, *, keep_bank: bool = False, extractor: str | None = None) -> Path:
        """Write all that prediction needs as one safetensors file.

        Of the bank, means and the pooled covariance are kept where the parameters need no more (the default preset
        does not); `keep_bank` keeps all of it, for other parameters later.

        Parameters
        ----------
        path : where to write; the file appears when it is complete
        keep_bank : whether to keep all of the bank
        extractor : what made the features, as `Extractor.stamp` says it; by default what the file that was loaded says
        """
        check_fitted(self)
        X, y = self.support_
        seed = self.random_state
        if seed is not None and not isinstance(seed, int | np.integer):
            raise InputError(f"random_state={seed!r} cannot be saved; use an integer")
        bank = None if self.bank is None else resolve_bank(self.bank, torch.device("cpu"))
        if bank is not None and self.params_ is not None and not keep_bank:
            bank = self._smallest(bank, self.params_)
        plain: dict[str, JSON] = {}
        if bank is None:
            p = GDCParams(beta=1.0).with_changes(**given_params(self, PLAIN))
            plain = {name: getattr(p, name) for name in given_params(self, PLAIN)}
        about: dict[str, JSON] = {"features": X.shape[1], "examples": len(X)}
        named = getattr(self, "feature_names_in_", None)
        about["feature_names"] = None if named is None else [str(n) for n in named]
        fit = SavedFit(
            support=as_tensor(X),
            labels=np.asarray(y),
            params=self.params_,
            plain=plain,
            bank=bank,
            preset=self.preset if isinstance(self.preset, str) else None,
            extractor=extractor or self.extractor_,
            random_state=None if seed is None else int(seed),
            about=about,
        )
        return write_fit(fit, path)

    def _smallest(self, bank: BaseBank, params: GDCParams) -> BaseBank:
        """The moments of a bank if the same classifier can be made of them, else the bank.

        What a head needs is not asked but tried, so that this holds for every head and method.
        """
        if not params.transform_base:
            return bank
        small = moments_only(bank, params)

        def again() -> IncrementalMixin:
            arguments = {name: getattr(self, name) for name in signature(type(self)).parameters}
            other = type(self)(**(arguments | {"bank": small, "preset": params}))
            return other.fit(*self.support_)

        return small if same_answers(self, again, self.support_[0]) else bank

    @classmethod
    def load(cls, path: StrPath, *, device: str | torch.device | None = None) -> Self:
        """Read a classifier that `save` wrote; it answers as the one that was saved."""
        fit = read_fit(path)
        # Parameters of a transform without a bank are none of the default's.
        preset = fit.params or ("whitened" if fit.plain else "default")
        made: Any = cls(bank=fit.bank, preset=preset, **fit.plain)  # type: ignore[call-arg]
        made.set_params(device=device, random_state=fit.random_state)
        names = fit.about.get("feature_names")
        rows = fit.support.numpy()
        if isinstance(names, list):
            made.feature_names_in_ = np.array(names, dtype=object)
        made.n_features_in_ = rows.shape[1]
        made.extractor_ = fit.extractor
        loaded: Self = made._learn(rows, fit.labels)
        return loaded
