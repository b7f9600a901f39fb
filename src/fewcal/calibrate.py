r"""Calibration: a novel class as a weighted random variable of its nearest base classes (eq. 4-8).

    d_i  = ‖x̃ − μ_i‖²  (or another distance)      eq. 6, appendix A
    S_k  = the k nearest base classes              eq. 7
    w_i  = 1 / (1 + d_i^m)                         eq. 8
    μ'   = (x̃ + Σ w_i μ_i) / (1 + Σ w_i)           eq. 5

`Calibrator` does all four. `fewcal.covariance` turns the same weights into Σ' and its shrunk form (eq. 5 and 9). A new
distance is a function with `@register_metric` here; parameters, command line and reports read `METRICS`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fewcal._utils.threads import single_thread
from fewcal.bank import BaseBank
from fewcal.bank.core import even_steps
from fewcal.errors import FewcalWarning, InputError

DISTANCE_SCALES = ("bank", "one")
# Ridge of the class covariances under Mahalanobis, as a share of their mean variance: with fewer rows than features
# they have no inverse.
MAHALANOBIS_RIDGE = 0.1

# Classes whose distances to all others give the scale of a bank, at most.
SCALE_CLASSES = 2048
# From this many times k classes on, the means of the k nearest are gathered.
GATHER_RATIO = 32


# ---- distances (eq. 6, appendix A) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricOptions:
    """Parameters of some distances.

    Attributes
    ----------
    delta : float
        δ of metric `delta`.
    mahalanobis_ridge : float
        Added to each class covariance, as a share of its mean variance; 0 is eq. 13 as printed.
    mahalanobis_shift : bool
        Whether log-determinants are taken relative to the smallest one, which keeps the order and makes every d_i ≥ 0,
        as d_i^m needs; False is eq. 13 as printed.
    """

    delta: float = 1.0
    mahalanobis_ridge: float = MAHALANOBIS_RIDGE
    mahalanobis_shift: bool = True


DistanceFunction: TypeAlias = "Callable[[Tensor, BaseBank, MetricOptions], Tensor]"


@dataclass(frozen=True)
class Metric:
    """A distance: its name, what it is in words, and the function of `x (*B, D)`, bank and options, `(*B, C)`."""

    name: str
    words: str
    function: DistanceFunction


METRICS: dict[str, Metric] = {}


def register_metric(name: str, words: str) -> Callable[[DistanceFunction], DistanceFunction]:
    """Register a function of points, bank and options as a distance; `words` may name options in braces."""

    def register(function: DistanceFunction) -> DistanceFunction:
        METRICS[name] = Metric(name, words, function)
        return function

    return register


def distances(x: Tensor, bank: BaseBank, metric: str = "sqeuclidean", options: MetricOptions | None = None) -> Tensor:
    """Distance of points `x (*B, D)` from every base class, `(*B, C)`, by one of `METRICS`."""
    if metric not in METRICS:
        raise InputError(f"metric={metric!r} is unknown; use one of {', '.join(METRICS)}")
    return METRICS[metric].function(x, bank, options or MetricOptions())


@register_metric("sqeuclidean", "squared Euclidean, d^m")
def sqeuclidean(x: Tensor, bank: BaseBank, options: MetricOptions) -> Tensor:
    """The paper's d_i = ‖x̃ − μ_i‖²."""
    return _from_bank(x, bank)


@register_metric("euclidean", "plain Euclidean, d^m")
def euclidean(x: Tensor, bank: BaseBank, options: MetricOptions) -> Tensor:
    """Its root, ‖x̃ − μ_i‖."""
    return _from_bank(x, bank).sqrt_()


