r"""The power β of a data set: the gentlest that makes features Gaussian within their class.

Calibration models every class as a Gaussian, and the power transform (eq. 1-3) makes it one. The measure is the
kurtosis of the deviations r from the class mean,

    κ = median over features of  E[r⁴] / E[r²]²     (a normal distribution has 3),

taken where the method works: after the power, centring and scaling to unit length. A power that is
too strong costs as much as one that is missing, so the largest β in `POWERS` with κ ≤ `GAUSSIAN_KURTOSIS` is taken, or
that of the smallest κ where none suffices. For features of any sign the powers are Yeo-Johnson's, which help where one
tail is long, and powers of both signs, which help where both are: the better of the two at each β.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fewcal.gaussianize import DEFAULT_EPS, fit_gaussianization

if TYPE_CHECKING:
    from torch import Tensor

POWERS = (1.0, 0.75, 0.5, 0.35, 0.25)
GAUSSIAN_KURTOSIS = 7.0
# Classes, and rows of each, that the choice is made from at most. It bounds time and memory.
SAMPLED_CLASSES, SAMPLED_ROWS = 256, 32


@dataclass(frozen=True)
class PowerChoice:
    """A power and the kurtosis that it was chosen by.

    Attributes
    ----------
    beta : float
    kurtosis : dict of float by float
        κ after each power that was tried; empty for a power that was not chosen.
    kind : str
        "signed-power" where that was better than what `auto` stands for.
    """

    beta: float
    kurtosis: dict[float, float] = field(default_factory=dict)
    kind: str = "auto"

    @property
    def words(self) -> str:
        """The choice for people.

        >>> PowerChoice(0.5, {1.0: 16.8, 0.75: 9.4, 0.5: 4.9}).words
        'β = 0.5 (within-class kurtosis 16.8 at β = 1, 9.4 at β = 0.75, 4.9 at β = 0.5)'
        """
        tried = ", ".join(f"{kurtosis:.1f} at β = {beta:g}" for beta, kurtosis in self.kurtosis.items())
        signs = ", powers of both signs" if self.kind == "signed-power" else ""
        return f"β = {self.beta:g}{signs}" + (f" (within-class kurtosis {tried})" if tried else " (given)")


def within_class_kurtosis(z: Tensor, codes: Tensor) -> float:
    """κ of rows `z (R, D)` with classes `codes (R,)`.

    >>> x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    >>> round(within_class_kurtosis(x, torch.arange(4000) % 2))
    3
    """
    counts = torch.bincount(codes).clamp(min=1).to(z.dtype)
    means = z.new_zeros(len(counts), z.shape[1]).index_add_(0, codes, z) / counts[:, None]
    squares = (z - means[codes]).double().square()
    variance = squares.mean(dim=0)
    varies = variance > 1e-12 * variance.amax()  # a constant feature has no shape
    if not bool(varies.any()):
        return 3.0
    return float((squares.square().mean(dim=0)[varies] / variance[varies].square()).median())


def choose_power(
    x: Tensor, codes: Tensor, kind: str = "auto", eps: float = DEFAULT_EPS, limit: float = GAUSSIAN_KURTOSIS
) -> PowerChoice:
    """β for base rows `x (R, D)` of classes `codes (R,)`.

    >>> heavy = torch.randn(600, 64, generator=torch.Generator().manual_seed(0)).abs() ** 3
    >>> choose_power(heavy, torch.arange(600) % 4).beta < 1
    True
    >>> choose_power(torch.randn(600, 64, generator=torch.Generator().manual_seed(0)) ** 3, torch.arange(600) % 4).kind
    'signed-power'
    >>> choose_power(torch.randn(600, 8, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 4).beta
    1.0
    """
    kinds: dict[float, str] = {}
    kurtosis: dict[float, float] = {}
    either = kind == "auto" and x.numel() > 0 and bool(x.min() < 0)
    for beta in POWERS:
        tried = {}
        for one in (kind, "signed-power") if either and beta != 1 else (kind,):
            z = fit_gaussianization(x, beta, one, center=True, l2=True, eps=eps)(x)
            tried[one] = within_class_kurtosis(z, codes)
        kinds[beta] = min(tried, key=lambda name: tried[name])
        kurtosis[beta] = tried[kinds[beta]]
        if kurtosis[beta] <= limit:
            break
    best = beta if kurtosis[beta] <= limit else min(kurtosis, key=lambda power: kurtosis[power])
    return PowerChoice(best, kurtosis, kinds[best])
