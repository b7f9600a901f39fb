"""Σ' = FᵀF with F = Σ c_i R_i: the covariance of the weighted sum, where cross-class covariance counts."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from fewcal.covariance.base import OfClasses


class Joint(OfClasses):
    """Row j of one base class is paired with row j of every other (eq. 4-5 as printed)."""

    name = "joint"
    words = "joint: rows paired by index, classes cut to {size}"

    def make_block(self) -> Tensor:
        return self.classes.bank.paired_rows(self.classes.common_size, self.classes.union)

    def make_products(self) -> tuple[Tensor, Tensor]:
        flat, sums = self.block.flatten(1), self.block.sum(dim=-1)
        return flat @ flat.T, sums @ sums.T  # each (U, U)

    def totals(self) -> tuple[Tensor, Tensor]:
        shares = self.classes.shares
        trace, total = (((shares @ t) * shares).sum(dim=-1) for t in self.products())
        return trace, total

    def factor(self, half: bool) -> Tensor:
        classes, block = self.classes, self.block
        t, s, k = classes.c.shape
        u, p, d = block.shape
        if u <= 8 * k:
            shares, flat = classes.shares.reshape(t * s, u), block.reshape(u, p * d)
            if half:
                shares, flat = shares.bfloat16(), self.half_block().reshape(u, p * d)
            return (shares @ flat).view(t, s, p, d)
        out, local = classes.c.new_zeros(t, s, p, d), classes.local
        for j in range(k):
            out.addcmul_(block[local[..., j]], classes.c[..., j, None, None])
        return out

    @cached_property
    def _mixing(self) -> tuple[Tensor, ...]:
        """CᵀC/S `(T, 1, U, U)`, how a task mixes the base classes on average over its points; as two factors if few."""
        shares = self.classes.shares[:, None]
        mean = shares.mT / shares.shape[-2]
        return (shares, mean) if 2 * shares.shape[-2] <= shares.shape[-1] else (mean @ shares,)

    def mix(self, y: Tensor) -> Tensor:
        for matrix in self._mixing:
            y = matrix @ y
        return y
