r"""The calibrated covariance Σ' = cov(X') in structured form (eq. 5).

With c_i the share of base class i and R_i its centred rows over √(P−1):

    joint        Σ' = FᵀF,  F = Σ c_i R_i      cov of the weighted sum: cross-class covariance counts, rows are paired
    independent  Σ' = Σ c_i² R_iᵀR_i           the same if base classes were independent
    pooled       Σ' = S_w                      the within-class covariance of all base classes

Every quantity needed on the way (σ1, σ2, samples, products with a vector) comes from the factors. A new mode is a
`CovarianceMode` and one entry in `COVARIANCES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration
from fewcal.covariance.base import BaseClasses, CovarianceMode
from fewcal.covariance.independent import Independent
from fewcal.covariance.joint import Joint
from fewcal.covariance.pooled import Pooled
from fewcal.errors import InputError

COVARIANCES: dict[str, type[CovarianceMode]] = {mode.name: mode for mode in (Joint, Independent, Pooled)}
OFF_DIAGONALS = ("pairs", "all")

# c_i of the weights w (*B, k).
SHARES: dict[str, Callable[[Tensor], Tensor]] = {
    "with-support": lambda w: w / (1 + w.sum(dim=-1, keepdim=True)),
    "bases-only": lambda w: w / w.sum(dim=-1, keepdim=True).clamp(min=1e-30),
    "average": lambda w: torch.full_like(w, w.shape[-1] ** -0.5),
}


def shares(calibration: Calibration, kind: str = "with-support") -> Tensor:
    """c_i of the covariance, `(*B, k)`.

    `with-support`: w/(1+Σw), as printed, where the (constant) support point holds its share. `bases-only`: w/Σw, as in
    the authors' script. `average`: 1/√k, so that `independent` is the plain mean of the covariances, as in DC.
    """
    if kind not in SHARES:
        raise InputError(f"cov_weights={kind!r} is unknown; use one of {', '.join(SHARES)}")
    return SHARES[kind](calibration.weights)


@dataclass(frozen=True, eq=False)
class CalibratedCovariance:
    """Σ' of every support point of a batch of tasks, unassembled.

    Attributes
    ----------
    bank : BaseBank
    mode : str
        One of `COVARIANCES`.
    index : Tensor (T, S, k)
        Base classes of each support point.
    c : Tensor (T, S, k)
        Their shares.
    common_size : int
        Rows per class in `joint`; 0 for the smallest class.
    """

    bank: BaseBank
    mode: str
    index: Tensor
    c: Tensor
    common_size: int = 0

    def __post_init__(self) -> None:
        if self.mode not in COVARIANCES:
            raise InputError(f"cov={self.mode!r} is unknown; use one of {', '.join(COVARIANCES)}")

    @classmethod
    def of_batch(
        cls, bank: BaseBank, mode: str, shape: tuple[int, int, int], common_size: int = 0
    ) -> CalibratedCovariance | None:
        """As a batch with an index of this shape `(T, S, k)` has it, to compute what it takes from the bank beforehand.

        None where a batch works with the classes that it names, and takes nothing from the bank as a whole.
        """
        index = (torch.arange(math.prod(shape), device=bank.device) % len(bank)).view(shape)
        covariance = cls(bank, mode, index, torch.zeros(shape, device=bank.device), common_size)
        return covariance if covariance.strategy.classes.union is None else None

    @cached_property
    def strategy(self) -> CovarianceMode:
        """The mode at work on these classes."""
        return COVARIANCES[self.mode](BaseClasses(self.bank, self.index, self.c, self.common_size))

    @property
    def rows(self) -> int:
        """P, the rows of each base class that count."""
        return self.strategy.rows

    def moments(self, off_diagonal: str = "pairs") -> tuple[Tensor, Tensor]:
        """σ1, the mean variance, and σ2, the mean off-diagonal covariance of Σ', each `(T, S)`.

        σ1 = ‖F‖²/D and σ2 = (‖F·1‖² − ‖F‖²)/(D(D−1)); with `off_diagonal="all"` the divisor of σ2 is D², as in the
        authors' script.
        """
        if off_diagonal not in OFF_DIAGONALS:
            raise InputError(f"off_diagonal={off_diagonal!r} is unknown; use one of {', '.join(OFF_DIAGONALS)}")
        d = self.bank.dim
        trace, total = self.strategy.totals()
        cells = d * d if off_diagonal == "all" else max(d * (d - 1), 1)
        return trace / d, (total - trace) / cells

    def factor(self, half: bool = False) -> Tensor:
        """F with FᵀF = Σ', `(T, S, P', D)`.

        With `half` it may come in bfloat16, which is enough to draw points with.
        """
        return self.strategy.factor(half)

    def average_times(self, v: Tensor) -> Tensor:
        """Σ̄'v for rows `v (T, M, D)`, Σ̄' the average of Σ' over the support points of a task."""
        return self.strategy.average_times(v)
