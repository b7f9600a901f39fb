"""Gaussianization of features: a power transform, then centring, scaling, L2 norm and whitening (eq. 1-3).

The paper's step is the power transform alone, Tukey's ladder or Yeo-Johnson. HGDC adds powers of both signs, centring
on the base mean, a limit of the standard deviations, L2 normalisation and whitening. One fitted `Gaussianization` maps
base rows, support and query alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fewcal.errors import InputError

Kind = Literal["tukey", "yeo-johnson", "signed-power", "none"]
KINDS = ("auto", "tukey", "yeo-johnson", "signed-power", "none")
DEFAULT_EPS = 1e-6
# Fields of `Gaussianization` that are tensors.
TENSORS = ("mean", "scale", "whitening", "shift")
# Share of the mean square below which a variance is rounding of the sums.
ROUNDING = 1e-12
# Lengths below are taken for this, so that a zero row stays zero.
MIN_LENGTH = 1e-12
# Rows whose squares are summed at a time, which bounds memory.
CHUNK_ROWS = 4096


def tukey(x: Tensor, beta: float, eps: float = DEFAULT_EPS) -> Tensor:
    r"""Tukey's ladder of powers (eq. 2): :math:`x^\beta`, or :math:`\log(x + \varepsilon)` for β = 0.

    Parameters
    ----------
    x : Tensor, any shape, ≥ 0
    beta : float
        The power. β = 1 leaves x as it is.
    eps : float
        Added to x where β ≤ 0, because ReLU features are full of zeros.

    Examples
    --------
    >>> tukey(torch.tensor([0.0, 4.0]), 0.5)
    tensor([0., 2.])
    >>> bool(torch.isfinite(tukey(torch.zeros(1), 0.0)).all())
    True
    """
    if beta == 1:
        return x
    if beta == 0:
        return torch.log(x + eps)
    if beta < 0:
        return (x + eps) ** beta
    if beta == 0.5:
        return x.sqrt()  # several times faster than a general power
    return x**beta


def yeo_johnson(x: Tensor, beta: float) -> Tensor:
    r"""The Yeo-Johnson transform (eq. 3), all four branches, for features of any sign.

    .. math::
        x \ge 0:\; ((x+1)^\beta - 1)/\beta,\ \text{or}\ \log(x+1)\ \text{for}\ \beta = 0; \qquad
        x < 0:\; -((1-x)^{2-\beta} - 1)/(2-\beta),\ \text{or}\ -\log(1-x)\ \text{for}\ \beta = 2

    Examples
    --------
    >>> yeo_johnson(torch.tensor([-3.0, 0.0, 3.0]), 1.0)
    tensor([-3.,  0.,  3.])
    >>> yeo_johnson(torch.tensor([3.0]), 0.5)
    tensor([2.])
    """
    if beta == 1:
        return x
    # log1p/expm1 keep the branches accurate near x = 0 and near β = 0 and 2, where the printed form cancels.
    up = torch.log1p(x.clamp(min=0))
    down = torch.log1p((-x).clamp(min=0))
    positive = up if beta == 0 else torch.expm1(beta * up) / beta
    negative = down if beta == 2 else torch.expm1((2 - beta) * down) / (2 - beta)
    return positive - negative  # each is zero on the other's side


def signed_power(x: Tensor, beta: float) -> Tensor:
    r"""Powers of both signs, :math:`\operatorname{sign}(x)\,|x|^\beta` with β > 0.

    For tails that are long on both sides: Yeo-Johnson makes one shorter and the other longer. (Perronnin, Sánchez,
    Mensink, ECCV 2010.)

    >>> signed_power(torch.tensor([-4.0, 0.0, 4.0]), 0.5)
    tensor([-2.,  0.,  2.])
    """
    return x if beta == 1 else x.abs().pow_(beta).copysign_(x)


def inverse_tukey(z: Tensor, beta: float, eps: float = DEFAULT_EPS) -> Tensor:
    """x with `tukey(x) = z`; values of z that no x ≥ 0 has become the nearest x that there is.

    >>> inverse_tukey(torch.tensor([-1.0, 2.0]), 0.5)
    tensor([0., 4.])
    """
    if beta == 1:
        return z
    if beta == 0:
        return (z.exp() - eps).clamp(min=0)
    if beta < 0:
        return (z.clamp(min=1e-30) ** (1 / beta) - eps).clamp(min=0)
    return z.clamp(min=0) ** (1 / beta)


def inverse_yeo_johnson(z: Tensor, beta: float) -> Tensor:
    """x with `yeo_johnson(x) = z`; for β outside [0, 2] one side of z is bounded, and beyond it x is infinite.

    >>> inverse_yeo_johnson(yeo_johnson(torch.tensor([-3.0, 0.0, 3.0]), 0.5), 0.5)
    tensor([-3.,  0.,  3.])
    """
    if beta == 1:
        return z
    up, down = z.clamp(min=0), (-z).clamp(min=0)
    positive = up if beta == 0 else torch.log1p((beta * up).clamp(min=-1)) / beta
    negative = down if beta == 2 else torch.log1p(((2 - beta) * down).clamp(min=-1)) / (2 - beta)
    return torch.expm1(positive) - torch.expm1(negative)


def l2_normalise(x: Tensor) -> Tensor:
    """Rows of unit length; a zero row stays zero.

    >>> l2_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / _lengths(x)