@register_metric("mahalanobis", "Mahalanobis with log-determinant, ridge {mahalanobis_ridge:g}{shift}")
def mahalanobis(x: Tensor, bank: BaseBank, options: MetricOptions) -> Tensor:
    r"""ln|Σ_i| + (x̃ − μ_i)ᵀ Σ_i⁻¹ (x̃ − μ_i) (eq. 13, appendix A), each Σ_i with its ridge."""
    ridge = options.mahalanobis_ridge
    if not (ridge >= 0 and math.isfinite(ridge)):
        raise InputError(f"mahalanobis_ridge={ridge!r} must be a finite number ≥ 0; it is a share of the mean variance")
    inverse = bank.memo.get(("mahalanobis", ridge), lambda: _inverse_covariances(bank, ridge))
    logdet = inverse.logdet - inverse.logdet.min() if options.mahalanobis_shift else inverse.logdet
    flat = x.reshape(-1, x.shape[-1]).double()
    out = torch.empty(len(flat), len(bank), dtype=torch.float64, device=x.device)
    for i in range(len(bank)):
        z = flat - bank.means[i].double()
        quad = (z @ inverse.directions[i].T).square().sum(dim=-1)
        if ridge:
            quad = (z.square().sum(dim=-1) - quad).clamp(min=0) / inverse.tau[i]
        out[:, i] = logdet[i] + quad
    return out.reshape(*x.shape[:-1], len(bank)).to(x.dtype)


@register_metric("delta", "squared δ-distance, δ={delta:g}")
def delta_distance(x: Tensor, bank: BaseBank, options: MetricOptions) -> Tensor:
    """The squared δ-distance ‖x̃ − δμ_i‖² (appendix A.1)."""
    return _from_bank(x, bank, options.delta)


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
    """‖x − δμ_i‖² with the centred means of the bank."""
    origin, centred, squares = bank.centred_means()
    if delta == 1:
        return _expanded(x - origin, centred, squares)
    # ‖x − δμ‖ = δ‖x/δ − μ‖
    return _expanded(x / delta - origin, centred, squares).mul_(delta**2)


class _Inverse(NamedTuple):
    """Σ_i⁻¹ of each class in float64. With a ridge it is (I − VᵀV)/τ, without one VᵀV, V the rows of `directions`."""

    directions: Tensor  # (C, P, D)
    tau: Tensor  # (C,)
    logdet: Tensor  # (C,) float64


@single_thread()
def _inverse_covariances(bank: BaseBank, ridge: float) -> _Inverse:
    # Products in float64: with a condition number of 10⁶ those in float32 leave two digits of Σ⁻¹.
    factors = bank.class_factors().double()  # (C, P, D)
    _, p, d = factors.shape
    tau = (ridge * factors.square().sum(dim=(1, 2)) / d).clamp(min=1e-12)
    if p <= d:
        values, vectors = torch.linalg.eigh(factors @ factors.mT)
        directions = (vectors.mT @ factors) / values.clamp(min=1e-30).sqrt()[..., None]
    else:
        values, vectors = torch.linalg.eigh(factors.mT @ factors)
        directions = vectors.mT
    values = values.clamp(min=0)
    keep = values > 1e-10 * values.amax(dim=-1, keepdim=True)
    if ridge == 0:
        singular = keep.sum(dim=-1) < d
        if bool(singular.any()):
            first = bank.classes[int(singular.nonzero()[0])]
            raise InputError(
                f"mahalanobis_ridge=0 needs invertible class covariances, and {int(singular.sum())} of {len(bank)} "
                f"have no inverse ({first!r} first): a class needs more rows than its {d} features; use a ridge > 0"
            )
        return _Inverse(directions / values.sqrt()[..., None], tau, values.log().sum(dim=-1))
    t = tau.double()[:, None]
    logdet = (d * t.log()).squeeze(1) + torch.where(keep, (values / t).log1p(), 0.0).sum(dim=-1)
    # Σ⁻¹ = (I − V diag(e/(e+τ)) Vᵀ)/τ: what is left of the length after these directions.
    gain = torch.where(keep, values / (values + t), 0.0).sqrt()
    return _Inverse(torch.where(keep[..., None], directions, 0.0) * gain[..., None], tau, logdet)


