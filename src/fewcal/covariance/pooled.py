"""Σ' = S_w: the within-class covariance of all base classes, the same for every support point."""

from __future__ import annotations

from torch import Tensor

from fewcal.covariance.base import CovarianceMode


class Pooled(CovarianceMode):
    """Moments of the bank are enough."""

    name = "pooled"
    words = "pooled within-class covariance of all base classes"
    needs_class_covariances = False

    @property
    def rows(self) -> int:
        return self.classes.bank.dim

    def totals(self) -> tuple[Tensor, Tensor]:
        bank, c = self.classes.bank, self.classes.c
        pooled = bank.pooled_covariance()
        trace, total = pooled.diagonal().sum(), pooled.sum()
        return trace.to(c).expand(c.shape[:-1]), total.to(c).expand(c.shape[:-1])

    def factor(self, half: bool) -> Tensor:
        bank, c = self.classes.bank, self.classes.c
        t, s = c.shape[:2]
        return bank.pooled_factor().expand(t, s, bank.dim, bank.dim)

    def average_times(self, v: Tensor) -> Tensor:
        return v @ self.classes.bank.pooled_covariance()
