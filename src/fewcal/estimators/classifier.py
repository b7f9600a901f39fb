"""GDC for scikit-learn users: `Gaussianizer`, a transformer, and `GDCClassifier`."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import fields, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, cast
from warnings import catch_warnings, filterwarnings, warn

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data
from torch import Tensor

from fewcal._utils.arrays import as_features, check_finite, pick_device
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import squared_distances
from fewcal.domain_match import base_resemblance
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators.explain import Explanation, explain_calibration, no_bank_explanation
from fewcal.gaussianize import Gaussianization, GaussianizationFitter
from fewcal.heads.linear import LinearHead, class_means
from fewcal.methods.base import Head
from fewcal.methods.gdc import GDC, FallbackHead, QueryCalibratedHead
from fewcal.params import GDCParams
from fewcal.presets import get_preset
from fewcal.selftune import selftune

FIELDS = tuple(f.name for f in fields(GDCParams))
# Ridge of the plain discriminant, in units of D/(rows − classes). Chosen on real features: 3 was never more than 0.3
# points below nearest centroid and up to 1.2 above; Ledoit-Wolf-like shrinkage lost up to 5.
PLAIN_RIDGE = 3.0
# What a few rows cannot say: how far scores of its own class lead. With 8, mean confidence and accuracy are near each
# other at one shot on validation classes of CUB, Dogs and miniImageNet (60/58, 68/61, 59/52%); with 4 and 12 the log
# loss is higher on two of them and on all.
USUAL_LEAD = 8.0


# ---- what both estimators share -------------------------------------------------------------------------------------


def check_rows(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
    """scikit-learn's own validation of X, or of X and y, with one-line errors for what few-shot data gets wrong."""
    supervised = not isinstance(y, str)
    if supervised and y is not None:
        if (rows := _num_samples(X)) == 0:
            raise InputError("X has no rows; the support set needs at least one row of each class")
        if rows != (labels := _num_samples(y)):
            raise InputError(f"X has {rows} rows and y has {labels} labels; give exactly one label per row")
    try:
        out = validate_data(estimator, X, y, dtype=[np.float64, np.float32], ensure_all_finite=False, reset=reset)
    except ValueError as error:
        if "could not convert" in str(error):
            raise InputError(f"X holds values that are not numbers ({error}); pass a 2-D array of floats") from error
        raise
    check_finite(_tensor(out[0] if supervised else out), "X")
    return out


def _tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x if x.flags.writeable and x.dtype.isnative else x.astype(x.dtype.newbyteorder("=")))


def resolve_bank(bank: Any, device: torch.device) -> BaseBank:
    """A bank from what users give: a bank, a path, or base rows with their labels."""
    if isinstance(bank, str | os.PathLike):
        file = Path(bank).absolute()
        stat = file.stat() if file.is_file() else None
        bank = _load(file, stat and (stat.st_mtime_ns, stat.st_size))
    elif isinstance(bank, tuple) and len(bank) == 2:
        bank = BaseBank().fit(*bank)
    elif not isinstance(bank, BaseBank):
        raise InputError(
            f"bank={_short(bank)} is not a bank; use a BaseBank, a path to a saved one, a tuple (X, y) of base rows "
            "and labels, or None"
        )
    return _on_device(bank, device)


def _on_device(bank: BaseBank, device: torch.device) -> BaseBank:
    """The bank on `device`; a copy that had to be made is remembered, so that it is made once."""
    if device == bank.device:
        return bank
    return bank.memo.get(("device", str(device)), lambda: bank.to(device))


@lru_cache(maxsize=4)
def _load(path: Path, stamp: tuple[int, int] | None) -> BaseBank:
    """Clones in a grid search name the same file; they get the same bank, unless the file has changed."""
    return BaseBank.load(path)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}… ({type(value).__name__})"


def resolve_params(preset: Any, given: dict[str, Any]) -> GDCParams:
    """The preset's parameters with those that were given in their place."""
    if not isinstance(preset, str | os.PathLike | GDCParams):
        raise InputError(f"preset={_short(preset)} is not a preset; use a name, a preset file or GDCParams(...)")
    base = preset if isinstance(preset, GDCParams) else get_preset(preset)
    # Grids made with NumPy hold its scalars, which are not Python's.
    return base.with_changes(**{f: v.item() if isinstance(v, np.generic) else v for f, v in given.items()})


