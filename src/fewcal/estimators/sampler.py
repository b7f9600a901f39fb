"""GDCSampler: over-sampling by distribution calibration, in the convention of imbalanced-learn.

    x̃ = transform(x)                    each row of the class to be grown is a support point
    z ~ N(x̃ + s·(μ' − x̃), Σ'ₛ / K)      calibrated mean and covariance (eq. 5 and 9), K rows in the class
    row = transform⁻¹(z)                back to the features as they were

Why Σ'ₛ/K: K rows scatter about their own mean with (K−1)/K of the class covariance on average, and the noise adds the
missing 1/K. A single row gets the whole covariance, and many rows get little more than repetition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from fewcal._utils.arrays import as_features, check_finite, pick_device
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration
from fewcal.covariance import CalibratedCovariance, shares, shrink_covariance
from fewcal.errors import InputError
from fewcal.estimators.inputs import cap_k, resolve_bank, resolve_params, seed_from
from fewcal.heads.base import TaskBatch
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams

if TYPE_CHECKING:
    from torch import Tensor

try:
    from imblearn.over_sampling.base import BaseOverSampler
    from imblearn.utils import check_target_type
except ImportError as error:
    raise ImportError("GDCSampler needs imbalanced-learn; pip install 'fewcal[imblearn]'") from error

# A grown class should spread as real classes do: the plain mean of the two nearest base covariances, as it is. α1 is
# for training a head: it adds the same noise to every feature, which ruins columns of small scale, and in the paper's
# thousands it would drown the rest.
OVERSAMPLING = GDCParams(
    beta=0.5, k=2, m=1.0, distance_scale=1.0, cov="independent", cov_weights="average", alpha1=0.0, alpha2_ratio=0.0
)
# Without a bank, classes with at least this share of the largest class's rows, and at least two rows, are base classes.
POPULATED = 0.1


class GDCSampler(BaseOverSampler):
    """Grow minority classes with points drawn from calibrated distributions; one row per class is enough.

    Parameters
    ----------
    sampling_strategy : float, str, dict or callable, default="auto"
        As in every over-sampler of imbalanced-learn; "auto" grows all classes but the largest to its size.
    bank : BaseBank, path, tuple (X, y) or None, default=None
        Base classes of the same features. `None`: the well-populated classes of the data itself, those with at least
        two rows and a tenth of the rows of the largest class.
    preset : str, GDCParams or None, default=None
        Parameters of GDC. `None` is a setting for over-sampling: β = 0.5 where all features are ≥ 0 and 1 otherwise,
        the mean of the covariances of the k = 2 nearest base classes, α1 = 0. With embeddings, whose features share one
        scale, and few base rows, a small α1 fills the directions they leave empty. Presets that normalise are refused,
        because points cannot be mapped back from there.
    shift : float or None, default=None
        How much of the way from a row to its calibrated mean the new points go, 0 to 1. `None` is 1 with a bank and 0
        without one: there the base classes are the rivals: their spread is borrowed, and their place is not.
    params : mapping or None, default=None
        Parameters of GDC by name that replace those of the preset, such as `{"k": 3, "alpha1": 1.0}`; see `GDCParams`.
    device : str, torch.device or None, default=None
        Where to compute: None for the CPU, "cuda", or "auto".
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    sampling_strategy_ : dict
        How many rows were made for each class.
    params_ : GDCParams
        The parameters in force.
    base_classes_ : list
        Labels of the base classes.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Defined only for input with column names.

    Notes
    -----
    Features that are all ≥ 0 stay so. β must lie in [0, 2], where the power transforms have an inverse everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((41, 4)), np.repeat([0, 1, 2], [20, 20, 1])
    >>> X_new, y_new = GDCSampler(random_state=0).fit_resample(X, y)
    >>> np.bincount(y_new)
    array([20, 20, 20])
    """

    def __init__(
        self,
        *,
        sampling_strategy: object = "auto",
        bank: BaseBank | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | None = None,
        preset: str | GDCParams | None = None,
        params: Mapping[str, object] | None = None,
        shift: float | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(sampling_strategy=sampling_strategy)
        self.bank = bank
        self.preset = preset
        self.params = params
        self.shift = shift
        self.device = device
        self.random_state = random_state

    def _check_X_y(self, X: Any, y: Any, accept_sparse: object = None) -> tuple[np.ndarray, np.ndarray, bool]:
        y, binarize_y = check_target_type(y, indicate_one_vs_all=True)
        types, sparse = [np.float64, np.float32], ["csr", "csc"]
        X, y = validate_data(self, X, y, dtype=types, accept_sparse=sparse, ensure_all_finite=False)
        check_finite(torch.from_numpy(X.toarray() if issparse(X) else np.array(X)), "X")
        return X, y, binarize_y

    def _fit_resample(self, X: Any, y: np.ndarray, **params: object) -> tuple[Any, np.ndarray]:
        if not issparse(X):
            return self._resample(X, y)
        rows, labels = self._resample(X.toarray(), y)  # new points are dense; only the container is kept
        return type(X)(rows), labels

    def _resample(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = {label: count for label, count in self.sampling_strategy_.items() if count > 0}
        seed = seed_from(self.random_state)
        device = pick_device(self.device)
        own = self._own_params(X)
        shift = self._own_shift()
        if not wanted:
            self.params_, self.base_classes_ = own, []
            return X.copy(), y.copy()
        # Tables have columns of any scale and the engine one for all; a bank's features are taken as they are.
        scale = _column_scale(X) if self.bank is None else np.ones(X.shape[1])
        scaled = X / scale
        bank = self._populated(scaled, y, device) if self.bank is None else resolve_bank(self.bank, device)
        self.params_, self.base_classes_ = self._fitting(own, bank, shift), list(bank.classes)
        method = GDC(self.params_)
        method.prepare(bank)
        new_rows, new_labels = [X], [y]
        for stream, (label, count) in enumerate(wanted.items()):
            rows = as_features(scaled[y == label], "X", dim=bank.dim, device=device, dtype=torch.float64)
            made = _grow(method, rows, int(count), shift, TaskRandom(seed, [stream], device)).cpu().numpy() * scale
            if X.min() >= 0:
                made = np.maximum(made, 0)
            new_rows.append(made.astype(X.dtype))
            new_labels.append(np.full(int(count), label, dtype=y.dtype))
        return np.concatenate(new_rows), np.concatenate(new_labels)

    def _own_params(self, X: np.ndarray) -> GDCParams:
        given = self._given()
        if self.preset is None and X.min() < 0:
            # Yeo-Johnson at β ≠ 1 stretches one sign and squeezes the other, and a borrowed spread with it.
            given.setdefault("beta", 1.0)
        params = resolve_params(OVERSAMPLING if self.preset is None else self.preset, given)
        if params.l2 or not params.transform_base:
            what = ["l2=True"] * params.l2 + ["transform_base=False"] * (not params.transform_base)
            raise InputError(
                f"preset={self.preset!r} has {', '.join(what)}, and points cannot be mapped back to features from "
                "there; use preset=None or GDCParams without it"
            )
        if isinstance(params.beta, str) or not 0 <= params.beta <= 2:
            raise InputError(f"beta={params.beta!r} has no inverse for every sampled point; use a power from 0 to 2")
        return params

    def _given(self) -> dict[str, object]:
        if self.params is not None and not isinstance(self.params, Mapping):
            raise InputError(f"params={self.params!r} must be a mapping of parameters of GDC by name, or None")
        return dict(self.params or {})

    def _own_shift(self) -> float:
        if self.shift is None:
            return 0.0 if self.bank is None else 1.0
        if isinstance(self.shift, bool) or not isinstance(self.shift, int | float) or not 0 <= self.shift <= 1:
            raise InputError(f"shift={self.shift!r} is out of range; use a number from 0 to 1, or None")
        return float(self.shift)

    def _fitting(self, params: GDCParams, bank: BaseBank, shift: float) -> GDCParams:
        """Parameters that this bank allows."""
        given = self._given()
        if "k" not in given:
            params = cap_k(params, bank, quiet=self.preset is None)
        weightless = shift == 0 and (params.cov == "pooled" or params.cov_weights == "average")
        if len(bank) == 1 and weightless and "distance_scale" not in given:
            return params.with_changes(distance_scale=False)  # one class has no scale, and no weight is used here
        return params

    def _populated(self, X: np.ndarray, y: np.ndarray, device: torch.device) -> BaseBank:
        labels, counts = np.unique(y, return_counts=True)
        enough = labels[counts >= max(2, POPULATED * counts.max())]
        if not len(enough):
            raise InputError(
                "no class has two rows, so the data has no base classes to take a covariance from; give a bank"
            )
        keep = np.isin(y, enough)
        return BaseBank().fit(X[keep], y[keep], device=device)


def _column_scale(X: np.ndarray) -> np.ndarray:
    """Standard deviation of each column, 1 for a constant one."""
    sd = X.std(axis=0, dtype=np.float64)
    return np.where(sd > 0, sd, 1.0)


def _grow(method: GDC, rows: Tensor, count: int, shift: float, random: TaskRandom) -> Tensor:
    """`count` new points for the class of `rows (K, D)`, in raw features; its rows take turns, in random order."""
    transform = method.bank.transform
    assert transform is not None
    with torch.no_grad():
        support = transform(rows if transform.shift is not None else rows.float(), "X")
        labels = torch.zeros(1, len(rows), dtype=torch.int64, device=rows.device)
        found = method.calibration(TaskBatch(support[None], labels, 1, random))
        centre = support + shift * (found.mean[0] - support)
        turns = random.permutations(len(rows), -(-count // len(rows)))[0].flatten()[:count]
        noise = torch.empty(count, rows.shape[1], device=rows.device)
        kind = _kinds_of_covariance(method, found)[turns]
        for one in kind.unique().tolist():
            at = (kind == one).nonzero().flatten()
            noise[at] = _noise(method, found, int(turns[at[0]]), len(at), random)
        return transform.inverse((centre[turns] + noise / len(rows) ** 0.5).double())


def _kinds_of_covariance(method: GDC, found: Calibration) -> Tensor:
    """Which points share Σ'ₛ, `(K,)`: their noise is drawn at once."""
    p = method.params
    if p.cov == "pooled":
        return torch.zeros(found.index.shape[1], dtype=torch.int64, device=found.index.device)
    index, order = found.index[0].sort(dim=-1)
    c = shares(found, p.cov_weights)[0].gather(-1, order)
    return torch.unique(torch.cat([index.double(), c.double()], dim=-1), dim=0, return_inverse=True)[1]


def _noise(method: GDC, found: Calibration, point: int, count: int, random: TaskRandom) -> Tensor:
    """`count` draws from N(0, Σ'ₛ) of one support point, `(count, D)`."""
    p = method.params
    c = shares(found, p.cov_weights)
    index, c = found.index[:, point : point + 1], c[:, point : point + 1]
    covariance = CalibratedCovariance(method.bank, p.cov, index, c, p.common_size)
    shrunk = shrink_covariance(
        covariance, p.alpha1, p.alpha2_ratio, off_diagonal=p.off_diagonal, psd=p.psd, constant=p.constant
    )
    zero = torch.zeros_like(found.mean[:, point : point + 1])
    return shrunk.gaussian(zero).sample(count, random)[0, 0]
