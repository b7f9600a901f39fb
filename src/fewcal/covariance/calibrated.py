r"""The calibrated covariance Σ' = cov(X') in structured form, and its shrinkage (eq. 5 and 9).

With c_i the share of base class i and R_i its centred rows over √(P−1):

    joint        Σ' = FᵀF,  F = Σ c_i R_i      cov of the weighted sum: cross-class covariance counts, rows are paired
    independent  Σ' = Σ c_i² R_iᵀR_i           the same if base classes were independent
    pooled       Σ' = S_w                      the within-class covariance of all base classes

Every quantity needed on the way (σ1, σ2, samples, products with a vector) comes from the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, scatter_dense
from fewcal.errors import InputError
from fewcal.factor_gaussian import FactorGaussian, shrink

COVARIANCES = ("joint", "independent", "pooled")
SHARES = ("with-support", "bases-only", "average")
OFF_DIAGONALS = ("pairs", "all")
PSD = ("clip", "eigen")

# Up to this many base classes their mutual products are computed once for the bank; beyond it, or where a batch of
# tasks names few of them, for the classes that it names.
_ALL_CLASSES = 1024
# Stacked factors with more rows than this many times D are replaced by a D×D Cholesky factor.
_TALL = 4
# Below this share of (task, base class) pairs in use, products go class by class and leave out the rest.
_SPARSE = 0.6


def shares(calibration: Calibration, kind: str = "with-support") -> Tensor:
    """c_i of the covariance, `(*B, k)`.

    `with-support`: w/(1+Σw), as printed, where the (constant) support point holds its share. `bases-only`: w/Σw, as in
    the authors' script. `average`: 1/√k, so that `independent` is the plain mean of the covariances, as in DC.
    """
    w = calibration.weights
    if kind == "with-support":
        return w / (1 + w.sum(dim=-1, keepdim=True))
    if kind == "bases-only":
        return w / w.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    if kind == "average":
        return torch.full_like(w, w.shape[-1] ** -0.5)
    raise InputError(f"cov_weights={kind!r} is unknown; use one of {', '.join(SHARES)}")


@dataclass(frozen=True, eq=False)
class CalibratedCovariance:
    """Σ' of every support point of a batch of tasks, unassembled.

    Attributes
    ----------
    bank : BaseBank
    mode : {"joint", "independent", "pooled"}
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
        if self.mode != "pooled" and self.bank.is_whitened:
            raise InputError(
                f"cov={self.mode!r} needs class covariances, which a whitened bank replaces; use cov='pooled'"
            )

    # ---- the base classes in play -----------------------------------------------------------------------------------

    @cached_property
    def _block(self) -> Tensor:
        """R `(U, P, D)` of the base classes in play."""
        if self.mode == "joint":
            return self.bank.paired_rows(self.common_size, self._union)
        return self.bank.class_factors(self._union)

    @cached_property
    def _union(self) -> Tensor | None:
        few = 2 * self.index.numel() <= len(self.bank)
        return torch.unique(self.index) if few or len(self.bank) > _ALL_CLASSES else None

    @cached_property
    def _shares(self) -> Tensor:
        """c as a dense `(T, S, U)`."""
        index, size = self.index, len(self.bank)
        if self._union is not None:
            index, size = torch.searchsorted(self._union, index), len(self._union)
        return scatter_dense(index, self.c, size)

    @property
    def rows(self) -> int:
        """P, the rows of each base class that count."""
        return self.bank.dim if self.mode == "pooled" else self._block.shape[1]

    def _products(self) -> tuple[Tensor, Tensor]:
        """⟨R_i, R_j⟩ and ⟨R_i·1, R_j·1⟩, each `(U, U)`; only diagonals `(U,)` for `independent`."""

        def make() -> tuple[Tensor, Tensor]:
            flat = self._block.flatten(1)
            sums = self._block.sum(dim=-1)
            if self.mode == "independent":
                return flat.square().sum(dim=1), sums.square().sum(dim=1)
            return flat @ flat.T, sums @ sums.T

        if self._union is not None:
            return make()
        return self.bank.memo.get(("products", self.mode, self.common_size), make)

    @property
    def isotropic(self) -> float:
        """v with Σ' = v·I in a whitened bank; 0 elsewhere."""
        if not self.bank.is_whitened:
            return 0.0
        return float(self.bank.scatter[0, 0]) / max(self.bank.n_rows - len(self.bank), 1)

    # ---- what the rest of the engine asks for ------------------------------------------------------------------------

    def moments(self, off_diagonal: str = "pairs") -> tuple[Tensor, Tensor]:
        """σ1, the mean variance, and σ2, the mean off-diagonal covariance of Σ', each `(T, S)`.

        σ1 = ‖F‖²/D and σ2 = (‖F·1‖² − ‖F‖²)/(D(D−1)); with `off_diagonal="all"` the divisor of σ2 is D², as in the
        authors' script.
        """
        if off_diagonal not in OFF_DIAGONALS:
            raise InputError(f"off_diagonal={off_diagonal!r} is unknown; use one of {', '.join(OFF_DIAGONALS)}")
        d = self.bank.dim
        if self.mode == "pooled":
            if self.bank.is_whitened:
                trace, total = torch.tensor(self.isotropic * d), torch.tensor(self.isotropic * d)
            else:
                pooled = self.bank.pooled_covariance()
                trace, total = pooled.diagonal().sum(), pooled.sum()
            trace, total = (t.to(self.c).expand(self.c.shape[:-1]) for t in (trace, total))
        else:
            squares, sums = self._products()
            if self.mode == "independent":
                trace, total = (self._shares.square() @ t for t in (squares, sums))
            else:
                trace, total = (((self._shares @ t) * self._shares).sum(dim=-1) for t in (squares, sums))
        cells = d * d if off_diagonal == "all" else max(d * (d - 1), 1)
        return trace / d, (total - trace) / cells

    def _half_block(self) -> Tensor:
        if self._union is not None:
            return self._block.bfloat16()
        return self.bank.memo.get(("half", self.mode, self.common_size), self._block.bfloat16)

    def factor(self, half: bool = False) -> Tensor:
        """F with FᵀF = Σ' (less the isotropic part of a whitened bank), `(T, S, P', D)`.

        With `half` it may come in bfloat16, which is enough to draw points with.
        """
        t, s, k = self.c.shape
        d = self.bank.dim
        if self.mode == "pooled":
            if self.bank.is_whitened:
                return self.c.new_zeros(t, s, 0, d)
            return self.bank.pooled_factor().expand(t, s, d, d)
        u, p = self._block.shape[:2]
        if self.mode == "joint":
            if u <= 8 * k:
                shares, block = self._shares.reshape(t * s, u), self._block.reshape(u, p * d)
                if half:
                    shares, block = shares.bfloat16(), self._half_block().reshape(u, p * d)
                return (shares @ block).view(t, s, p, d)
            out = self.c.new_zeros(t, s, p, d)
            local = self.index if self._union is None else torch.searchsorted(self._union, self.index)
            for j in range(k):
                out.addcmul_(self._block[local[..., j]], self.c[..., j, None, None])
            return out
        if k * p <= _TALL * d:
            local = self.index if self._union is None else torch.searchsorted(self._union, self.index)
            block, c = (self._half_block(), self.c.bfloat16()) if half else (self._block, self.c)
            return block[local].mul_(c[..., None, None]).reshape(t, s, k * p, d)
        covariances = self.bank.class_covariances() if self._union is None else self._block.mT @ self._block
        dense = (self._shares.square().reshape(t * s, u) @ covariances.reshape(u, d * d)).view(t, s, d, d)
        return _root(dense)

    def average_times(self, v: Tensor) -> Tensor:
        """Σ̄'v for rows `v (T, M, D)`, Σ̄' the average of Σ' over the support points of a task."""
        if self.mode == "pooled":
            return v * self.isotropic if self.bank.is_whitened else v @ self.bank.pooled_covariance()
        t, m, d = v.shape
        u, p = self._block.shape[:2]
        rows = self._block.reshape(u * p, d)
        tasks_of = self._tasks_of_class
        if tasks_of is None:
            y = (v.reshape(t * m, d) @ rows.T).view(t, m, u, p)
        else:
            y = v.new_zeros(t, m, u, p)
            for i, at in enumerate(tasks_of):
                y[at, :, i] = v[at] @ self._block[i].T
        if self.mode == "joint":
            y = self._mixing[:, None] @ y
        else:
            y = y * self._shares.square().mean(dim=1)[:, None, :, None]
        if tasks_of is None:
            return (y.reshape(t * m, u * p) @ rows).view(t, m, d)
        out = torch.zeros_like(v)
        for i, at in enumerate(tasks_of):
            out[at] += y[at, :, i] @ self._block[i]
        return out

    @cached_property
    def _mixing(self) -> Tensor:
        """CᵀC/S `(T, U, U)`: how the base classes of a task are mixed, on average over its points."""
        return self._shares.mT @ self._shares / self._shares.shape[1]

    @cached_property
    def _tasks_of_class(self) -> list[Tensor] | None:
        """For each base class the tasks that it plays a part in; `None` where most play one in most."""
        used = (self._shares != 0).any(dim=1)  # (T, U)
        if used.is_cuda or float(used.float().mean()) > _SPARSE:
            return None
        return [column.nonzero().flatten() for column in used.T]


