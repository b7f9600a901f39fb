"""The few-shot classifier of one task: a bank and a few examples in, answers out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Self, cast
from warnings import WarningMessage, catch_warnings, simplefilter, warn

import numpy as np
import torch
from numpy.typing import ArrayLike

from fewcal._utils.arrays import as_features, pick_device
from fewcal._utils.memo import Memo
from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import warn_renamed
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.domain_match import off_scale
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators.explain import Explanation, SupportAnalysis, no_bank_explanation
from fewcal.estimators.incremental import IncrementalMixin
from fewcal.estimators.inputs import (
    DEPRECATED,
    PLAIN,
    as_rows,
    capped,
    check_fitted,
    check_rows,
    check_support,
    class_codes,
    given_params,
    resolve_bank,
    resolve_params,
    seed_from,
)
from fewcal.gaussianize import fit_gaussianization
from fewcal.heads.base import Head, TaskBatch
from fewcal.methods import Bankless, Method
from fewcal.methods.base import RowMap
from fewcal.methods.gdc import Explainable, gdc_method
from fewcal.methods.hierarchical import LITTLE_SAY, BlendedHead, PairedRows
from fewcal.params import GDCParams

if TYPE_CHECKING:
    from sklearn.utils import Tags

# Prepared methods that a bank remembers: each may hold on to a space of the bank.
_METHODS_KEPT = 2


class FewShotClassifier(IncrementalMixin):
    """All of `GDCClassifier` but scikit-learn's part; see there.

    The command line, the studio and the service use it and need not wait for scikit-learn to load.
    """

    bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None
    preset: str | GDCParams
    trust: float | str | None
    device: str | torch.device | None
    random_state: int | np.random.RandomState | None
    classes_: np.ndarray
    n_features_in_: int
    support_: tuple[np.ndarray, np.ndarray]
    params_: GDCParams | None
    _head: Head
    _transform: RowMap
    _unused: str | None
    _analysis: SupportAnalysis | None

    def __init__(
        self,
        bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None = None,
        preset: str | GDCParams = "default",
        *,
        model: str | None = None,
        beta: float | str | None = None,
        kind: str | None = None,
        eps: float | None = None,
        center: bool | None = None,
        max_spread: float | bool | None = None,
        l2: bool | None = None,
        whiten: float | bool | str | None = None,
        transform_base: bool | None = None,
        metric: str | None = None,
        delta: float | None = None,
        mahalanobis_ridge: float | None = None,
        mahalanobis_shift: bool | None = None,
        k: int | None = None,
        m: float | None = None,
        distance_scale: float | bool | None = None,
        distance_scale_of: str | None = None,
        strength: float | None = None,
        sharpness: float | None = None,
        floor: float | None = None,
        scatter: float | None = None,
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
        constant: float | None = None,
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

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags("classifier", TargetTags(required=True), classifier_tags=ClassifierTags())

    def set_params(self, **params: object) -> Self:
        """Set parameters of the constructor by name."""
        for name, value in params.items():
            if name not in self.__dict__:
                raise InputError(f"there is no parameter {name!r}{nearest_names(name, self.__dict__)}")
            setattr(self, name, value)
        return self

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
        given = given_params(self)
        params = resolve_params(self.preset, given)
        self.params_, self._analysis, self._unused = None, None, None
        method: Method
        if self.bank is None:
            x, method = as_rows(X, pick_device(self.device)), self._plain(X, given)
        else:
            bank = resolve_bank(self.bank, self.device)
            x = as_features(X, "X", dim=bank.dim, device=bank.device, check=False)
            if words := off_scale(x, bank):
                warn(words, FewcalWarning, stacklevel=3)
            if "k" not in given and isinstance(self.preset, str) and params.k > len(bank):
                params = capped(params, len(bank), quiet=self.preset in ("default", "auto"), preset=self.preset)
            method = self._prepared(params, bank)
        transform = method.row_map
        model = transform.of_model if isinstance(transform, PairedRows) else transform
        support, labels = model(x, "X")[None], torch.from_numpy(codes).to(x.device)[None]
        random = TaskRandom(seed_from(self.random_state), device=x.device)
        batch = TaskBatch(support, labels, len(self.classes_), random, raw=x[None])
        self._head = method.fit(batch)
        self._transform = transform if self._head.width is None else model
        if x.device.type != "cpu":
            self._transform, self._head = self._transform.to("cpu"), self._head.to("cpu")
        if not isinstance(method, Explainable):
            return self
        self.params_, self._unused = method.params, method.unused
        if method.unused is None:
            self._analysis = SupportAnalysis(method, support, labels, self.classes_.tolist(), x[None])
            known = self._head.trust if isinstance(self._head, BlendedHead) else method.trust(batch).share
            share = float(known[0])
            if share < LITTLE_SAY and share < LITTLE_SAY * method.say_at(len(x) / len(self.classes_)):
                self._warn_of_distrust(share)
        return self

    def _plain(self, X: np.ndarray, given: Mapping[str, object]) -> Bankless:
        """The method without base classes, behind a transform if one was given."""
        if idle := [name for name in given if name not in PLAIN]:
            warn(
                f"bank=None: without base classes {', '.join(idle)} have no effect; give a bank to calibrate",
                FewcalWarning,
                stacklevel=4,
            )
        if not any(name in PLAIN for name in given):
            return Bankless()
        p = GDCParams(beta=1.0).with_changes(**{name: given[name] for name in PLAIN if name in given})
        if isinstance(p.beta, str):
            raise InputError(
                f"beta={p.beta!r} is chosen from base classes, and there are none; give a number or a bank"
            )
        return Bankless(fit_gaussianization(as_features(X, "X"), p.beta, p.kind, p.center, p.l2, p.eps))

    def _prepared(self, params: GDCParams, bank: BaseBank) -> Method:
        """The method made ready, with its warnings as those of `fit`.

        The bank remembers the last ones, which are the same for every classifier with these parameters.
        """

        def make() -> tuple[Method, list[WarningMessage]]:
            with catch_warnings(record=True) as told:
                simplefilter("always", FewcalWarning)
                return gdc_method(params).prepare(copy(bank)), told  # as it is now, should it grow later

        known = bank.memo.get("prepared methods", Memo)
        method, told = known.get(params, make)
        known.keep_last(_METHODS_KEPT)
        for one in told:
            warn(one.message, one.category, stacklevel=4)
        return method

    def _warn_of_distrust(self, trust: float) -> None:
        if isinstance(self.preset, str) and self.trust is None:
            warn(
                f"the base classes have a say of {trust:.0%} only: they are few, or resemble your classes little; "
                "explain() tells more, and base classes of the same domain would help",
                FewcalWarning,
                stacklevel=4,
            )

    def _logits(self, X: ArrayLike) -> np.ndarray:
        check_fitted(self)
        rows = check_rows(self, X, reset=False)
        x = as_rows(rows, pick_device(self.device))
        with torch.inference_mode():
            transform, head = self._transform, self._head
            if x.device.type != "cpu":
                transform, head = transform.to(x.device), head.to(x.device)
            out = head.logits(transform(x, "X")[None])[0]
        return out.cpu().numpy().astype(np.float64)

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores of query rows `X (Q, D)`: `(Q, n_classes)`, or `(Q,)` for two classes, > 0 for `classes_[1]`."""
        scores = self._logits(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the classes for query rows `X (Q, D)`, `(Q, n_classes)`."""
        scores = self._logits(X)
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        return cast(np.ndarray, raised / raised.sum(axis=1, keepdims=True))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of each query row `X (Q, D)`, `(Q,)`."""
        scores = self._logits(X)
        return cast(np.ndarray, self.classes_[scores.argmax(axis=1)])

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """The share of rows `X (Q, D)` that are answered with their class `y (Q,)`."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def outlier_pvalue(self, X: ArrayLike) -> np.ndarray:
        """Share of base-class examples that look at least as much like the fitted classes as each query row, `(Q,)`.

        It is the p-value of "this row is none of these classes, but something like the base classes": rows below 0.05
        are nearer to a fitted class than 95% of base examples, so answering "none of these" to all others lets about 5%
        of such outliers through, and more where the fitted classes are of a kind that the bank does not know
        (benchmarks/RESULTS.md has figures). It needs a bank.
        """
        check_fitted(self)
        if self._analysis is None:
            why = f" in use ({self._unused})" if self._unused else "; give a bank"
            raise InputError(f"'none of these' is judged against base classes, and there are none{why}")
        test = self._analysis.outlier_test
        x = as_rows(check_rows(self, X, reset=False), torch.device("cpu"))
        with torch.no_grad():
            return test.pvalue(self._analysis.in_bank(self._transform(x, "X"))).numpy()

    def other_class_share(self, X: ArrayLike) -> np.ndarray:
        """The old name of `outlier_pvalue`, for this release."""
        warn_renamed("other_class_share", "outlier_pvalue")
        return self.outlier_pvalue(X)

    def explain(self) -> Explanation:
        """Which base classes spoke for each support point and class, how much, and whether they can help."""
        check_fitted(self)
        if self._analysis is not None:
            return self._analysis.explanation
        return no_bank_explanation(f"the bank is not used, {self._unused}") if self._unused else no_bank_explanation()