def capped(params: GDCParams, n_classes: int, *, quiet: bool, preset: Any) -> GDCParams:
    """k of a preset brought down to the number of base classes: a preset knows nothing of the bank."""
    if params.k <= n_classes:
        return params
    if not quiet:
        warn(
            f"preset {preset!r} asks for k={params.k} base classes and the bank has {n_classes}; k={n_classes} is used",
            FewcalWarning,
            stacklevel=3,
        )
    return params.with_changes(k=n_classes)


def seed_from(random_state: Any) -> int:
    """An integer seed from scikit-learn's `random_state`."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


# ---- Gaussianizer ---------------------------------------------------------------------------------------------------


class Gaussianizer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Gaussianize features: a power transform, then optional centring and L2 normalisation (eq. 1-3).

    Parameters
    ----------
    beta : float, default=0.5
        The power, one for all features; 1 leaves features as they are and 0 is the logarithm.
    kind : {"auto", "tukey", "yeo-johnson", "none"}, default="auto"
        "auto" takes Tukey's ladder if every feature seen in `fit` is ≥ 0, Yeo-Johnson otherwise.
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

    def fit(self, X: Any, y: Any = None) -> Gaussianizer:
        """Choose the transform and its mean from rows `X (R, D)`; y is ignored."""
        return self._update(X, first=True)

    def partial_fit(self, X: Any, y: Any = None) -> Gaussianizer:
        """Take in more rows; the result is that of one `fit` on all of them."""
        return self._update(X, first=not hasattr(self, "n_samples_seen_"))

    def _update(self, X: Any, first: bool) -> Gaussianizer:
        X = check_rows(self, X, reset=first)
        if first:
            self._fitter = GaussianizationFitter(self.beta, self.kind, self.center, self.l2, self.eps)
        self._fitter.update(_tensor(X))
        fitted = self._fitter.finish(torch.float64)
        self.kind_ = fitted.kind
        self.mean_ = None if fitted.mean is None else fitted.mean.numpy()
        self.n_samples_seen_ = self._fitter.rows
        return self

    def _map(self, dtype: torch.dtype) -> Gaussianization:
        mean = None if self.mean_ is None else torch.from_numpy(self.mean_).to(dtype)
        return Gaussianization(self.kind_, float(self.beta), float(self.eps), mean, bool(self.l2))

    def transform(self, X: Any) -> np.ndarray:
        """Map rows `X (R, D)`; float32 stays float32, everything else becomes float64."""
        check_is_fitted(self)
        x = _tensor(check_rows(self, X, reset=False))
        return self._map(x.dtype)(x).numpy().copy()

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Map transformed rows back; refused after L2 normalisation, which takes the lengths away."""
        check_is_fitted(self)
        x = _tensor(check_rows(self, X, reset=False))
        return self._map(x.dtype).inverse(x).numpy().copy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


# ---- GDCClassifier --------------------------------------------------------------------------------------------------


