"""Gaussianizer: the power transform of the method as a scikit-learn transformer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fewcal.errors import InputError
from fewcal.estimators.inputs import as_tensor, check_rows
from fewcal.gaussianize import Gaussianization, GaussianizationFitter


def _keeps_lengths(estimator: Gaussianizer) -> bool:
    if estimator.l2:
        raise InputError("L2 normalisation cannot be undone; use l2=False")
    return True


class Gaussianizer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Gaussianize features: a power transform, then optional centring and L2 normalisation (eq. 1-3).

    Parameters
    ----------
    beta : float, default=0.5
        The power, one for all features; 1 leaves features as they are and 0 is the logarithm.
    kind : {"auto", "tukey", "yeo-johnson", "signed-power", "none"}, default="auto"
        "auto" takes Tukey's ladder if every feature seen in `fit` is ≥ 0, Yeo-Johnson otherwise; "signed-power" is
        sign(x)·|x|^β with β > 0, for tails that are long on both sides.
    center : bool, default=False
        Subtract the mean of the transformed rows.
    l2 : bool, default=False
        Then scale rows to unit length.
    eps : float, default=1e-6
        Keeps Tukey's log(x + ε) finite at 0, for β ≤ 0.

    Attributes
    ----------
    kind_ : str
        The transform that was chosen.
    mean_ : ndarray of shape (n_features_in_,) or None
        What centring subtracts.
    n_samples_seen_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Examples
    --------
    >>> import numpy as np
    >>> g = Gaussianizer(beta=0.5).fit([[0.0, 4.0], [1.0, 9.0]])
    >>> g.kind_
    'tukey'
    >>> g.transform([[4.0, 16.0]])
    array([[2., 4.]])
    >>> Gaussianizer().fit([[-1.0, 4.0]]).kind_
    'yeo-johnson'
    """

    def __init__(
        self,
        beta: float = 0.5,
        kind: str = "auto",
        center: bool = False,
        l2: bool = False,
        eps: float = 1e-6,
    ) -> None:
        self.beta = beta
        self.kind = kind
        self.center = center
        self.l2 = l2
        self.eps = eps

    def fit(self, X: ArrayLike, y: object = None) -> Gaussianizer:
        """Choose the transform and its mean from rows `X (R, D)`; y is ignored."""
        return self._update(X, first=True)

    def partial_fit(self, X: ArrayLike, y: object = None) -> Gaussianizer:
        """Take in more rows; the result is that of one `fit` on all of them."""
        return self._update(X, first=not hasattr(self, "n_samples_seen_"))

    def _update(self, X: ArrayLike, first: bool) -> Gaussianizer:
        rows = check_rows(self, X, reset=first)
        if first:
            self._fitter = GaussianizationFitter(self.beta, self.kind, self.center, self.l2, self.eps)
        self._fitter.update(as_tensor(rows))
        fitted = self._fitter.finish(torch.float64)
        self.kind_ = fitted.kind
        self.mean_ = None if fitted.mean is None else fitted.mean.numpy()
        self.n_samples_seen_ = self._fitter.rows
        return self

    def _map(self, dtype: torch.dtype) -> Gaussianization:
        mean = None if self.mean_ is None else torch.from_numpy(self.mean_).to(dtype)
        return Gaussianization(self.kind_, float(self.beta), float(self.eps), mean=mean, l2=bool(self.l2))

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Map rows `X (R, D)`; float32 stays float32, everything else becomes float64."""
        check_is_fitted(self)
        x = as_tensor(check_rows(self, X, reset=False))
        return self._map(x.dtype)(x).numpy().copy()

    @available_if(_keeps_lengths)
    def inverse_transform(self, X: ArrayLike) -> np.ndarray:
        """Map transformed rows back; not there with L2 normalisation, which takes the lengths away."""
        check_is_fitted(self)
        x = as_tensor(check_rows(self, X, reset=False))
        return self._map(x.dtype).inverse(x).numpy().copy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