def _root(dense: Tensor) -> Tensor:
    """F with FᵀF = the given positive semi-definite matrices: Cholesky, or eigenvalues where that fails."""
    jitter = 1e-6 * dense.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    eye = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
    lower, info = torch.linalg.cholesky_ex(dense + jitter[..., None, None] * eye)
    factor = lower.mT.contiguous()
    failed = info != 0
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(dense[failed].double())
        factor[failed] = (values.clamp(min=0).sqrt()[..., None] * vectors.mT).to(dense.dtype)
    return factor


@dataclass(frozen=True, eq=False)
class ShrunkCovariance:
    """Σ'ₛ = Σ' + a·I + b·11ᵀ of every support point (eq. 9), a and b `(T, S)`; a whitened bank's v is part of a."""

    covariance: CalibratedCovariance
    a: Tensor | None
    b: Tensor
    psd: str = "clip"

    def gaussian(self, mean: Tensor) -> FactorGaussian:
        """The distributions N(mean, Σ'ₛ) for `mean (T, S, D)`."""
        half = self.psd != "eigen" and half_pays(mean, mean.numel() * self.covariance.rows)
        g = FactorGaussian(mean, self.covariance.factor(half), self.a, self.b)
        return g.eigen_clipped() if self.psd == "eigen" else g


def shrink_covariance(
    covariance: CalibratedCovariance,
    alpha1: float,
    alpha2_ratio: float,
    *,
    off_diagonal: str = "pairs",
    psd: str = "clip",
    constant: float | None = None,
) -> ShrunkCovariance:
    """Shrink Σ' (eq. 9). With `constant` that number is added to every entry instead, as DC does.

    `psd="clip"` keeps Σ'ₛ positive semi-definite by the analytic clip of b; `"eigen"` leaves a and b as asked and
    clips eigenvalues when the distribution is built.
    """
    if psd not in PSD:
        raise InputError(f"psd={psd!r} is unknown; use one of {', '.join(PSD)}")
    if constant is not None:
        if not constant >= 0:
            raise InputError(f"alpha={constant!r} must be ≥ 0; DC adds it to every entry of the covariance")
        b = torch.full_like(covariance.c[..., 0], float(constant))
        return ShrunkCovariance(covariance, None, b)
    sigma1, sigma2 = covariance.moments(off_diagonal)
    a, b = shrink(sigma1, sigma2, covariance.bank.dim, alpha1, alpha2_ratio, clip=psd == "clip")
    return ShrunkCovariance(covariance, a + covariance.isotropic, b, psd)