def nearest_class_distance(bank: BaseBank, metric: str = "sqeuclidean", options: MetricOptions | None = None) -> float:
    """The bank's own scale: the median over base classes of the distance to the nearest other base class.

    It has the scale of the feature extractor, so distances divided by it do not. A bank of more than `SCALE_CLASSES`
    classes is represented by so many of them at even steps.
    """
    if len(bank) < 2:
        raise InputError("distance_scale needs at least two base classes; use distance_scale=False")

    def make() -> float:
        nearest = []
        chosen = torch.tensor(even_steps(len(bank), SCALE_CLASSES), device=bank.device)
        for some in chosen.split(512):
            block = distances(bank.means[some], bank, metric, options)
            block[torch.arange(len(some), device=block.device), some] = torch.inf
            nearest.append(block.amin(dim=1))
        median = float(torch.cat(nearest).median())
        if median < 0:
            raise InputError(
                f"distance_scale: the median distance between base classes is {median:.4g}, and no scale is negative; "
                "use mahalanobis_shift=True or distance_scale=False"
            )
        return max(median, 1e-12)

    return bank.memo.get(("nearest class", metric, options or MetricOptions()), make)


# ---- neighbours, weights and mean (eq. 5, 7, 8) ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """The calibration of each support point, batch shape `B`.

    Attributes
    ----------
    index : Tensor (*B, k) int64
        Nearest base classes, nearest first.
    distances : Tensor (*B, k)
        Their distances d_i, in units of the scale.
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