def _lengths(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(MIN_LENGTH)


@dataclass(frozen=True, eq=False)
class Gaussianization:
    """A fitted map of features: power → − mean → × scale → L2 → whitening → L2, each step optional but the first.

    Attributes
    ----------
    kind : {"tukey", "yeo-johnson", "signed-power", "none"}
        Decided once on base data: Tukey only if every base feature was ≥ 0 (eq. 1).
    beta : float
        The power β, one for all features.
    eps : float
        Under the logarithm of Tukey at β = 0.
    mean : Tensor (D,) or None
        Mean of the power-transformed base rows, subtracted when given.
    scale : Tensor (D,) or None
        Factor of each centred feature (`limit_scale`).
    l2 : bool
        Normalise rows after that.
    whitening : Tensor (D, D) or None
        Applied as `x @ whitening`, after which rows are normalised again.
    shift : Tensor (D,) float64 or None
        Subtracted in double precision before all else, from features that single precision does not hold.

    Examples
    --------
    >>> g = fit_gaussianization(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), beta=0.5, center=True)
    >>> g.kind, g.mean
    ('tukey', tensor([1., 1.]))
    >>> g(torch.tensor([[1.0, 9.0]]))
    tensor([[0., 2.]])
    """

    kind: Kind
    beta: float = 1.0
    eps: float = DEFAULT_EPS
    mean: Tensor | None = None
    scale: Tensor | None = None
    l2: bool = False
    whitening: Tensor | None = None
    shift: Tensor | None = None

    def power(self, x: Tensor, name: str = "X") -> Tensor:
        """The power transform alone (eq. 1)."""
        if self.kind == "none":
            return x
        if self.kind == "yeo-johnson":
            return yeo_johnson(x, self.beta)
        if self.kind == "signed-power":
            return signed_power(x, self.beta)
        if self.beta != 1 and x.numel() and bool((low := x.min()) < 0):
            raise InputError(
                f"{name} has negative features (smallest {float(low):.4g}), but the base features were all ≥ 0 and "
                "Tukey's powers were chosen for them; use kind='yeo-johnson' or features of the same extractor"
            )
        return tukey(x, self.beta, self.eps)

    def shifted(self, x: Tensor) -> Tensor:
        """Rows `(..., D)` less the shift, in single precision; as they are without one."""
        return x if self.shift is None else (x.double() - self.shift).float()

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(..., D)`."""
        return self.apply(self.shifted(x), name)

    def apply(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(..., D)` from which the shift was subtracted."""
        z = self.power(x, name)
        if self.mean is not None:
            z = z - self.mean
        if self.scale is not None:
            z = z * self.scale
        if self.whitening is not None:  # after which rows are of unit length, whatever length they had before
            z = z @ self.whitening
        elif not self.l2:
            return z
        # In place where rows are not the caller's: memory that is taken anew costs as much as the division.
        return l2_normalise(z) if z is x else z.div_(_lengths(z))

    def inverse(self, z: Tensor) -> Tensor:
        """Map points `(..., D)` back to raw features; lengths that L2 normalisation took away cannot be given back."""
        if self.l2 or self.whitening is not None:
            raise InputError("L2 normalisation and whitening cannot be undone; use l2=False")
        if self.scale is not None:
            z = z / self.scale
        if self.mean is not None:
            z = z + self.mean
        if self.kind == "yeo-johnson":
            z = inverse_yeo_johnson(z, self.beta)
        elif self.kind == "signed-power":
            z = signed_power(z, 1 / self.beta)
        elif self.kind == "tukey":
            z = inverse_tukey(z, self.beta, self.eps)
        return z if self.shift is None else z + self.shift

    def with_shift(self, shift: Tensor | None) -> Gaussianization:
        """The same map after a shift."""
        return replace(self, shift=shift)

    def to(self, device: torch.device | str) -> Gaussianization:
        """The same map with its tensors on `device`."""
        return replace(self, **{name: t.to(device) for name, t in self.tensors().items()})  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of this map by the names of their fields."""
        return {name: t for name in TENSORS if (t := getattr(self, name)) is not None}

    @property
    def words(self) -> str:
        """The map for people.

        >>> Gaussianization("tukey", 0.5, mean=torch.zeros(3), l2=True).words
        "β = 0.5 (Tukey's powers), centred, unit length"
        """
        power = {"tukey": "Tukey's powers", "yeo-johnson": "Yeo-Johnson", "signed-power": "powers of both signs"}
        steps = ["no power" if self.kind == "none" or self.beta == 1 else f"β = {self.beta:g} ({power[self.kind]})"]
        if self.mean is not None:
            steps.append("centred")
        if self.scale is not None:
            steps.append(f"{int((self.scale < 1).sum())} features scaled down")
        if self.whitening is not None:
            steps.append("whitened")
        return ", ".join([*steps, *(["unit length"] if self.l2 or self.whitening is not None else [])])

    def settings(self) -> dict[str, str | float | bool]:
        """The scalars of this map, for metadata and messages."""
        return {
            "kind": self.kind,
            "beta": self.beta,
            "eps": self.eps,
            "center": self.mean is not None,
            "scaled": self.scale is not None,
            "l2": self.l2,
            "whitened": self.whitening is not None,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Gaussianization:
        """The map of `settings` and of tensors by names that begin with `transform.`, as files have them."""
        kind, beta, eps, l2 = (settings[name] for name in ("kind", "beta", "eps", "l2"))
        own = {name: tensors.get(f"transform.{name}") for name in TENSORS}
        return cls(kind, float(beta), float(eps), l2=bool(l2), **own)


def limit_scale(deviation: Tensor, limit: float) -> Tensor | None:
    """Factors `(D,)` that bring standard deviations `(D,)` down to `limit` times their median; None for no change.

    Transformers have a few features of extreme variance, and features side by side may have different units. Nothing
    else would count in the length of a row. Constant features do not count in the median.

    >>> limit_scale(torch.tensor([1.0, 2.0, 80.0, 0.0]), 4.0)
    tensor([1.0000, 1.0000, 0.1000, 1.0000])
    """
    varying = deviation > 0
    if not bool(varying.any()):
        return None
    bound = limit * deviation[varying].median()
    return None if bool((deviation <= bound).all()) else (bound / deviation).clamp(max=1)


class GaussianizationFitter:
    """Fit a `Gaussianization` from chunks of base rows, so that data larger than memory can be centred.

    Until a negative feature is seen, either transform may still be the right one; the moments of both are kept.

    >>> fitter = GaussianizationFitter(beta=0.5, center=True)
    >>> fitter.update(torch.tensor([[1.0], [9.0]])).update(torch.tensor([[4.0]])).finish().mean
    tensor([2.])
    """

    def __init__(
        self,
        beta: float = 0.5,
        kind: str = "auto",
        center: bool = False,
        l2: bool = False,
        eps: float = DEFAULT_EPS,
        spread: float = float("inf"),
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
        if not -10 <= float(beta) <= 10:
            raise InputError(f"beta={beta!r} is out of range; the power must lie in [-10, 10] (the paper uses 0 to 10)")
        if not eps > 0:
            raise InputError(f"eps={eps!r} must be > 0; it keeps log(0) finite")
        if kind == "signed-power" and not beta > 0:
            raise InputError(f"beta={beta!r} must be > 0 for kind='signed-power'; use a power from 0.1 to 1")
        if not spread >= 1:
            raise InputError(f"spread={spread!r} must be ≥ 1; it is in units of the median standard deviation")
        self.settings = (float(beta), kind, bool(center), bool(l2), float(eps), float(spread))
        self.beta, self.kind, self.center, self.l2, self.eps, self.spread = self.settings
        self.rows = 0
        self.low = float("inf")
        self._sums: dict[Kind, Tensor] = {}  # of features and of their squares, (2, D)

    def update(self, x: Tensor) -> GaussianizationFitter:
        """Add rows `(R, D)`."""
        if not len(x):
            return self
        self.rows += len(x)
        self.low = min(self.low, float(x.min()))
        if self.kind == "tukey" and self.low < 0 and self.beta != 1:
            raise InputError(
                f"kind='tukey' with negative base features (smallest {self.low:.4g}); use kind='yeo-johnson' or 'auto'"
            )
        if self.center or self.spread < float("inf"):
            for kind in self._candidates():
                z = Gaussianization(kind, self.beta, self.eps).power(x)
                squares = [part.double().square().sum(dim=0) for part in z.split(CHUNK_ROWS)]
                total = torch.stack([z.sum(dim=0, dtype=torch.float64), torch.stack(squares).sum(dim=0)])
                self._add(kind, total)
        return self

    def _add(self, kind: Kind, total: Tensor) -> None:
        before = self._sums.get(kind)
        self._sums[kind] = total if before is None else before + total.to(before.device)

    def merge(self, other: GaussianizationFitter) -> GaussianizationFitter:
        """Add the rows of another fitter."""
        if self.settings != other.settings:
            raise InputError(
                f"fitters have different settings: {self.settings} and {other.settings}; give all parts the same"
            )
        self.rows += other.rows
        self.low = min(self.low, other.low)
        for kind, total in other._sums.items():
            self._add(kind, total)
        return self

    def finish(self, dtype: torch.dtype | None = None) -> Gaussianization:
        """The fitted map, its mean in `dtype`, float32 by default."""
        if not self.rows:
            raise InputError("no base rows were given; the transform is fitted on base data")
        kind = self._candidates()[-1]
        dtype = dtype or torch.float32
        mean = scale = None
        if self._sums:
            first, second = self._sums[kind] / self.rows
            mean = first.to(dtype) if self.center else None
            variance = second - first.square()
            variance[variance <= ROUNDING * second] = 0  # constant, but for rounding in the sums
            scale = limit_scale(variance.sqrt(), self.spread)
        scale = None if scale is None else scale.to(dtype)
        return Gaussianization(kind, self.beta, self.eps, mean=mean, scale=scale, l2=self.l2)

    def _candidates(self) -> list[Kind]:
        """Transforms still possible, the preferred one last."""
        if self.kind != "auto":
            return [self.kind]  # type: ignore[list-item]
        return ["yeo-johnson"] if self.low < 0 else ["yeo-johnson", "tukey"]


def fit_gaussianization(
    x: Tensor,
    beta: float = 0.5,
    kind: str = "auto",
    center: bool = False,
    l2: bool = False,
    eps: float = DEFAULT_EPS,
    spread: float = float("inf"),
) -> Gaussianization:
    """Fit the map on base rows `(R, D)` held in memory (eq. 1): Tukey iff every feature is ≥ 0.

    >>> fit_gaussianization(torch.tensor([[-1.0, 2.0]])).kind
    'yeo-johnson'
    """
    return GaussianizationFitter(beta, kind, center, l2, eps, spread).update(x).finish()
