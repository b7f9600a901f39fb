r"""Calibration: a novel class as a weighted random variable of its nearest base classes (eq. 4-8).

    d_i  = ‖x̃ − μ_i‖²  (or another distance)      eq. 6, appendix A
    S_k  = the k nearest base classes              eq. 7
    w_i  = 1 / (1 + d_i^m)                         eq. 8
    μ'   = (x̃ + Σ w_i μ_i) / (1 + Σ w_i)           eq. 5

`covariance.py` turns the same weights into Σ' and its shrunk form (eq. 5 and 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.errors import InputError

Metric = Literal["sqeuclidean", "euclidean", "mahalanobis", "delta"]
UNITS = ("bank", "one")
METRICS = ("sqeuclidean", "euclidean", "mahalanobis", "delta")

# Classes that stand for all in a larger bank, where a fact of the bank takes all distances between them.
_LOOKED_AT = 2048
# From this many times k classes on, the means of the k nearest are gathered.
_MANY = 32
# Ridge of the class covariances under Mahalanobis, as a share of their mean variance: with fewer rows than features
# they have no inverse.
MAHALANOBIS_RIDGE = 0.1


@dataclass(frozen=True, eq=False)
class Calibration:
    """What calibration found for each support point, batch shape `B`.

    Attributes
    ----------
    index : Tensor (*B, k) int64
        Nearest base classes, nearest first.
    distances : Tensor (*B, k)
        Their distances d_i, in the unit asked for.
    weights : Tensor (*B, k)
        w_i of eq. 8.
    mean : Tensor (*B, D)
        The calibrated mean μ' (eq. 5).
    """

    index: Tensor
    distances: Tensor
    weights: Tensor
    mean: Tensor

    @property
    def normalised(self) -> Tensor:
        """w_i / (1 + Σw), the share of each base class in X' (what the paper's tables list)."""
        return self.weights / (1 + self.weights.sum(dim=-1, keepdim=True))


def squared_distances(x: Tensor, means: Tensor) -> Tensor:
    """‖x − μ_i‖² for `x (*B, D)` and `means (C, D)`, `(*B, C)`.

    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[25.,  1.]])
    """
    # Distances do not change when both sides are moved; around the mean of means the expansion cancels least.
    origin = means.mean(dim=0)
    means = means - origin
    return _expanded(x - origin, means, torch.linalg.vecdot(means, means))


def _expanded(x: Tensor, means: Tensor, squares: Tensor) -> Tensor:
    """‖x‖² − 2x·μ + ‖μ‖²; the product with the means is all that grows with C and D."""
    out = (x @ means.T).mul_(-2)
    return out.add_(torch.linalg.vecdot(x, x)[..., None]).add_(squares).clamp_(min=0)


def _from_bank(x: Tensor, bank: BaseBank, delta: float = 1.0) -> Tensor:
    """‖x − δμ_i‖² with what the bank remembers of its means."""
    if bank.is_whitened:  # unit vectors, where nothing cancels
        squares = bank.memo.get("squares", lambda: torch.linalg.vecdot(bank.means, bank.means))
        return _expanded(x, bank.means, squares) if delta == 1 else _expanded(x / delta, bank.means, squares) * delta**2
    origin, centred, squares = bank.centred_means()
    if delta == 1:
        return _expanded(x - origin, centred, squares)
    # ‖x − δμ‖ = δ‖x/δ − μ‖
    return _expanded(x / delta - origin, centred, squares).mul_(delta**2)


def mahalanobis_log(x: Tensor, bank: BaseBank, ridge: float = MAHALANOBIS_RIDGE) -> Tensor:
    r"""ln|Σ_i| + (x̃ − μ_i)ᵀ Σ_i⁻¹ (x̃ − μ_i) for each base class (appendix A), `(*B, C)`.

    Each Σ_i gets a ridge of `ridge` times its mean variance. The log-determinants are taken relative to the smallest
    one, which keeps the order and makes every d_i ≥ 0, as d_i^m needs.
    """

    def make() -> tuple[Tensor, Tensor, Tensor]:
        factors = bank.class_factors()  # (C, P, D)
        _, p, d = factors.shape
        tau = (ridge * factors.square().sum(dim=(1, 2)) / d).clamp(min=1e-12)
        if p <= d:
            values, vectors = torch.linalg.eigh((factors @ factors.mT).double())
            directions = (vectors.mT @ factors.double()) / values.clamp(min=1e-30).sqrt()[..., None]
        else:
            values, vectors = torch.linalg.eigh((factors.mT @ factors).double())
            directions = vectors.mT
        values = values.clamp(min=0)
        keep = values > 1e-10 * values.amax(dim=-1, keepdim=True)
        t = tau.double()[:, None]
        logdet = (d * t.log()).squeeze(1) + torch.where(keep, (values / t).log1p(), 0.0).sum(dim=-1)
        # Σ⁻¹ = (I − V diag(e/(e+τ)) Vᵀ)/τ: what is left of the length after the known directions.
        gain = torch.where(keep, values / (values + t), 0.0).sqrt()
        scaled = torch.where(keep[..., None], directions, 0.0) * gain[..., None]
        return scaled.float(), tau, (logdet - logdet.min()).float()

    scaled, tau, logdet = bank.memo.get(("mahalanobis", ridge), make)
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty(len(flat), len(bank), dtype=x.dtype, device=x.device)
    for i in range(len(bank)):
        z = flat - bank.means[i]
        quad = z.square().sum(dim=-1) - (z @ scaled[i].T).square().sum(dim=-1)
        out[:, i] = logdet[i] + quad.clamp(min=0) / tau[i]
    return out.reshape(*x.shape[:-1], len(bank))


def distances(x: Tensor, bank: BaseBank, metric: str = "sqeuclidean", *, delta: float = 1.0) -> Tensor:
    """Distance of points `x (*B, D)` from every base class, `(*B, C)` (eq. 6, appendix A and A.1).

    `sqeuclidean` is the paper's d_i, `euclidean` its root, `mahalanobis` has the log-determinant, `delta` is the
    squared δ-distance ‖x̃ − δμ_i‖².
    """
    if metric == "sqeuclidean":
        return _from_bank(x, bank)
    if metric == "euclidean":
        return _from_bank(x, bank).sqrt_()
    if metric == "delta":
        return _from_bank(x, bank, delta)
    if metric == "mahalanobis":
        return mahalanobis_log(x, bank)
    raise InputError(f"metric={metric!r} is unknown; use one of {', '.join(METRICS)}")


def unit_distance(bank: BaseBank, metric: str = "sqeuclidean", *, delta: float = 1.0) -> float:
    """The bank's own unit: the median over base classes of the distance to the nearest other base class.

    It has the scale of the feature extractor, so distances divided by it do not. In a bank of more than `_LOOKED_AT`
    classes so many of them, evenly spaced, speak for all.
    """
    if len(bank) < 2:
        raise InputError("unit needs at least two base classes; use unit=False")

    def make() -> float:
        nearest = []
        for some in spaced_indices(len(bank), _LOOKED_AT, bank.device).split(512):
            block = distances(bank.means[some], bank, metric, delta=delta)
            block[torch.arange(len(some), device=block.device), some] = torch.inf
            nearest.append(block.amin(dim=1))
        return max(float(torch.cat(nearest).median()), 1e-12)

    return bank.memo.get(("unit", metric, delta), make)


def spaced_indices(size: int, most: int, device: torch.device | str = "cpu") -> Tensor:
    """All of `0..size-1`, or `most` of them, evenly spaced.

    >>> spaced_indices(10, 4).tolist(), spaced_indices(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return torch.linspace(0, size - 1, min(size, most), dtype=torch.float64).long().to(device)


def uses_gather(bank: BaseBank, k: int) -> bool:
    """Whether the k nearest means are fetched one by one, rather than all means multiplied by mostly zero weights."""
    return len(bank) > _MANY * k


def scatter_dense(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Values `(*B, k)` at their places `index (*B, k)` among `size`, zero elsewhere, `(*B, size)`.

    >>> scatter_dense(torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.25]]), 4).tolist()
    [[0.25, 0.0, 0.5, 0.0]]
    """
    return values.new_zeros(*values.shape[:-1], size).scatter_(-1, index, values)


def weights_from_distances(d: Tensor, m: float) -> Tensor:
    """w = 1/(1 + d^m) (eq. 8): 1 on top of the base class, falling with distance, faster for larger m.

    >>> weights_from_distances(torch.tensor([0.0, 1.0, 3.0]), m=2)
    tensor([1.0000, 0.5000, 0.1000])
    """
    if not (m >= 0 and math.isfinite(m)):
        raise InputError(f"m={m!r} must be a finite number ≥ 0; it is the power of the distance in the weights")
    return 1 / (1 + d**m)


def calibrate(
    x: Tensor,
    bank: BaseBank,
    *,
    k: int = 2,
    m: float = 1.0,
    metric: str = "sqeuclidean",
    delta: float = 1.0,
    unit: float | bool = False,
    unit_of: str = "bank",
    strength: float | Tensor = 1.0,
    equal: bool = False,
    move: bool = True,
) -> Calibration:
    """Calibrate support points `x (*B, D)` that live in the bank's space (eq. 4-8).

    Parameters
    ----------
    x : Tensor (*B, D)
    bank : BaseBank
    k : int
        Neighbours, 1 to C.
    m : float
        Power of the distance in the weights.
    metric, delta
        See `distances`.
    unit : float or False
        Divide distances by `unit` × `unit_distance(bank)`, so that weights do not depend on the features' scale.
    unit_of : {"bank", "one"}
        With "one" they are divided by `unit` itself, for spaces that have a scale of their own (unit vectors).
    strength : float or Tensor (*B)
        Multiplies every weight; 1 is the paper's, 0 leaves x̃ where it is.
    equal : bool
        Weigh every neighbour 1, as DC does.
    move : bool
        Without it the mean is left out (x itself stands there), for callers that only want neighbours and weights.

    Examples
    --------
    >>> import numpy as np
    >>> bank = BaseBank().fit(np.array([[0.0], [2.0], [9.0], [11.0]]), ["near", "near", "far", "far"])
    >>> c = calibrate(torch.tensor([[0.0]]), bank, k=1, m=1)
    >>> c.distances.tolist(), c.weights.tolist(), c.mean.tolist()
    ([[1.0]], [[0.5]], [[0.3333333432674408]])
    """
    if not isinstance(k, Real) or isinstance(k, bool) or not 1 <= k <= len(bank) or int(k) != k:
        raise InputError(f"k={k!r} must be an integer from 1 to the number of base classes, {len(bank)}")
    if x.shape[-1] != bank.dim:
        raise InputError(
            f"support has {x.shape[-1]} features, but the bank has {bank.dim}; use the same extractor for both"
        )
    every = distances(x, bank, metric, delta=delta)
    if unit is not False:
        if not unit > 0:
            raise InputError(f"unit={unit!r} must be > 0, or False for distances as they are")
        if unit_of not in UNITS:
            raise InputError(f"unit_of={unit_of!r} is unknown; use one of {', '.join(UNITS)}")
        every /= float(unit) * (unit_distance(bank, metric, delta=delta) if unit_of == "bank" else 1.0)
    nearest, index = torch.topk(every, int(k), dim=-1, largest=False)
    weights = torch.ones_like(nearest) if equal else weights_from_distances(nearest, m)
    weights = weights * (strength[..., None] if isinstance(strength, Tensor) else strength)
    if not move:
        return Calibration(index, nearest, weights, x)
    if uses_gather(bank, k):
        pull = (weights[..., None, :] @ bank.means[index]).squeeze(-2)
    else:  # a product with all of the few means instead of a gather of most
        pull = scatter_dense(index, weights, len(bank)) @ bank.means
    mean = (x + pull) / (1 + weights.sum(dim=-1, keepdim=True))
    return Calibration(index, nearest, weights, mean)


@dataclass(frozen=True, eq=False)
class Calibrator:
    """Calibration (eq. 4-8) with its settings: see `calibrate` for what they mean."""

    bank: BaseBank
    k: int = 2
    m: float = 1.0
    metric: str = "sqeuclidean"
    delta: float = 1.0
    distance_scale: float | bool = False
    distance_scale_of: str = "bank"

    def calibrate(self, x: Tensor, strength: float | Tensor = 1.0, *, move: bool = True) -> Calibration:
        """Neighbours, weights and calibrated means of points `x (*B, D)`."""
        return calibrate(
            x,
            self.bank,
            k=self.k,
            m=self.m,
            metric=self.metric,
            delta=self.delta,
            unit=self.distance_scale,
            unit_of=self.distance_scale_of,
            strength=strength,
            move=move,
        )

    def dense_weights(self, x: Tensor) -> Tensor:
        """w of every base class (eq. 8), 0 for all but the k nearest, for `x (*B, D)`: `(*B, C)`."""
        found = self.calibrate(x, torch.ones_like(x[..., 0]), move=False)
        return scatter_dense(found.index, found.weights, len(self.bank))

    def mean(self, x: Tensor, weights: Tensor) -> Tensor:
        """μ' (eq. 5) of `x (*B, D)` from dense weights `(*B, C)`."""
        return (x + weights @ self.bank.means) / (1 + weights.sum(dim=-1, keepdim=True))

    def to(self, device: str | torch.device) -> Calibrator:
        """The same on `device`, with the bank detached from the one it was made from: base rows stay behind."""
        bank = self.bank.on(device).detached()
        return self if bank is self.bank else replace(self, bank=bank)
