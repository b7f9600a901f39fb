"""FewShotClassifier: the recommended classifier, for scikit-learn users."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Self, TypeAlias
from warnings import warn

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fewcal._utils.arrays import common_shift, pick_device
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators.base import TaskClassifier, log_softmax
from fewcal.estimators.inputs import (
    as_tensor,
    check_fitted,
    check_priors,
    check_rows,
    check_support,
    class_codes,
    map_rows,
    resolve_bank,
)
from fewcal.estimators.saved import FileMeta, FileTensors, prior_from_file, prior_to_file
from fewcal.heads.base import TaskBatch
from fewcal.heads.linear import LinearHead
from fewcal.hgdc.names import name_scores
from fewcal.hgdc.prior import Prior
from fewcal.hgdc.temperature import calibrated_gamma
from fewcal.hgdc.transduction import Transduction
from fewcal.methods.base import Method
from fewcal.methods.hgdc import HGDC, TwoViews
from fewcal.methods.support_only import SupportOnly
from fewcal.rejection import OutlierTest

if TYPE_CHECKING:
    from fewcal.features.extractors import Extractor

# Tasks of validation classes that `calibrate` draws, and queries of each class.
CALIBRATION_TASKS, CALIBRATION_QUERIES = 200, 15

# What embeds names of classes.
NAME_EXTRACTOR = "minilm"

Priors: TypeAlias = "ArrayLike | Mapping[Hashable, float] | None"


class FewShotClassifier(TaskClassifier):
    """Few-shot classification with the statistics of base classes: HGDC.

    HGDC (`docs/method.md`) is a hierarchical Gaussian model: base classes are the prior of a class mean, and its
    posterior given a few examples classifies. Without base classes the examples alone classify.

    Parameters
    ----------
    bank : BaseBank, path, tuple (X, y), Prior or None, default=None
        The base classes: a bank, the path of a saved one, or base rows and labels. What is derived from a `BaseBank` is
        kept with it, and clones share it; a tuple becomes a bank at every `fit`. A loaded classifier has its `Prior`.
    ridge : float or "auto", default="auto"
        λ, ridge of the whitening in units of the mean variance; "auto": from tasks of left-out base classes.
    kurtosis : float, default=7
        The power transform is the gentlest that brings the within-class kurtosis below this.
    spread : float, default=4
        Limit of the standard deviation of a feature, in units of the median.
    floor : float, default=0.15
        Variance of new class means where base means do not differ, in units of that within classes.
    sharpness : float, default=1.75
        τ: how fast the weight of a base class falls with its distance.
    classes : float, default=40
        Number of base classes at which these weigh one half.
    scatter : float, default=10
        Ridge of the scatter of the support, in OAS ridges.
    confidence : float, default=4
        Limit of the scale of log-probabilities.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto".

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    prior_ : Prior or None
        The prior fitted on the base classes; None without them.
    support_ : tuple of ndarray
        The rows and labels it was fitted on, as they were given.
    unlabelled_ : ndarray or None
        Unlabelled rows, as they were given.
    priors_ : dict or None
        Frequencies of the classes, where they were given.
    name_scores_ : dict or None
        How near each class is to the base classes by name, with `class_names`.
    temperature_ : float
        What scores are divided by; 1 before `calibrate`.
    extractor_ : str or None
        After `load`: name and fingerprint of what made the features, if the file names it.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Examples
    --------
    >>> import numpy as np
    >>> from fewcal import BaseBank
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.random((72, 32)) * 4
    >>> rows = lambda classes, n: np.concatenate([centres[c] + rng.random((n, 32)) for c in classes])
    >>> bank = BaseBank().fit(rows(range(70), 30), np.repeat(np.arange(70), 30))
    >>> clf = FewShotClassifier(bank).fit(rows([70, 71], 1), ["cat", "dog"])
    >>> clf.predict(rows([70, 71], 2)).tolist()
    ['cat', 'cat', 'dog', 'dog']
    """

    file_kind = "hgdc"
    prior_: Prior | None
    temperature_: float
    unlabelled_: np.ndarray | None = None
    priors_: dict[Hashable, float] | None = None
    name_scores_: dict[Hashable, Tensor] | None = None

    def __init__(
        self,
        bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | Prior | None = None,
        *,
        ridge: float | str = "auto",
        kurtosis: float = 7.0,
        spread: float = 4.0,
        floor: float = 0.15,
        sharpness: float = 1.75,
        classes: float = 40.0,
        scatter: float = 10.0,
        confidence: float = 4.0,
        device: str | torch.device | None = None,
    ) -> None:
        self.bank = bank
        self.ridge = ridge
        self.kurtosis = kurtosis
        self.spread = spread
        self.floor = floor
        self.sharpness = sharpness
        self.classes = classes
        self.scatter = scatter
        self.confidence = confidence
        self.device = device

    def _method(self, X: np.ndarray, y: np.ndarray) -> Method:
        if self.bank is None:
            plain = SupportOnly(self.scatter)
            plain.shift = common_shift(X)
            return plain
        settings = {name: getattr(self, name) for name in HGDC.accepts}
        if isinstance(self.bank, Prior):
            method = HGDC.from_prior(self.bank, **settings)
        else:
            bank = resolve_bank(self.bank, self.device)
            if bank.dim != X.shape[1]:
                raise InputError(
                    f"X has {X.shape[1]} features and the bank {bank.dim}; use the same extractor for both"
                )
            method = HGDC(**settings)
            method.prepare(bank)
        return self._with_names(method, y)

    def _with_names(self, method: HGDC, y: np.ndarray) -> HGDC:
        if self.name_scores_ is not None:
            none = torch.zeros(len(method.prior.base_means))
            scores = [self.name_scores_.get(c, none) for c in class_codes(y)[0].tolist()]
            method.names = torch.stack(scores).to(method.prior.base_means)
        return method

    def _fitted_method(self) -> Method:
        if self.prior_ is None:
            return self._method(*self.support_)
        method = HGDC.from_prior(self.prior_.to(pick_device(self.device)), scatter=self.scatter)
        return self._with_names(method, self.support_[1])

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        unlabelled: ArrayLike | None = None,
        priors: Priors = None,
        class_names: bool | Mapping[Hashable, str] = False,
    ) -> Self:
        """Fit on support rows, and on what else is at hand: unlabelled rows, frequencies and names of the classes.

        Parameters
        ----------
        X : array-like of shape (S, D)
            Support rows: one or more for each class, in any numbers.
        y : array-like of shape (S,)
            Their classes.
        unlabelled : array-like of shape (M, D) or None
            Rows of these classes, some of them or others, whose class is not known (`fewcal.hgdc.transduction`); they
            bring nothing without a bank. Later examples are a fit with them, too. scikit-learn's
            `SelfTrainingClassifier` takes them in `X`.
        priors : array-like of shape (n_classes,), mapping or None
            Frequencies of the sorted classes, or by class; None: unknown.
        class_names : bool or mapping, default=False
            True: the labels are names of the classes, which help to find near base classes (`fewcal.hgdc.names`). A
            mapping has a name for each label. It takes `pip install 'fewcal[text]'`.
        """
        rows, labels = check_support(self, X, y)
        classes = class_codes(labels)[0].tolist()
        frequencies = None if priors is None else check_priors(priors, classes)
        extra = None if unlabelled is None else np.array(check_rows(self, unlabelled, reset=False))
        if self.bank is None and (extra is not None or class_names):
            what = "unlabelled rows bring" if extra is not None else "class names bring"
            warn(f"{what} nothing without base classes; give a bank", FewcalWarning, stacklevel=2)
        before = self.unlabelled_, self.priors_, self.name_scores_
        self.unlabelled_, self.priors_, self.name_scores_ = extra, frequencies, None
        try:
            if class_names:
                names = {c: c for c in classes} | (dict(class_names) if isinstance(class_names, Mapping) else {})
                self.name_scores_ = self._scores_of_names(self._method(rows, labels), {c: names[c] for c in classes})
            return self.fit_rows(np.array(rows), np.array(labels))  # copies: they are kept
        except BaseException:
            self.unlabelled_, self.priors_, self.name_scores_ = before
            raise

    def _scores_of_names(self, method: Method, names: dict[Hashable, Hashable]) -> dict[Hashable, Tensor] | None:
        if not isinstance(method, HGDC):
            return None
        scores = name_scores(method.prior, list(names.values()), lambda texts: embed_names(tuple(texts)))
        return dict(zip(names, scores.cpu(), strict=True))

    def _fitted(self, method: Method, batch: TaskBatch) -> None:
        self.temperature_ = 1.0
        if self.unlabelled_ is not None and isinstance(method, HGDC):
            self.head_ = self._transduce(method, batch, self.unlabelled_).head.to("cpu")
        elif (frequencies := self._frequencies(batch)) is not None:
            assert isinstance(self.head_, LinearHead)
            self.head_ = LinearHead(self.head_.weight, self.head_.bias + frequencies.log().cpu())
        self.prior_ = method.prior.to("cpu") if isinstance(method, HGDC) else None
        width = None if self.prior_ is None else len(self.prior_.origin)
        self._outliers = batch.support[0, :, :width].cpu(), batch.labels[0].cpu()

    def _frequencies(self, batch: TaskBatch) -> torch.Tensor | None:
        """Given frequencies `(N,)`; those of classes that came later are the mean of the others."""
        if self.priors_ is None:
            return None
        return torch.tensor(self._prior_values(), dtype=batch.support.dtype, device=batch.support.device)

    def _prior_values(self) -> list[float]:
        own = self.priors_ or {}
        return [own.get(c, sum(own.values()) / len(own)) for c in self.classes_.tolist()]

    def _transduce(self, method: HGDC, batch: TaskBatch, X: np.ndarray) -> Transduction:
        rows = map_rows(method.row_map, X, batch.support.device)[None]
        return method.transduce(batch, rows, self._frequencies(batch))

    def predict_log_proba_together(self, X: ArrayLike) -> np.ndarray:
        """Logarithms of the probabilities for query rows `X (Q, D)` that are classified together, `(Q, n_classes)`.

        The other rows, and the unlabelled ones of `fit`, help with each. One row alone is answered as by `predict`, and
        so are all without base classes.
        """
        check_fitted(self)
        rows = check_rows(self, X, reset=False)
        every = rows if self.unlabelled_ is None else np.concatenate([rows, self.unlabelled_])
        method = self._fitted_method()
        if not isinstance(method, HGDC):
            return self.predict_log_proba(X)
        scores = self._transduce(method, self._batch(method, *self.support_), every).scores[0, : len(rows)]
        return log_softmax(scores.cpu().numpy().astype(np.float64) / self.temperature_)

    def predict_proba_together(self, X: ArrayLike) -> np.ndarray:
        """Probabilities for query rows `X (Q, D)` that are classified together, `(Q, n_classes)`."""
        return np.asarray(np.exp(self.predict_log_proba_together(X)))

    def predict_together(self, X: ArrayLike) -> np.ndarray:
        """The class of each query row `X (Q, D)`, `(Q,)`, where the other rows help.

        >>> clf = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.predict_together([[0.1, 0.9], [0.8, 0.3], [0.2, 0.9]]).tolist()
        ['cat', 'dog', 'cat']
        """
        return np.asarray(self.classes_[self.predict_log_proba_together(X).argmax(axis=1)])

    def calibrate(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Calibrate the probabilities with validation classes, by tasks with the ways and shots of this classifier.

        Parameters
        ----------
        X : array-like of shape (R, D)
            Rows of classes that are neither base classes nor classes of this classifier: two classes or more, each with
            more rows than this classifier has examples of a class.
        y : array-like of shape (R,)
            Their classes.
        """
        check_fitted(self)
        rows = check_rows(self, X, reset=False)
        names, codes = class_codes(np.asarray(y))
        if len(codes) != len(rows):
            raise InputError(f"X has {len(rows)} rows and y {len(codes)} labels; give exactly one label per row")
        shots = max(len(self.support_[1]) // len(self.classes_), 1)
        members = [at for c in range(len(names)) if len(at := np.flatnonzero(codes == c)) > shots]
        ways = min(len(self.classes_), len(members))
        if ways < 2:
            raise InputError(f"calibration needs two validation classes with more than {shots} rows; add rows")
        rng = np.random.default_rng(0)
        number, queries = CALIBRATION_TASKS, min(CALIBRATION_QUERIES, min(map(len, members)) - shots)
        drawn = np.stack(
            [
                [rng.permutation(members[c])[: shots + queries] for c in rng.permutation(len(members))[:ways]]
                for _ in range(number)
            ]
        )
        method = self._method(*self.support_)
        z = map_rows(method.row_map, rows, torch.device("cpu"))
        support, query = (z[part.reshape(number, -1)] for part in np.split(drawn, [shots], axis=2))
        order = torch.arange(ways)
        labels = order.repeat_interleave(shots).expand(number, -1)
        with torch.inference_mode():
            scores = method.fit(TaskBatch(support, labels, ways, TaskRandom(0, range(number)))).logits(query)
        truth = order.repeat_interleave(queries).expand(number, -1)
        return self.set_temperature(1 / calibrated_gamma(scores, truth))

    def set_temperature(self, temperature: float) -> Self:
        """Divide scores by a temperature, which softens probabilities and leaves answers as they are."""
        check_fitted(self)
        if not 0 < temperature < float("inf"):
            raise InputError(f"temperature={temperature!r} must be a positive number")
        head, ratio = self.head_, self.temperature_ / temperature
        assert isinstance(head, LinearHead)
        self.head_, self.temperature_ = LinearHead(head.weight * ratio, head.bias * ratio), temperature
        return self

    def outlier_pvalue(self, X: ArrayLike) -> np.ndarray:
        """The p-value of "this row belongs to one of the classes" for each query row of `X (Q, D)`, `(Q,)`.

        Small values are of rows that are unlike all classes: with a limit of 0.05, about 5% of the members are rejected
        (`fewcal.rejection`). It needs a bank, or two examples of a class.
        """
        check_fitted(self)
        support, labels = self._outliers
        with torch.inference_mode():
            test = OutlierTest.fit(support, labels, self.prior_)
            x = map_rows(self.row_map_, check_rows(self, X, reset=False), torch.device("cpu"))
            return test.pvalue(x[:, : support.shape[1]]).numpy()

    @property
    def _features(self) -> str:
        return self.row_map_.model.words if isinstance(self.row_map_, TwoViews) else "unit length"

    # ---- files ------------------------------------------------------------------------------------------------------

    def file_parts(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """Return the values and tensors that a file holds beside the support."""
        own, tensors = (None, {}) if self.prior_ is None else prior_to_file(self.prior_)
        settings = {name: getattr(self, name) for name in HGDC.accepts}
        frequencies = None if self.priors_ is None else self._prior_values()
        if self.name_scores_ is not None and self.prior_ is not None:
            none = torch.zeros(len(self.prior_.base_means))
            tensors["names"] = torch.stack([self.name_scores_.get(c, none) for c in self.classes_.tolist()])
        if self.unlabelled_ is not None:
            tensors["unlabelled"] = as_tensor(self.unlabelled_)
        meta = {"settings": settings, "temperature": self.temperature_, "prior": own, "priors": frequencies}
        return meta, tensors

    @classmethod
    def from_parts(cls, meta: FileMeta, tensors: FileTensors) -> Self:
        """Make the classifier of a file, not fitted yet."""
        prior = None if meta["prior"] is None else prior_from_file(meta["prior"], tensors)
        if prior is not None and len(prior.origin) != tensors["support"].shape[1]:
            raise ValueError(
                f"the prior has {len(prior.origin)} features and the support {tensors['support'].shape[1]}"
            )
        return cls(prior, **meta["settings"])

    def restore(self, X: np.ndarray, y: np.ndarray, meta: FileMeta, tensors: FileTensors) -> None:
        """Fit as the file has it, on its support."""
        if meta["priors"] is not None:
            self.priors_ = check_priors(meta["priors"], np.unique(y).tolist())
        if "names" in tensors:
            if tensors["names"].shape != (len(np.unique(y)), len(meta["prior"]["classes"])):
                raise ValueError("the scores of names fit neither classes nor base classes")
            self.name_scores_ = dict(zip(np.unique(y).tolist(), tensors["names"], strict=True))
        if "unlabelled" in tensors:
            self.unlabelled_ = check_rows(self, tensors["unlabelled"].numpy(), reset=False)
        self.fit_rows(X, y).set_temperature(float(meta["temperature"]))


@lru_cache(maxsize=64)
def embed_names(names: tuple[str, ...]) -> np.ndarray:
    """Embed names `(R, E)`; those of the base classes are the same in every fit."""
    return np.asarray(name_extractor()(list(names)))


@cache
def name_extractor() -> Extractor:
    """What embeds names: reading its weights takes longer than a fit."""
    from fewcal.features.extractors import get_extractor

    return get_extractor(NAME_EXTRACTOR)
