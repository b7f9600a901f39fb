"""Shrinkage of Σ' (eq. 9): Σ'ₛ = Σ' + a·I + b·11ᵀ."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays, keeps_float32
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.threads import single_thread
from fewcal.covariance.base import NoiseSource
from fewcal.covariance.calibrated import CalibratedCovariance
from fewcal.errors import InputError
from fewcal.factor_gaussian import FactorGaussian, shrink

# Numbers of the factors that a GPU holds at a time.
CUDA_FACTOR_NUMBERS = 1 << 30
PSD = ("clip", "eigen")


@dataclass(frozen=True, eq=False)
class ShrunkCovariance:
    """Σ'ₛ = Σ' + a·I + b·11ᵀ of every support point (eq. 9), a and b `(T, S)`."""

    covariance: CalibratedCovariance
    a: Tensor | None
    b: Tensor
    psd: str = "clip"

    @property
    def axes(self) -> tuple[Tensor, Tensor] | None:
        """Main axes of the base classes, for `FactorGaussian.compressed`; None for all of Σ'ₛ."""
        bank = self.covariance.bank
        if self.a is None or self.psd == "eigen" or self.a.is_cuda or keeps_float32():
            return None
        return bank.memo.get("main axes", lambda: main_axes(bank.pooled_covariance()))

    def __getitem__(self, tasks: slice) -> ShrunkCovariance:
        """Some of the tasks."""
        if tasks == slice(0, len(self.b)):
            return self
        covariance = replace(self.covariance, index=self.covariance.index[tasks], c=self.covariance.c[tasks])
        return ShrunkCovariance(covariance, None if self.a is None else self.a[tasks], self.b[tasks], self.psd)

    def _half(self, mean: Tensor) -> bool:
        return self.psd != "eigen" and half_pays(mean, mean[0].numel() * self.covariance.rows)

    def gaussian(self, mean: Tensor) -> FactorGaussian:
        """The distributions N(mean, Σ'ₛ) for `mean (T, S, D)`."""
        g = FactorGaussian(mean, self.covariance.factor(self._half(mean)), self.a, self.b)
        return g.eigen_clipped() if self.psd == "eigen" else g

    def prepare_sampling(self, mean: Tensor, n: int) -> None:
        """Compute what drawing n points around each of `mean (T, S, D)`, of any values, takes from the bank."""
        if self._noise_source(mean, n) is None:
            _ = self.covariance.rows, self.axes

    def _noise_source(self, mean: Tensor, n: int) -> NoiseSource | None:
        """What the mode draws noise with, where the noise beside that of Σ' is one number a point."""
        bare = self.a is None and self.psd != "eigen"
        return self.covariance.strategy.noise_source(n, self._half(mean)) if bare else None

    def sample(self, mean: Tensor, n: int, random: TaskRandom, out: Tensor) -> None:
        """Draw n points of each N(mean, Σ'ₛ) into `out (T, S, n, D)` (eq. 10)."""
        source = self._noise_source(mean, n)
        if source is not None:
            none = mean.new_zeros(*mean.shape[:-1], 0, mean.shape[-1])
            FactorGaussian(mean, none, None, self.b).sample(n, random, out=out)
            self.covariance.strategy.add_noise(out, random, source)
            return
        # On a GPU as many tasks at a time as there is room for their factors; on a CPU batches are small.
        some = max(1, CUDA_FACTOR_NUMBERS // max(mean[0].numel() * self.covariance.rows, 1)) if mean.is_cuda else 1
        together = some if mean.is_cuda else len(mean)
        for begin in range(0, len(mean), together):
            gaussian = self[begin : begin + together].gaussian(mean[begin : begin + together])
            for t in range(0, len(gaussian.mean), some):
                part, own = gaussian[t : t + some], slice(begin + t, begin + t + some)
                part = part if self.axes is None else part.compressed(self.axes, n)  # each task by itself
                part.sample(n, random.part(own), out=out[own])


@single_thread()
def main_axes(covariance: Tensor, count: int = 128, passes: int = 4) -> tuple[Tensor, Tensor]:
    """The directions in which a covariance `(D, D)` is largest, by orthogonal iteration from a fixed start.

    Variances `(A,)` in descending order, as shares of their mean over all D, and orthonormal columns `(D, A)`.
    """
    d = len(covariance)
    start = torch.randn(d, min(count, d), generator=torch.Generator().manual_seed(0), dtype=covariance.dtype)
    columns = torch.linalg.qr(covariance @ start.to(covariance.device)).Q
    for _ in range(passes):
        columns = torch.linalg.qr(covariance @ columns).Q
    values, turn = torch.linalg.eigh(columns.mT @ covariance @ columns)
    mean = covariance.diagonal().mean().clamp(min=torch.finfo(covariance.dtype).tiny)
    return values.flip(0).clamp(min=0) / mean, (columns @ turn).flip(1)


def shrink_covariance(
    covariance: CalibratedCovariance,
    alpha1: float,
    alpha2_ratio: float,
    *,
    off_diagonal: str = "pairs",
    psd: str = "clip",
    constant: float = 0.0,
) -> ShrunkCovariance:
    """Shrink Σ' (eq. 9). `constant` is a number that is added to every entry, DC's α.

    `psd="clip"` keeps Σ'ₛ positive semi-definite by the analytic clip of b; `"eigen"` leaves a and b as they are and
    clips eigenvalues when the distribution is built.
    """
    if psd not in PSD:
        raise InputError(f"psd={psd!r} is unknown; use one of {', '.join(PSD)}")
    if not constant >= 0:
        raise InputError(f"alpha={constant!r} must be ≥ 0; DC adds it to every entry of the covariance")
    if constant and not alpha1:  # DC: no noise of equal variance to draw
        return ShrunkCovariance(covariance, None, torch.full_like(covariance.c[..., 0], float(constant)), psd)
    sigma1, sigma2 = covariance.moments(off_diagonal)
    a, b = shrink(sigma1, sigma2, covariance.bank.dim, alpha1, alpha2_ratio, clip=psd == "clip")
    return ShrunkCovariance(covariance, a, b + constant, psd)
