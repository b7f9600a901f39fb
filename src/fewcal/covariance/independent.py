"""Σ' = Σ c_i² R_iᵀR_i: the covariance of the weighted sum if base classes were independent."""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal._utils.memo import Memo
from fewcal._utils.randomness import TaskRandom
from fewcal.covariance.base import NoiseSource, OfClasses
from fewcal.factor_gaussian import root

# Stacked factors with more rows than this many times D are replaced by a D×D Cholesky factor.
TALL = 4
# Added to the diagonal before a root is taken, in units of it.
JITTER = 1e-6
# Class covariances of more numbers than this are not kept for drawing (256 MB), nor are roots of more (128 MB).
MAX_COVARIANCE_NUMBERS, MAX_ROOT_NUMBERS = 1 << 26, 1 << 25
# Blocks of columns in which points are multiplied with a triangle: what is below the diagonal is left out.
TRIANGLE_BLOCKS = 8


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
        classes, (u, p, d) = self.classes, self.block.shape
        t, s, k = classes.c.shape
        if k * p > TALL * d:
            covariances = classes.bank.class_covariances() if classes.union is None else self.block.mT @ self.block
            dense = (classes.shares.square().reshape(t * s, u) @ covariances.reshape(u, d * d)).view(t, s, d, d)
            return root(dense, JITTER)
        rows, c = self.half_block() if half else self.block, classes.c
        c = c[..., None, None].to(rows.dtype)
        if bool((c == c[:1, :1, :1]).all()):  # as in DC: the classes are multiplied, not their copies
            return (rows * c[0, 0, 0])[classes.local].reshape(t, s, k * p, d)
        return rows[classes.local].mul_(c).reshape(t, s, k * p, d)

    def noise_source(self, n: int, half: bool) -> NoiseSource | None:
        """R of the classes in play or, where that is faster, Σ_i of all base classes; see `CovarianceMode`.

        By roots of sums of Σ_i points take D³ + 1.25·n·D² operations in place of 2·n·k·P·D.
        """
        bank, k = self.classes.bank, self.classes.c.shape[-1]
        # By the bank alone, whatever classes a batch of tasks names: it decides which random numbers are drawn.
        p, d = int(bank.counts.max()), bank.dim
        if bank.device.type != "cpu" or k * p > TALL * d:
            return None
        by_roots = not half and d * d + 1.25 * n * d < 2 * n * k * p and len(bank) * d * d <= MAX_COVARIANCE_NUMBERS
        return (bank.class_covariances() if by_roots else self.half_block() if half else self.block), by_roots

    def add_noise(self, out: Tensor, random: TaskRandom, source: NoiseSource) -> None:
        """See `CovarianceMode`; class after class, since copies of their factors would take longer than the points."""
        (matrices, by_roots), classes = source, self.classes
        roots, counts = classes.bank.memo.get("roots of sums", Memo), classes.bank.counts
        local = torch.arange(len(classes.bank)) if classes.union is None else classes.union
        for task, (index, shares) in enumerate(zip(classes.index.tolist(), classes.c.tolist(), strict=True)):
            own = random.part(slice(task, task + 1))
            for points, names, weights in zip(out[task], index, shares, strict=True):
                pairs = tuple(sorted(zip(names, weights, strict=True)))
                if by_roots:
                    _add_rooted(points, matrices, pairs, own, roots)
                    continue
                for i, weight in pairs:
                    rows = matrices[int(torch.searchsorted(local, i))][: int(counts[i])]
                    latent = own.normal(len(points), len(rows), dtype=out.dtype)[0].mul_(weight)
                    if rows.dtype == out.dtype:
                        points.addmm_(latent, rows)
                    else:
                        points.add_(torch.mm(latent.to(rows.dtype), rows))

    def mix(self, y: Tensor) -> Tensor:
        return y * self.classes.shares.square().mean(dim=1)[:, None, :, None]


def _add_rooted(
    points: Tensor, covariances: Tensor, pairs: tuple[tuple[int, float], ...], random: TaskRandom, roots: Memo
) -> None:
    """Add to `points (n, D)` noise with covariance Σ c_j²·Σ_j for pairs (j, c_j), by its triangular root.

    `roots` keeps the last roots: support points of a class often have the same neighbours.
    """
    d = points.shape[1]
    factor, triangular = roots.get(pairs, lambda: _root_of_sum(covariances, pairs))
    roots.keep_last(max(1, MAX_ROOT_NUMBERS // d**2))
    latent, block = random.normal(len(points), d, dtype=points.dtype)[0], -(-d // TRIANGLE_BLOCKS)
    for low in range(0, d, block):
        rows, columns = slice(low + block if triangular else d), slice(low, low + block)
        points[:, columns].addmm_(latent[:, rows], factor[rows, columns])


def _root_of_sum(covariances: Tensor, pairs: tuple[tuple[int, float], ...]) -> tuple[Tensor, bool]:
    """F with FᵀF = Σ c_j²·Σ_j, and whether it is upper triangular."""
    dense = torch.zeros_like(covariances[0])
    for i, weight in pairs:
        dense.add_(covariances[i], alpha=weight**2)
    dense.diagonal().mul_(1 + JITTER)
    lower, failed = torch.linalg.cholesky_ex(dense)
    return (root(dense[None], JITTER)[0], False) if failed else (lower.mT, True)
