"""Linear discriminant with the pooled covariance of the base classes: the plainest use of a bank.

Fisher's discriminant with class means from the support and the within-class covariance S_w from the base classes,

    score_c(x) = xᵀ Σ⁻¹ μ_c − ½ μ_cᵀ Σ⁻¹ μ_c,   Σ = (1 − ρ) S_w + ρ (tr S_w / D) I

on centred unit-length rows. ρ is the share of the OAS estimator (`fewcal.covariance.oas`).
"""

from __future__ import annotations

import torch

from fewcal.bank import BaseBank
from fewcal.covariance.oas import oas_share
from fewcal.heads.linear import LinearHead, class_means
from fewcal.methods.base import Method, TaskBatch
from fewcal.methods.registry import register_method


@register_method
class PooledLDA(Method):
    """Nearest class mean of the support under the shrunk within-class covariance of the base classes."""

    name = "lda"
    needs_bank = True

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        space = bank.transformed(beta=1.0, center=True, l2=True, moments=True)
        values, vectors = space.pooled_eigen()
        exact, freedom = values.double(), float(space.moments.degrees_of_freedom)
        share = float(oas_share(exact.sum(), exact.square().sum(), freedom, len(exact)))
        shrunk = ((1 - share) * values + share * values.mean()).clamp(min=1e-30)
        self.precision = (vectors / shrunk) @ vectors.T
        self.set_space(space.transform, bank)
        return self

    def fit(self, batch: TaskBatch) -> LinearHead:
        means = class_means(batch.support, batch.labels, batch.n_classes)
        with torch.no_grad():
            weight = means @ self.precision
        return LinearHead(weight, -0.5 * (weight * means).sum(dim=-1))
