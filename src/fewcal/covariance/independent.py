"""Σ' = Σ c_i² R_iᵀR_i: the covariance of the weighted sum if base classes were independent."""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal.covariance.base import OfClasses

# Stacked factors with more rows than this many times D are replaced by a D×D Cholesky factor.
TALL = 4


class Independent(OfClasses):
    """Each base class brings its own covariance; low-rank factors will do."""

    name = "independent"
    words = "independent: Σ c²Σ_i"

    def make_block(self) -> Tensor:
        return self.classes.bank.class_factors(self.classes.union)

    def make_products(self) -> tuple[Tensor, Tensor]:
        # Only the diagonals, each (U,).
        return self.block.flatten(1).square().sum(dim=1), self.block.sum(dim=-1).square().sum(dim=1)

    def totals(self) -> tuple[Tensor, Tensor]:
        trace, total = (self.classes.shares.square() @ t for t in self.products())
        return trace, total

    def stacked(self, half: bool) -> tuple[Tensor, Tensor, Tensor] | None:
        p, d = self.block.shape[1:]
        if self.classes.c.shape[-1] * p > TALL * d:
            return None
        return self.half_block() if half else self.block, self.classes.local, self.classes.c

    def factor(self, half: bool) -> Tensor:
        classes, stacked = self.classes, self.stacked(half)
        t, s, k = classes.c.shape
        u, p, d = self.block.shape
        if stacked is not None:
            rows, local, c = stacked
            return rows[local].mul_(c[..., None, None].to(rows.dtype)).reshape(t, s, k * p, d)
        covariances = classes.bank.class_covariances() if classes.union is None else self.block.mT @ self.block
        dense = (classes.shares.square().reshape(t * s, u) @ covariances.reshape(u, d * d)).view(t, s, d, d)
        return root(dense)

    def mix(self, y: Tensor) -> Tensor:
        return y * self.classes.shares.square().mean(dim=1)[:, None, :, None]


def root(dense: Tensor) -> Tensor:
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