@dataclass(frozen=True, eq=False)
class Calibrator:
    """Neighbours, weights and calibrated means (eq. 4-8) of points that live in the bank's space.

    Attributes
    ----------
    bank : BaseBank
    k : int
        Neighbours, 1 to C.
    m : float
        Power of the distance in the weights.
    metric : str
        One of `METRICS`.
    delta : float
        δ of metric `delta`.
    distance_scale : float or False
        Divide distances by this many times `nearest_class_distance(bank)`, so that weights do not depend on the
        features' scale.
    distance_scale_of : {"bank", "one"}
        With "one" they are divided by `distance_scale` itself, for spaces with a scale of their own (unit vectors).
    equal : bool
        Weigh every neighbour 1, as DC does.
    mahalanobis_ridge, mahalanobis_shift : float, bool
        See `MetricOptions`.

    Examples
    --------
    >>> import numpy as np
    >>> bank = BaseBank().fit(np.array([[0.0], [2.0], [9.0], [11.0]]), ["near", "near", "far", "far"])
    >>> c = Calibrator(bank, k=1, m=1).calibrate(torch.tensor([[0.0]]))
    >>> c.distances.tolist(), c.weights.tolist(), c.mean.tolist()
    ([[1.0]], [[0.5]], [[0.3333333432674408]])
    """

    bank: BaseBank
    k: int = 2
    m: float = 1.0
    metric: str = "sqeuclidean"
    delta: float = 1.0
    distance_scale: float | bool = False
    distance_scale_of: str = "bank"
    equal: bool = False
    mahalanobis_ridge: float = MAHALANOBIS_RIDGE
    mahalanobis_shift: bool = True

    def __post_init__(self) -> None:
        k, scale = self.k, self.distance_scale
        if not isinstance(k, Real) or isinstance(k, bool) or not 1 <= k <= len(self.bank) or int(k) != k:
            raise InputError(f"k={k!r} must be an integer from 1 to the number of base classes, {len(self.bank)}")
        if scale is not False and not scale > 0:
            raise InputError(f"distance_scale={scale!r} must be > 0, or False for distances as they are")
        if self.distance_scale_of not in DISTANCE_SCALES:
            raise InputError(
                f"distance_scale_of={self.distance_scale_of!r} is unknown; use one of {', '.join(DISTANCE_SCALES)}"
            )

    def distances(self, x: Tensor) -> Tensor:
        """d of every base class (eq. 6), in units of the scale, for `x (*B, D)`: `(*B, C)`."""
        if x.shape[-1] != self.bank.dim:
            raise InputError(
                f"support has {x.shape[-1]} features, but the bank has {self.bank.dim}; use the same extractor for both"
            )
        options = MetricOptions(self.delta, self.mahalanobis_ridge, self.mahalanobis_shift)
        every = distances(x, self.bank, self.metric, options)
        if self.distance_scale is not False:
            of_bank = self.distance_scale_of == "bank"
            scale = nearest_class_distance(self.bank, self.metric, options) if of_bank else 1.0
            every /= float(self.distance_scale) * scale
        return every

    def neighbours(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Distances and numbers of the k nearest base classes (eq. 7), nearest first, each `(*B, k)`."""
        nearest, index = torch.topk(self.distances(x), int(self.k), dim=-1, largest=False)
        return nearest, index

    def weights(self, nearest: Tensor) -> Tensor:
        """w of neighbours at the given distances (eq. 8)."""
        if self.equal:
            return torch.ones_like(nearest)
        if self.metric == "mahalanobis" and not self.mahalanobis_shift:
            _check_signs(nearest, self.m)
        return weights_from_distances(nearest, self.m)

    def mean(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """μ' (eq. 5) of `x (*B, D)` from weights `(*B, k)` of the base classes at `index (*B, k)`."""
        means = self.bank.means
        if uses_gather(self.bank, self.k):
            pull = (weights[..., None, :] @ means[index]).squeeze(-2)
        else:  # a product with all of the few means instead of a gather of most
            pull = scatter_dense(index, weights, len(self.bank)) @ means
        return (x + pull) / (1 + weights.sum(dim=-1, keepdim=True))

    def calibrate(self, x: Tensor, strength: float | Tensor = 1.0) -> Calibration:
        """Neighbours, weights and calibrated means of `x (*B, D)`.

        Every weight is multiplied by `strength`, a number or one for each point `(*B)`: 1 is the paper's, 0 leaves x̃
        where it is.
        """
        nearest, index = self.neighbours(x)
        weights = self.weights(nearest) * (strength[..., None] if isinstance(strength, torch.Tensor) else strength)
        return Calibration(index, nearest, weights, self.mean(x, weights, index))


def weights_from_distances(d: Tensor, m: float) -> Tensor:
    """w = 1/(1 + d^m) (eq. 8): 1 on top of the base class, falling with distance, faster for larger m.

    >>> weights_from_distances(torch.tensor([0.0, 1.0, 3.0]), m=2)
    tensor([1.0000, 0.5000, 0.1000])
    """
    if not (m >= 0 and math.isfinite(m)):
        raise InputError(f"m={m!r} must be a finite number ≥ 0; it is the power of the distance in the weights")
    return 1 / (1 + d**m)


def _check_signs(d: Tensor, m: float) -> None:
    """Warn of negative distances, which ln|Σ| brings: eq. 8 is for d ≥ 0."""
    share = float((d < 0).float().mean())
    if not share or not m:
        return
    what = f"{share:.0%} of the distances from the k nearest base classes are negative, because ln|Σ| is"
    if int(m) != m:
        raise InputError(f"{what}, and d^m has no value for m={m:g}; use a whole m, or mahalanobis_shift=True")
    warnings.warn(
        f"{what}: their weights 1/(1 + d^{m:g}) do not fall with distance and need not lie between 0 and 1; "
        "mahalanobis_shift=True makes every d ≥ 0 and keeps the order",
        FewcalWarning,
        stacklevel=4,
    )


def uses_gather(bank: BaseBank, k: int) -> bool:
    """Whether the k nearest means are fetched one by one, rather than all means multiplied by mostly zero weights."""
    return len(bank) > GATHER_RATIO * k


def scatter_dense(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Values `(*B, k)` at their places `index (*B, k)` among `size`, zero elsewhere, `(*B, size)`.

    >>> scatter_dense(torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.25]]), 4).tolist()
    [[0.25, 0.0, 0.5, 0.0]]
    """
    return values.new_zeros(*values.shape[:-1], size).scatter_(-1, index, values)
