"""Σ' = Σ c_i² R_iᵀR_i: the covariance of the weighted sum if base classes were independent."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fewcal._utils.cpu_kernels import panels_of, point_kernels
from fewcal._utils.memo import Memo
from fewcal._utils.randomness import TaskRandom
from fewcal.covariance.base import OfClasses
from fewcal.factor_gaussian import root

# Stacked factors with more rows than this many times D are replaced by a D×D Cholesky factor.
TALL = 4
# Numbers of all class covariances that are kept for drawing, at most: 256 MB.
_MOST_DENSE = 1 << 26
# What is added to the diagonal before a root is taken, in units of it.
_JITTER = 1e-6
# Numbers of all roots that are kept, at most: 128 MB.
_MOST_ROOTS = 1 << 25
# Parts in which points are multiplied with a triangular root.
_BLOCKS = 8


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
        return root(dense, _JITTER)

    def covariances(self, n: int) -> Tensor | None:
        """Σ_i of all base classes `(C, D, D)`, where n points a support point are drawn faster with a root of Σ'.

        That takes about D³ + 1.25·n·D² operations instead of 2·n·k·P·D.
        """
        bank, k = self.classes.bank, self.classes.c.shape[-1]
        # By the bank alone, whatever classes a batch of tasks names: it decides which random numbers are drawn.
        p, d = int(bank.counts.max()), bank.dim
        if k * p > TALL * d or len(bank) * d * d > _MOST_DENSE or 2 * n * k * p < d * d + 1.25 * n * d:
            return None
        return bank.class_covariances()

    def mix(self, y: Tensor) -> Tensor:
        return y * self.classes.shares.square().mean(dim=1)[:, None, :, None]


def add_rooted(
    out: Tensor, covariances: Tensor, index: Tensor, c: Tensor, random: TaskRandom, roots: Memo | None = None
) -> None:
    """Add to points `out (T, S, n, D)` on a CPU normal noise with covariance Σ c_j²·Σ_j, by its triangular root.

    As `add_stacked` does with `covariances (C, D, D)` in place of rows, and the same `index` and `c (T, S, k)`. `roots`
    keeps the last roots: support points of a class often have the same neighbours.
    """
    roots = Memo() if roots is None else roots
    d, block = out.shape[-1], max(1, -(-out.shape[-1] // _BLOCKS))
    for task, (classes, shares) in enumerate(zip(index.tolist(), c.tolist(), strict=True)):
        own = random.part(slice(task, task + 1))
        for points, named, weights in zip(out[task], classes, shares, strict=True):
            key, fused = tuple(sorted(zip(named, weights, strict=True))), point_kernels(points)
            find = partial(_triangular_root, covariances, key, fused is not None)
            upper, triangular = roots.get((fused is not None, key), find)
            roots.keep_last(max(1, _MOST_ROOTS // d**2))
            latent = own.normal(len(points), d, dtype=out.dtype)[0]
            if fused is not None and triangular:
                fused.add_triangular(points, latent, upper)
                continue
            for low in range(0, d, block):  # what is below the diagonal is 0, and is not multiplied
                part = slice(low, low + block)
                rows = slice(low + block if triangular else d)
                points[:, part].addmm_(latent[:, rows], upper[rows, part])


def _triangular_root(
    covariances: Tensor, classes: tuple[tuple[int, float], ...], in_panels: bool
) -> tuple[Tensor, bool]:
    """F with FᵀF = Σ c_j²·Σ_j for pairs (j, c_j), and whether it is upper triangular, then `in_panels` if asked for."""
    dense = torch.zeros_like(covariances[0])
    for i, w in classes:
        dense.add_(covariances[i], alpha=w**2)
    dense.diagonal().mul_(1 + _JITTER)
    lower, failed = torch.linalg.cholesky_ex(dense)
    if failed:
        return root(dense[None], _JITTER)[0], False
    return panels_of(lower.mT) if in_panels else lower.mT, True
