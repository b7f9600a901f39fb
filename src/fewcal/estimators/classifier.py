"""GDCClassifier: few-shot classification by distribution calibration, for scikit-learn users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from typing import Self, cast
from warnings import warn

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fewcal._utils.arrays import as_features, pick_device
from fewcal._utils.parameters import warn_renamed
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators.bankless import plain_discriminant
from fewcal.estimators.explain import Explanation, SupportAnalysis, no_bank_explanation
from fewcal.estimators.incremental import IncrementalMixin
from fewcal.estimators.inputs import (
    DEPRECATED,
    PLAIN,
    as_tensor,
    capped,
    check_rows,
    check_support,
    class_codes,
    given_params,
    resolve_bank,
    resolve_params,
    seed_from,
)
from fewcal.gaussianize import Gaussianization, fit_gaussianization
from fewcal.heads.base import Head, TaskBatch
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams

FIELDS = tuple(f.name for f in fields(GDCParams))


class GDCClassifier(IncrementalMixin, ClassifierMixin, BaseEstimator):
    """Few-shot classification by distribution calibration, with the statistics of well-known base classes.

    Parameters
    ----------
    bank : BaseBank, path, tuple (X, y) or None, default=None
        The base classes: a bank, the path of a saved one, or base rows and labels. Spaces derived from a `BaseBank` are
        remembered in it and clones share it, so build it once for repeated fits; a tuple is turned into a bank at
        every `fit`. `None`: see Notes.
    preset : str, path or GDCParams, default="default"
        Where parameters come from that are not given here: a name (`fewcal.list_presets()`) or a preset file as
        `fewcal tune` writes it.
    beta, kind, eps, center, l2, whiten, transform_base : default=None
        Gaussianization. This and every following parameter is that of `GDCParams`; `None` takes it from the preset.
    metric, delta, k, m, distance_scale, distance_scale_of, strength, shot_decay, trust, query_strength : default=None
        Neighbours and weights. A k of the preset is brought down to the number of base classes; one given here must
        not exceed it.
    cov, cov_weights, common_size, alpha1, alpha2_ratio, off_diagonal, psd : default=None
        Covariance and its shrinkage.
    n, n_per, head, C : default=None
        Samples and the classifier trained on them; `head` is a name in `fewcal.heads.HEADS` or a scikit-learn
        classifier.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto". What is learned is kept on the CPU, so that it can be
        pickled and loaded anywhere.
    random_state : int, RandomState instance or None, default=0
        Seed of the sampled points and of SGD; the closed form draws none.
    unit, unit_of, query_pull : default="deprecated"
        Old names of distance_scale, distance_scale_of and query_strength, for this release.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    params_ : GDCParams or None
        The parameters in force; None without a bank.
    support_ : tuple of ndarray
        The rows and labels it was fitted on, as they were given.
    extractor_ : str or None
        After `load`: name and fingerprint of what made the features, if the file says so.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Notes
    -----
    Without base classes (`bank=None`) there is nothing to calibrate with. The classifier is then a linear discriminant
    on the features as they are, with equal priors and the pooled within-class covariance of the support S plus a ridge,
    S + (3·D/ν)·(tr S/D)·I, where ν is the number of rows less the number of classes. With one row per class ν = 0 and
    this is the nearest class mean; the more rows, the nearer to the full discriminant. Probabilities are tempered by
    leave-one-out. Of the parameters, `beta`, `kind`, `eps`, `center` and `l2` transform the features before, if any of
    them is given (`beta=1` where it is not); give `l2=True` for features of a neural network. The others have no
    effect, and a warning says so.

    Probabilities are the softmax of the decision values.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.random((12, 32)) * 4
    >>> rows = lambda classes, n: np.concatenate([centres[c] + rng.random((n, 32)) for c in classes])
    >>> bank = BaseBank().fit(rows(range(10), 30), np.repeat(np.arange(10), 30))
    >>> clf = GDCClassifier(bank).fit(rows([10, 11], 1), ["cat", "dog"])
    >>> clf.predict(rows([10, 11], 2)).tolist()
    ['cat', 'cat', 'dog', 'dog']
    >>> clf.explain().points[0].label
    'cat'
    """

    bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None
    preset: str | GDCParams
    device: str | torch.device | None
    random_state: int | np.random.RandomState | None
    classes_: np.ndarray
    support_: tuple[np.ndarray, np.ndarray]
    params_: GDCParams | None
    _head: Head
    _transform: Gaussianization
    _analysis: SupportAnalysis | None

    def __init__(
        self,
        bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None = None,
        preset: str | GDCParams = "default",
        *,
        beta: float | None = None,
        kind: str | None = None,
        eps: float | None = None,
        center: bool | None = None,
        l2: bool | None = None,
        whiten: float | bool | str | None = None,
        transform_base: bool | None = None,
        metric: str | None = None,
        delta: float | None = None,
        k: int | None = None,
        m: float | None = None,
        distance_scale: float | bool | None = None,
        distance_scale_of: str | None = None,
        strength: float | None = None,
        shot_decay: float | None = None,
        trust: float | str | None = None,
        query_strength: float | None = None,
        cov: str | None = None,
        cov_weights: str | None = None,
        common_size: int | None = None,
        alpha1: float | None = None,
        alpha2_ratio: float | None = None,
        off_diagonal: str | None = None,
        psd: str | None = None,
        n: int | None = None,
        n_per: str | None = None,
        head: object = None,
        C: float | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
        unit: float | bool | str = DEPRECATED,
        unit_of: str = DEPRECATED,
        query_pull: float | str = DEPRECATED,
    ) -> None:
        # Every argument as it is, which is what scikit-learn asks of a constructor.
        arguments = dict(locals())
        del arguments["self"]
        self.__dict__.update(arguments)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the classes from support rows.

        Parameters
        ----------
        X : array-like of shape (S, D)
            Support rows: one or more for each class, in any numbers.
        y : array-like of shape (S,)
            Their classes.
        """
        rows, names = check_support(self, X, y)
        return self._learn(np.array(rows), np.array(names))  # copies: they are kept

    def _learn(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Fit on rows and labels that were checked."""
        self.classes_, codes = class_codes(y)
        self.support_ = (X, y)
        given = given_params(self, FIELDS)
        params = resolve_params(self.preset, given)
        if self.bank is None:
            self._learn_plain(X, codes, given)
            return self
        seed = seed_from(self.random_state)
        bank = copy(resolve_bank(self.bank, self.device))  # as it is now, should it grow later
        device = bank.device
        if "k" not in given and isinstance(self.preset, str) and params.k > len(bank):
            params = capped(params, len(bank), quiet=self.preset in ("default", "auto"), preset=self.preset)
        x = as_features(X, "X", dim=bank.dim, device=device)
        method = GDC(params)
        method.prepare(bank)
        transform = method.gaussianization
        assert transform is not None
        with torch.no_grad():
            support, labels = transform(x, "X")[None], torch.from_numpy(codes).to(device)[None]
        head = method.fit(TaskBatch(support, labels, len(self.classes_), TaskRandom(seed, device=device)))
        if device.type != "cpu":
            transform, head = transform.to("cpu"), head.to("cpu")
        self.params_, self._transform, self._head = params, transform, head
        self._analysis = SupportAnalysis(method, support, labels, self.classes_.tolist())
        return self

    def _learn_plain(self, X: np.ndarray, codes: np.ndarray, given: Mapping[str, object]) -> None:
        """Without base classes: a transform, if one was given, and a discriminant."""
        if idle := [name for name in given if name not in PLAIN]:
            warn(
                f"bank=None: without base classes {', '.join(idle)} have no effect; give a bank to calibrate",
                FewcalWarning,
                stacklevel=4,
            )
        x = as_tensor(X)
        self._transform = Gaussianization("none")
        if any(name in PLAIN for name in given):
            p = GDCParams(beta=1.0).with_changes(**{name: given[name] for name in PLAIN if name in given})
            self._transform = fit_gaussianization(x, p.beta, p.kind, p.center, p.l2, p.eps)
        self.params_, self._analysis = None, None
        self._head = plain_discriminant(self._transform(x, "X").double().numpy(), codes)

    def _logits(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        rows = check_rows(self, X, reset=False)
        with torch.no_grad():
            transform, head = self._transform, self._head
            if self.params_ is None:
                out = head.logits(transform(as_tensor(rows), "X").double()[None])[0]
            else:
                x = as_features(rows, "X", device=pick_device(self.device))
                if x.device.type != "cpu":
                    transform, head = transform.to(x.device), head.to(x.device)
                out = head.logits(transform(x, "X")[None])[0]
        return out.double().cpu().numpy()

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores of query rows `X (Q, D)`: `(Q, n_classes)`, or `(Q,)` for two classes, > 0 for `classes_[1]`."""
        scores = self._logits(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the classes for query rows `X (Q, D)`, `(Q, n_classes)`."""
        return cast(np.ndarray, softmax(self._logits(X), axis=1))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of each query row `X (Q, D)`, `(Q,)`."""
        scores = self._logits(X)
        return cast(np.ndarray, self.classes_[scores.argmax(axis=1)])

    def outlier_pvalue(self, X: ArrayLike) -> np.ndarray:
        """Share of base-class examples that look at least as much like the fitted classes as each query row, `(Q,)`.

        It is the p-value of "this row is none of these classes, but something like the base classes": rows below 0.05
        are nearer to a fitted class than 95% of base examples, so answering "none of these" to all others lets at most
        about 5% of such outliers through. It needs a bank.
        """
        check_is_fitted(self)
        if self._analysis is None:
            raise InputError("'none of these' is judged against base classes, and there are none; give a bank")
        test = self._analysis.outlier_test
        x = as_features(check_rows(self, X, reset=False), "X")
        with torch.no_grad():
            return test.pvalue(self._transform(x, "X")).numpy()

    def other_class_share(self, X: ArrayLike) -> np.ndarray:
        """The old name of `outlier_pvalue`, for this release."""
        warn_renamed("other_class_share", "outlier_pvalue")
        return self.outlier_pvalue(X)

    def explain(self) -> Explanation:
        """Which base classes spoke for each support point and class, how much, and whether they can help."""
        check_is_fitted(self)
        return no_bank_explanation() if self._analysis is None else self._analysis.explanation