class GDCClassifier(ClassifierMixin, BaseEstimator):
    """Few-shot classification by distribution calibration, with the statistics of well-known base classes.

    Parameters
    ----------
    bank : BaseBank, path, tuple (X, y) or None, default=None
        The base classes: a bank, the path of a saved one, or base rows and labels. Spaces derived from a `BaseBank` are
        remembered in it and clones share it, so build it once for repeated fits; a tuple is turned into a bank at
        every `fit`. `None`: see Notes.
    preset : str, path or GDCParams, default="default"
        Where parameters come from that are not given here: a name (`fewcal.list_presets()`), a preset file as
        `fewcal tune` writes it, or "auto" to choose them for this bank from its base classes (`fewcal.selftune`).
    beta, kind, eps, center, l2, whiten, transform_base : default=None
        Gaussianization. This and every following parameter is that of `GDCParams`; `None` takes it from the preset.
    metric, delta, k, m, unit, unit_of, strength, shot_decay, trust, query_pull : default=None
        Neighbours and weights. A k of the preset is brought down to the number of base classes; one given here must
        not exceed it.
    cov, cov_weights, common_size, alpha1, alpha2_ratio, off_diagonal, psd : default=None
        Covariance and its shrinkage.
    n, n_per, head, C : default=None
        Samples and the classifier trained on them; `head` is "closed_form", "lbfgs", "sgd" or a scikit-learn
        classifier.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto". What is learned is kept on the CPU, so that it can be
        pickled and loaded anywhere.
    random_state : int, RandomState instance or None, default=0
        Seed of the sampled points and of SGD; the closed form draws none.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    params_ : GDCParams or None
        The parameters in force; None without a bank.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Notes
    -----
    Without base classes (`bank=None`) there is nothing to calibrate with. The classifier is then a linear discriminant
    on the features as they are, with equal priors and the pooled within-class covariance of the support S plus a ridge,
    S + (3·D/ν)·(tr S/D)·I, where ν is the number of rows less the number of classes. With one row per class ν = 0 and
    this is the nearest class mean; the more rows, the nearer to the full discriminant. Probabilities are tempered by
    leave-one-out. Parameters of GDC have no effect, and a warning says so. Put `Gaussianizer(l2=True)` before it in a
    pipeline for features of a neural network.

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

    def __init__(
        self,
        bank: BaseBank | str | os.PathLike[str] | tuple[Any, Any] | None = None,
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
        unit: float | bool | None = None,
        unit_of: str | None = None,
        strength: float | None = None,
        shot_decay: float | None = None,
        trust: float | str | None = None,
        query_pull: float | None = None,
        cov: str | None = None,
        cov_weights: str | None = None,
        common_size: int | None = None,
        alpha1: float | None = None,
        alpha2_ratio: float | None = None,
        off_diagonal: str | None = None,
        psd: str | None = None,
        n: int | None = None,
        n_per: str | None = None,
        head: Any = None,
        C: float | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.bank = bank
        self.preset = preset
        self.beta = beta
        self.kind = kind
        self.eps = eps
        self.center = center
        self.l2 = l2
        self.whiten = whiten
        self.transform_base = transform_base
        self.metric = metric
        self.delta = delta
        self.k = k
        self.m = m
        self.unit = unit
        self.unit_of = unit_of
        self.strength = strength
        self.shot_decay = shot_decay
        self.trust = trust
        self.query_pull = query_pull
        self.cov = cov
        self.cov_weights = cov_weights
        self.common_size = common_size
        self.alpha1 = alpha1
        self.alpha2_ratio = alpha2_ratio
        self.off_diagonal = off_diagonal
        self.psd = psd
        self.n = n
        self.n_per = n_per
        self.head = head
        self.C = C
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> GDCClassifier:
        """Learn the classes from support rows.

        Parameters
        ----------
        X : array-like of shape (S, D)
            Support rows: one or more for each class, in any numbers.
        y : array-like of shape (S,)
            Their classes.
        """
        X, y = check_rows(self, X, y, reset=True)
        with catch_warnings():
            # A class for every row or two is what few-shot means; scikit-learn would take it for a regression.
            filterwarnings("ignore", "The number of unique classes", UserWarning)
            try:
                check_classification_targets(y)
                self.classes_, codes = np.unique(y, return_inverse=True)
            except (TypeError, ValueError) as error:
                types = sorted({type(label).__name__ for label in np.ravel(y).tolist()})
                if len(types) == 1:
                    raise
                raise InputError(f"y mixes labels of several types ({', '.join(types)}); use one, e.g. str") from error
        if len(self.classes_) < 2:
            raise InputError(
                f"y has one class only, {self.classes_.tolist()[0]!r}; give support rows of at least two classes"
            )
        given = {f: v for f in FIELDS if (v := getattr(self, f)) is not None}
        automatic = isinstance(self.preset, str) and self.preset == "auto"
        params = resolve_params("default" if automatic else self.preset, given)
        device = pick_device(self.device)
        if self.bank is None:
            if given:
                warn(
                    f"bank=None: without base classes {', '.join(given)} have no effect; give a bank to calibrate",
                    FewcalWarning,
                    stacklevel=2,
                )
            self.params_, self._transform = None, Gaussianization("none")
            self._head: Head = plain_discriminant(X.astype(np.float64, copy=False), codes)
            self._explanation = no_bank_explanation()
            self._centroids: Tensor | None = None
            self._resemblance: Tensor | None = None
            return self
        bank = resolve_bank(self.bank, device)
        if automatic:
            shot = max(1, round(len(y) / len(self.classes_)))
            params = resolve_params(selftune(bank, shot=shot, way=len(self.classes_)).params, given)
        if "k" not in given and isinstance(self.preset, str):
            params = capped(params, len(bank), quiet=self.preset in ("default", "auto"), preset=self.preset)
        x = as_features(X, "X", dim=bank.dim, device=device)
        method = GDC(params)
        method.prepare(bank)
        with torch.no_grad():
            support = method.transform(x, "X")
            labels = torch.from_numpy(codes).to(device)
            random = TaskRandom(seed_from(self.random_state), device=device)
            shared: dict[Any, Any] = {}
            head = method.fit(support[None], labels[None], len(self.classes_), random, shared)
            self._explanation = explain_calibration(method, support, codes, self.classes_.tolist(), shared)
            self._centroids = class_means(support[None], labels[None], len(self.classes_))[0].cpu()
            self._resemblance = base_resemblance(self._centroids.to(device), method.bank).cpu()
        assert method._transform is not None
        self.params_, self._transform, self._head = params, method._transform.to("cpu"), _head_to(head, "cpu")
        return self

    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = check_rows(self, X, reset=False)
        device = pick_device(self.device)
        plain = self.params_ is None
        x = as_features(X, "X", device="cpu" if plain else device, dtype=torch.float64 if plain else torch.float32)
        with torch.no_grad():
            z = self._transform.to(x.device)(x, "X")
            out = _head_to(self._head, x.device).logits(z[None])[0]
        return out.double().cpu().numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of query rows `X (Q, D)`: `(Q, n_classes)`, or `(Q,)` for two classes, > 0 for `classes_[1]`."""
        scores = self._logits(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes for query rows `X (Q, D)`, `(Q, n_classes)`."""
        return cast(np.ndarray, softmax(self._logits(X), axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """The class of each query row `X (Q, D)`, `(Q,)`."""
        scores = self._logits(X)
        return cast(np.ndarray, self.classes_[scores.argmax(axis=1)])

    def other_class_share(self, X: Any) -> np.ndarray:
        """Share of base-class examples that look at least as much like the fitted classes as each query row, `(Q,)`.

        It is the p-value of "this row is none of these classes, but something like the base classes": rows below 0.05
        are nearer to a fitted class than 95% of base examples, so answering "none of these" to all others lets at most
        about 5% of such strangers through. It needs a bank.
        """
        check_is_fitted(self)
        if self._resemblance is None or self._centroids is None:
            raise InputError("'none of these' is judged against base classes, and there are none; give a bank")
        x = as_features(check_rows(self, X, reset=False), "X")
        with torch.no_grad():
            nearest = squared_distances(self._transform(x, "X"), self._centroids).amin(dim=1).contiguous()
        rank = torch.searchsorted(self._resemblance, nearest, right=True)
        return (rank.double() / len(self._resemblance)).numpy()

    def explain(self) -> Explanation:
        """Which base classes spoke for each support point and class, how much, and whether they can help."""
        check_is_fitted(self)
        return self._explanation


def _head_to(head: Head, device: torch.device | str) -> Head:
    """The head on `device`, and no more of the bank than it needs: base rows stay out of pickles."""
    if isinstance(head, LinearHead):
        return replace(head, weight=head.weight.to(device), bias=head.bias.to(device))
    if isinstance(head, FallbackHead):
        moved = {name: getattr(head, name).to(device) for name in ("strangers", "back")}
        return FallbackHead(_head_to(head.head, device), cast(LinearHead, _head_to(head.plain, device)), **moved)
    if isinstance(head, QueryCalibratedHead):
        method = copy(head.method)
        method.bank = _on_device(head.method.bank.detached(), torch.device(device))
        return QueryCalibratedHead(_head_to(head.head, device), method, head.strength.to(device))
    return head  # scikit-learn classifiers live on the CPU


def plain_discriminant(x: np.ndarray, codes: np.ndarray) -> LinearHead:
    """The classifier without base classes (see `GDCClassifier`, Notes), for rows `x (S, D)`.

    >>> head = plain_discriminant(np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 1]))
    >>> head.logits(torch.tensor([[[0.5], [4.0]]], dtype=torch.float64)).argmax(-1)
    tensor([[0, 1]])
    """
    shots = np.bincount(codes)
    origin = x.mean(axis=0)
    x = x - origin
    means = np.stack([x[codes == c].mean(axis=0) for c in range(len(shots))])
    residuals = (x - means[codes])[shots[codes] > 1]
    freedom = len(x) - len(shots)
    # tr S and the ridge follow from the residuals; below, S is only ever used through their singular vectors.
    trace = np.square(residuals).sum() / max(freedom, 1)
    if trace <= 1e-24 * max(np.square(x).mean(), 1e-300):
        weight = means  # one shot has no width: the spread of the class means stands in
        temperature = _usual_temperature(means, weight)
    else:
        _, singular, right = np.linalg.svd(residuals, full_matrices=False)
        ridge = PLAIN_RIDGE * trace / freedom
        gain = 1 / (np.square(singular) / freedom + ridge) - 1 / ridge
        precision_x = x / ridge + ((x @ right.T) * gain) @ right
        weight = np.stack([precision_x[codes == c].mean(axis=0) for c in range(len(shots))])
        scores = _leave_one_out(x, precision_x, means, weight, codes, shots)
        temperature = _temperature(scores, codes, shots, _usual_temperature(means, weight))
    weight = temperature * weight
    bias = -0.5 * (weight * means).sum(axis=1) - weight @ origin
    return LinearHead(torch.from_numpy(weight)[None], torch.from_numpy(bias)[None])


def _leave_one_out(
    x: np.ndarray, precision_x: np.ndarray, means: np.ndarray, weight: np.ndarray, codes: np.ndarray, shots: np.ndarray
) -> np.ndarray:
    """Scores of each row with its own class mean taken without it, `(S, N)`."""
    scores = x @ weight.T - 0.5 * (weight * means).sum(axis=1)
    left = np.maximum(shots[codes] - 1, 1)[:, None]
    own_mean = means[codes] + (means[codes] - x) / left
    own_weight = weight[codes] + (weight[codes] - precision_x) / left
    scores[np.arange(len(x)), codes] = (own_weight * (x - 0.5 * own_mean)).sum(axis=1)
    return scores


def _usual_temperature(means: np.ndarray, weight: np.ndarray) -> float:
    """The factor that puts a class mean ahead of the others by `USUAL_LEAD` on average, whatever the scale."""
    gaps = ((means - means.mean(axis=0)) * (weight - weight.mean(axis=0))).sum() / (len(means) - 1)
    return USUAL_LEAD / max(float(gaps), 1e-300)


def _temperature(scores: np.ndarray, codes: np.ndarray, shots: np.ndarray, usual: float) -> float:
    """The factor on the scores that makes the left-out rows most likely.

    Few rows say little. All answered rightly they would ask for certainty: so each counts for its class but for a
    share of 1/(rows + 2), as in the rule of succession, that is spread over all classes. Answered badly, as two shots
    often are with one left out, they would ask for a coin: so log t has the normal prior N(log usual, 1).
    """
    known = np.flatnonzero(shots[codes] > 1)
    scores, target = scores[known], codes[known]
    scores = scores - scores.max(axis=1, keepdims=True)
    doubt = 1 / (len(target) + 2)
    own = (1 - doubt) * scores[np.arange(len(target)), target] + doubt * scores.mean(axis=1)
    centre = np.log(usual)

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        return float((logsumexp(t * scores, axis=1) - t * own).sum() + 0.5 * (log_t - centre) ** 2)

    return float(np.exp(minimize_scalar(loss, bounds=(centre - 6, centre + 6), method="bounded").x))
