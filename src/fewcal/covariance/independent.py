"""Σ' = Σ c_i² R_iᵀR_i: the covariance of the weighted sum if base classes were independent."""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal.covariance.base import OfClasses

# Stacked factors with more rows than this many times D are replaced by a D×D Cholesky factor.
_TALL = 4


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

    def factor(self, half: bool) -> Tensor:
        classes = self.classes
        t, s, k = classes.c.shape
        u, p, d = self.block.shape
        if k * p <= _TALL * d:
            block, c = (self.half_block(), classes.c.bfloat16()) if half else (self.block, classes.c)
            return block[classes.local].mul_(c[..., None, None]).reshape(t, s, k * p, d)
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
