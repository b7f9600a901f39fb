"""Σ' = S_w: the within-class covariance of all base classes, the same for every support point."""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal.covariance.base import CovarianceMode


class Pooled(CovarianceMode):
    """Moments of the bank are enough. In a whitened bank S_w = v·I, which has no factor at all."""

    name = "pooled"
    words = "pooled within-class covariance of all base classes"
    needs_class_covariances = False

    @property
    def rows(self) -> int:
        return self.classes.bank.dim

    @property
    def isotropic(self) -> float:
        bank = self.classes.bank
        return float(bank.scatter[0, 0]) / bank.moments.degrees_of_freedom if bank.is_whitened else 0.0

    def totals(self) -> tuple[Tensor, Tensor]:
        bank, c = self.classes.bank, self.classes.c
        if bank.is_whitened:
            trace = total = torch.tensor(self.isotropic * bank.dim)
        else:
            pooled = bank.pooled_covariance()
            trace, total = pooled.diagonal().sum(), pooled.sum()
        return trace.to(c).expand(c.shape[:-1]), total.to(c).expand(c.shape[:-1])

    def factor(self, half: bool) -> Tensor:
        bank, c = self.classes.bank, self.classes.c
        t, s = c.shape[:2]
        if bank.is_whitened:
            return c.new_zeros(t, s, 0, bank.dim)
        return bank.pooled_factor().expand(t, s, bank.dim, bank.dim)

    def average_times(self, v: Tensor) -> Tensor:
        bank = self.classes.bank
        return v * self.isotropic if bank.is_whitened else v @ bank.pooled_covariance()
