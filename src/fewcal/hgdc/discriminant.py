r"""A linear discriminant whose covariance the support helps to estimate.

    score_n(x) = γ (2 xᵀPμ_n − μ_nᵀPμ_n),     P = (V⁻¹ + RᵀR/ν)⁻¹

R are the deviations of support rows from the mean of their class, V is a diagonal metric (the precision of a prior, or
the unit matrix), μ_n are class means (posterior, or their own). ν is `ridge` times the ridge of the OAS estimator
(`fewcal.covariance.oas`): with one shot R is empty, and the more rows there are, the more their covariance counts. P is
never built: with S rows and D features everything is solved in the smaller of the two dimensions. γ comes from
`fewcal.hgdc.temperature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fewcal.covariance.oas import oas_share
from fewcal.heads.linear import ClassShots, LinearHead, class_shots, membership
from fewcal.hgdc.temperature import fit_gamma

# 1 − leverage is at least this: a numerical guard for a row that alone carries its direction.
MIN_ONE_MINUS_LEVERAGE = 0.05


def oas_ridge(trace: Tensor, square: Tensor, freedom: Tensor, dim: int) -> Tensor:
    """ν `(T,)` with RᵀR + ν·I proportional to the OAS covariance; `trace` and `square` are tr RᵀR and tr (RᵀR)²."""
    share = oas_share(trace / freedom, square / freedom.square(), freedom, dim).clamp(min=1e-3)
    return share / (1 - share) * trace / dim


class Fitted(NamedTuple):
    """A classifier and what it consists of.

    Attributes
    ----------
    head : LinearHead
    gamma : Tensor (T,) or float
        γ.
    left_out : Tensor (T, S, N) or None
        Log-odds of each support row left out, where there are any.
    """

    head: LinearHead
    gamma: Tensor | float
    left_out: Tensor | None = None


class RowProducts(NamedTuple):
    """aᵀPb of the class means m and of what belongs to each support row.

    A row has its deviation r, itself x, and the mean w of its class without it: `rr`, `rx`, `rw`, `xw`, `ww` are
    `(T, S, 1)`, `rm` and `xm` `(T, S, N)` of each row with every class mean, `mm (T, N)` of every mean with itself.
    """

    rr: Tensor
    rx: Tensor
    rm: Tensor
    rw: Tensor
    xm: Tensor
    xw: Tensor
    ww: Tensor
    mm: Tensor


@dataclass(frozen=True, eq=False)
class Discriminant:
    """The parts of a discriminant before γ: a batch of tasks, what stands for their class means, and the metric.

    Attributes
    ----------
    support : Tensor (T, S, D)
    labels : Tensor (T, S)
    means : Tensor (T, N, D)
        μ.
    metric : Tensor (D,)
        The diagonal of V.
    kappa : Tensor (D,)
        Pseudo-count of the prior of a mean in each direction, 0 without one: leaving a row out moves μ the less.
    ridge : float
        In OAS ridges.
    width : float
        Standard deviation of the prior of log γ.
    unbiased : bool
        Subtract from the squared length of a mean what noise adds to it, for means without a prior: the class with most
        rows would otherwise have the shortest mean and win.
    """

    support: Tensor
    labels: Tensor
    means: Tensor
    metric: Tensor
    kappa: Tensor
    ridge: float
    width: float = 0.5
    unbiased: bool = False

    def fit(self, guess: Tensor | float, shots: ClassShots | None = None) -> Fitted:
        """Fit the classifier; `guess (T,)` or a number is the prior guess of γ, `shots` the counts of the labels."""
        n, dtype = self.means.shape[1], self.means.dtype
        shots = class_shots(self.labels, n, dtype) if shots is None else shots
        if shots.most <= 1:
            directions = self.means * self.metric
            return Fitted(_linear(directions, torch.linalg.vecdot(directions, self.means), guess), guess)
        gamma = guess if isinstance(guess, torch.Tensor) else self.means.new_full((len(self.means),), guess)
        solve = self._in_rows if self.support.shape[1] <= self.support.shape[2] else self._in_features
        directions, nu, found = solve(membership(self.labels, n, dtype), shots)
        noise = self._noise(nu, found, shots) if self.unbiased else None
        left_out = None
        if shots.most > 2 or self.unbiased:
            scores, rows = self.left_out(nu, found, shots, noise), shots.of_rows
            if self.unbiased:
                # Left out, a row lies 1 + 1/(K − 1) variances from the mean of its class, a new one 1 + 1/K.
                scores, counts = scores * (1 - rows[..., None] ** -2), (rows > 1).to(scores.dtype)
            else:
                # The mean of K − 1 rows is noisier; the first row of a class is used up by the prior.
                counts = (rows - 2).clamp(min=0) / (rows - 1).clamp(min=1)
            gamma = fit_gamma(scores, self.labels, counts, gamma, self.width)
            left_out = gamma[:, None, None] * scores
        head = _linear(directions, found.mm if noise is None else found.mm - noise, gamma)
        return Fitted(head, gamma, left_out)

    def multiply(self, rows: Tensor) -> Tensor:
        """The product of P with rows `(T, R, D)`."""
        root = self.metric.sqrt()
        if self._solved is None:
            return rows * self.metric
        scaled = rows * root
        return torch.baddbmm(scaled, scaled @ self._solved.mT, self._solved, alpha=-1) * root

    @cached_property
    def _solved(self) -> Tensor | None:
        """L⁻¹R√V `(T, S, D)` with LLᵀ = RVRᵀ + νI, None with one shot."""
        shots = class_shots(self.labels, self.means.shape[1], self.means.dtype)
        if shots.most <= 1:
            return None
        own = shots.means(self.support).gather(1, self.labels[..., None].expand(self.support.shape))
        r = (self.support - own) * self.metric.sqrt()
        gram = r @ r.mT
        eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        lower = torch.linalg.cholesky(gram + self._nu(gram, shots) * eye)
        return torch.linalg.solve_triangular(lower, r, upper=False)

    def _noise(self, nu: Tensor, found: RowProducts, shots: ClassShots) -> Tensor:
        """tr(PS)/K `(T, N)`, by which μᵀPμ is too large; S is judged by rows that P has not seen."""
        k, several = shots.of_rows[..., None], shots.of_rows[..., None] > 1
        more = k / (k - 1).clamp(min=1)
        unseen = more * found.rr / (1 - more / nu * found.rr).clamp(min=MIN_ONE_MINUS_LEVERAGE)
        return (unseen * several).sum(dim=1) / several.sum(dim=1).clamp(min=1) / shots.counts.clamp(min=1)

    def _in_rows(self, member: Tensor, shots: ClassShots) -> tuple[Tensor, Tensor, RowProducts]:
        """Pμ `(T, N, D)`, ν `(T, 1, 1)` and the products, all from those of rows with rows and means.

        RVRᵀ + νI has the inverse M, P = V − VRᵀMRV, and so RP = νMRV. Rows and means are multiplied by √V, then V is
        the unit matrix. The mean of class n without row i is w = e∘μ_n − f∘x_i with e = (K + κ)/(K + κ − 1) and
        f = 1/(K + κ − 1): f∘x and e∘μ stand beside x and μ in one product, and no w is ever made.
        """
        t, s, d = self.support.shape
        n, root = self.means.shape[1], self.metric.sqrt()
        f, e = self._without(shots)
        every = self.support.new_empty(t, 2 * s + 3 * n, d)
        x, fx, means, em, fem = every.split([s, s, n, n, n], dim=1)
        torch.mul(self.support, root, out=x)
        torch.mul(x, f if shots.even else f.gather(1, self.labels[..., None].expand(x.shape)), out=fx)
        torch.mul(self.means, root, out=means)
        torch.mul(means, e, out=em)
        torch.mul(em, f, out=fem)
        inner = every @ x.mT  # (T, 2S + 3N, S); the other way round is slower
        eye = torch.eye(s, dtype=inner.dtype, device=inner.device)
        centring = eye - (member / shots.of_rows[..., None]) @ member.mT  # R is this times x
        _, xfx, mx, emx, femx = inner.split([s, s, n, n, n], dim=1)
        xr, fxr, mr, emr, _ = (inner @ centring).split([s, s, n, n, n], dim=1)
        rr = centring @ xr
        nu = self._nu(rr, shots)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(rr + nu * eye))
        own = self.labels[:, None]
        wr = member @ emr - fxr  # row i is of what row i left behind
        xw = emx.gather(1, own).mT - _diagonal(xfx)
        ww = _squares(em)[..., None].gather(1, own.mT) - 2 * femx.gather(1, own).mT + _squares(fx)[..., None]
        inside, solved = mr @ inverse, wr @ inverse
        found = RowProducts(
            rr=nu * (1 - nu * _diagonal(inverse)),  # M(RVRᵀ + νI) = I
            rx=nu * _dot(inverse, xr),
            rm=nu * inside.mT,
            rw=nu * _diagonal(solved),
            xm=mx.mT - xr @ inside.mT,
            xw=xw - _dot(xr, solved),
            ww=ww - _dot(wr, solved),
            mm=_squares(means) - torch.linalg.vecdot(mr, inside),
        )
        return torch.baddbmm(means, inside @ centring, x, alpha=-1) * root, nu, found

    def _in_features(self, member: Tensor, shots: ClassShots) -> tuple[Tensor, Tensor, RowProducts]:
        """The same where rows outnumber features: P is the inverse of a D×D matrix."""
        x, means = self.support, self.means
        index = self.labels[..., None].expand(x.shape)
        own = (member.mT @ x) / shots.counts.clamp(min=1)[..., None]
        r = x - own.gather(1, index)
        scaled = r * self.metric.sqrt()
        nu = self._nu(scaled.mT @ scaled, shots)
        lower = torch.linalg.cholesky(r.mT @ r / nu + torch.diag(1 / self.metric))
        f, e = (v.expand(len(x), -1, -1).expand(means.shape).gather(1, index) for v in self._without(shots))
        w = e * means.gather(1, index) - f * x
        directions, moved, solved = (torch.cholesky_solve(v.mT, lower).mT for v in (means, r, w))
        found = RowProducts(
            rr=_dot(moved, r),
            rx=_dot(moved, x),
            rm=moved @ means.mT,
            rw=_dot(moved, w),
            xm=x @ directions.mT,
            xw=_dot(x, solved),
            ww=_dot(w, solved),
            mm=torch.linalg.vecdot(directions, means),
        )
        return directions, nu, found

    def _without(self, shots: ClassShots) -> tuple[Tensor, Tensor]:
        """f and e, `(T, N, D)`: without its row x a class has the mean e∘μ − f∘x. `(1, 1, D)` for even shots."""
        k = shots.counts[:1, :1, None] if shots.even else shots.counts[..., None]
        f = 1 / (k + self.kappa - 1).clamp(min=1e-6)
        return f, (k + self.kappa) * f

    def _nu(self, gram: Tensor, shots: ClassShots) -> Tensor:
        freedom = (shots.counts - 1).clamp(min=0).sum(dim=1).clamp(min=1)
        trace, square = gram.diagonal(dim1=1, dim2=2).sum(dim=-1), gram.square().sum(dim=(1, 2))
        dim = self.support.shape[2]
        return (self.ridge * oas_ridge(trace, square, freedom, dim)).clamp(min=1e-12)[:, None, None]

    def left_out(self, nu: Tensor, found: RowProducts, shots: ClassShots, noise: Tensor | None = None) -> Tensor:
        """Scores of each support row by the discriminant without it, `(T, S, N)`, by Sherman and Morrison's formula.

        Without row i, RᵀR is less by K/(K−1)·r rᵀ, and of the means only that of its own class moves, to w. Means are
        freed of `noise (T, N)` in their squared length, of which w, the mean of fewer rows, has K/(K−1) times as much.
        """
        k = shots.of_rows[..., None]
        change = k / (k - 1).clamp(min=1) / nu  # (T, S, 1)
        gain = change / (1 - change * found.rr).clamp(min=MIN_ONE_MINUS_LEVERAGE)

        def updated(plain: Tensor, across: Tensor) -> Tensor:
            return plain + gain * (2 * found.rx * across - across.square())

        own = updated(2 * found.xw - found.ww, found.rw)
        squares = found.mm
        if noise is not None:
            squares = squares - noise
            own = own + noise.gather(1, self.labels)[..., None] * k / (k - 1).clamp(min=1)
        return updated(2 * found.xm - squares[:, None], found.rm).scatter(2, self.labels[..., None], own)


def _linear(directions: Tensor, squares: Tensor, gamma: Tensor | float) -> LinearHead:
    """The classifier of Pμ `(T, N, D)`, μᵀPμ `(T, N)` and γ, `(T,)` or a number."""
    if isinstance(gamma, torch.Tensor):
        return LinearHead(directions * (2 * gamma)[:, None, None], -gamma[:, None] * squares)
    return LinearHead(directions * (2 * gamma), squares * -gamma)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)[..., None]


def _squares(a: Tensor) -> Tensor:
    """Squared lengths; a product with itself would be written to memory first."""
    return torch.linalg.vector_norm(a, dim=-1).square()


def _diagonal(a: Tensor) -> Tensor:
    return a.diagonal(dim1=1, dim2=2)[..., None]
