r"""A linear discriminant whose covariance the support helps to estimate, with probabilities from leave-one-out.

    score_n(x) = γ (2 xᵀPμ_n − μ_nᵀPμ_n),     P = (V⁻¹ + RᵀR/ν)⁻¹

R are the deviations of support rows from the mean of their class, V a diagonal metric (the unit matrix, or what a prior
says of the directions), μ_n the class means (their own, or what a prior makes of them). ν is `ridge` times the ridge of
the oracle approximating shrinkage estimator (Chen, Wiesel, Eldar, Hero, IEEE TSP 2010): with one shot R is empty and
this is the nearest mean, and the more rows there are the more of their covariance counts. P is never built: with S rows
and D features everything is solved in the smaller of the two dimensions.

γ turns scores into log-probabilities. It has a prior guess; where classes have three rows or more (two, for means
without a prior), each row is scored as if it had not been there, and γ is the posterior mean under the likelihood of
those scores, on a logarithmic scale.
With one row a class, how alike rows of different classes are says how sure an answer can be (`one_shot_log_odds`).
However far ahead a class is, an example may have misled (`doubted`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from fewcal.gaussianize import l2_normalise
from fewcal.heads.linear import ClassShots, LinearHead, class_shots, membership

if TYPE_CHECKING:
    from torch import Tensor

# Log-odds of an example for its own class at one shot, at most, and by how much its cosine with others of its class
# exceeds that with other classes, at most. Both were fitted to one-shot tasks of validation classes.
MOST_LOG_ODDS, COSINE_GAP = 12.0, 0.33
# The variance of cosines between classes that is expected before any is seen, and how many cosines that is worth.
_USUAL_VARIANCE, _WORTH = 1 / 60, 1.0
# The chance that a row looks like the one example of any other class, and like that of one of them all, at most. Fitted
# to validation classes: the first to tasks of 5, 10, 20, 25 and 50 classes alike, beyond which nothing was measured.
_MISLED, _MOST_MISLED = 0.004, 0.2
# Values of γ that are tried, as multiples of the prior guess: powers of ten from, to, how many. Far up, as a guess from
# one example a class is a limit, and several hundred rows may say more. And the standard deviation of log γ's prior.
_STEPS = (-1.2, 1.5, 28)
_PRIOR_WIDTH = 0.5
# Numbers in memory while values of γ are tried, about.
_AT_ONCE = 1 << 20
# Of 1 − leverage, at least: a row that carries its own direction alone says nothing when it is left out.
_LEAST_LEFT = 0.05


def oas_ridge(trace: Tensor, square: Tensor, rows: Tensor, dim: int) -> Tensor:
    """ν `(T,)` with RᵀR + ν·I proportional to the OAS covariance; `trace` and `square` are tr RᵀR and tr (RᵀR)²."""
    t1, t2 = trace / rows, square / rows.square()
    share = ((1 - 2 / dim) * t2 + t1.square()) / ((rows + 1 - 2 / dim) * (t2 - t1.square() / dim)).clamp(min=1e-12)
    share = share.clamp(1e-3, 0.999)
    return share / (1 - share) * rows * t1 / dim


class Fitted(NamedTuple):
    """A classifier `head`, and the scores of each support row without it, `left_out (T, S, N)`, where there are any."""

    head: LinearHead
    left_out: Tensor | None


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
    worth : Tensor (D,)
        Rows that the prior of a mean is worth in each direction, 0 without one: how far leaving a row out moves μ.
    ridge : float
        In OAS ridges.
    unbiased : bool
        Whether the length of a mean is freed of what noise adds to it, for means without a prior: the class with most
        rows would otherwise have the shortest mean and win, and a row that is left out would be taken for a stranger.
    """

    support: Tensor
    labels: Tensor
    means: Tensor
    metric: Tensor
    worth: Tensor
    ridge: float
    unbiased: bool = False

    def head(self, guess: Tensor | float, shots: ClassShots | None = None) -> LinearHead:
        """The classifier; `guess (T,)` or a number is the prior guess of γ, `shots` what is known of the labels."""
        return self.fitted(guess, shots).head

    def fitted(self, guess: Tensor | float, shots: ClassShots | None = None) -> Fitted:
        """The classifier, and what it says of support rows that were left out."""
        n, dtype = self.means.shape[1], self.means.dtype
        shots = class_shots(self.labels, n, dtype) if shots is None else shots
        if shots.most <= 1:
            directions = self.means * self.metric
            return Fitted(_linear(directions, torch.linalg.vecdot(directions, self.means), guess), None)
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
                # The mean of the others is noisier; of two rows, beside what a prior tells, one says nothing.
                counts = (rows - 2).clamp(min=0) / (rows - 1).clamp(min=1)
            gamma = fit_gamma(scores, self.labels, counts, gamma)
            left_out = gamma[:, None, None] * scores
        return Fitted(_linear(directions, found.mm if noise is None else found.mm - noise, gamma), left_out)

    def _noise(self, nu: Tensor, found: RowProducts, shots: ClassShots) -> Tensor:
        """tr(PS)/K `(T, N)`, by which μᵀPμ is too large; S is judged by rows that P has not seen."""
        k, several = shots.of_rows[..., None], shots.of_rows[..., None] > 1
        more = k / (k - 1).clamp(min=1)
        unseen = more * found.rr / (1 - more / nu * found.rr).clamp(min=_LEAST_LEFT)
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
        f = 1 / (k + self.worth - 1).clamp(min=1e-6)
        return f, (k + self.worth) * f

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
        gain = change / (1 - change * found.rr).clamp(min=_LEAST_LEFT)

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


@cache
def _steps() -> Tensor:
    return torch.logspace(*_STEPS, device="cpu")


def fit_gamma(scores: Tensor, labels: Tensor, counts: Tensor, guess: Tensor) -> Tensor:
    """γ `(T,)`: its posterior mean, on a logarithmic scale, under scores `(T, S, N)` of rows that were left out.

    The prior of log γ is normal around that of `guess (T,)`; `counts (T, S)` is how much each row counts.

    >>> sure, labels = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), torch.tensor([[0, 1]])
    >>> rows, one = torch.ones(1, 2), torch.ones(1)
    >>> bool(fit_gamma(sure, labels, rows, one) > 1), bool(fit_gamma(-sure, labels, rows, one) < 1)
    (True, True)
    """
    steps = _steps().to(scores)
    ahead = scores - scores.gather(2, labels[..., None])  # how far each class is before the right one
    # Classes before rows, and the largest taken away once for all γ: sums over a short last axis are slow.
    behind = ahead.mT * guess[:, None, None]  # (T, N, S)
    most = behind.amax(dim=1)
    behind = behind - most[:, None]
    parts = steps.split(max(1, _AT_ONCE // behind.numel()))
    spread = torch.cat([(g[:, None, None, None] * behind).exp_().sum(dim=2).log_() for g in parts])
    loss = ((spread + steps[:, None, None] * most) * counts).sum(dim=2)  # (G, T)
    prior = 0.5 * (steps.log() / _PRIOR_WIDTH).square()
    share = torch.softmax(-loss - prior[:, None], dim=0)
    return guess * (share.T @ steps.log()).exp()


def misled(n_classes: int, shots: float) -> float:
    """ε of `doubted` for tasks of N classes with so many examples each: it takes more than one example to mislead.

    >>> misled(5, 1), misled(5, 10), misled(1000, 1)
    (0.004, 0.0004, 0.0002)
    """
    return min(_MISLED, _MOST_MISLED / n_classes) / max(shots, 1.0)


def doubted(scores: Tensor, shots: float) -> Tensor:
    r"""Scores `(..., N)` of probabilities that leave a chance ε (`misled`) to each class that is far behind.

        p_n ∝ exp(s_n) + ε·exp(m + 0.01·(s_n − m)),    m = max s

    Normal distributions know no row that is unlike its class, and no class that is much like another. Both are rare,
    and the more classes there are the more often one of them is: on validation classes the surest answers in tasks of
    20 classes with one example each were right less often than they said, in tasks of 5 classes as often. The
    hundredth keeps classes that are far behind in their order.

    >>> torch.softmax(doubted(torch.tensor([50.0, 0.0, 0.0]), shots=1), dim=0)
    tensor([0.9952, 0.0024, 0.0024])
    """
    behind = torch.lerp(scores.amax(dim=-1, keepdim=True), scores, 0.01)
    return torch.logaddexp(scores, behind.add_(math.log(misled(scores.shape[-1], shots))))


def squared_separation(means: Tensor) -> Tensor:
    """Mean squared distance between two class means of a task, `(T,)`, for `means (T, N, D)`.

    >>> squared_separation(torch.tensor([[[0.0], [3.0]]]))
    tensor([9.])
    """
    n = means.shape[1]
    scatter = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    return (2 * scatter / max(n - 1, 1)).clamp(min=1e-12)


def cosine_variance(rows: Tensor) -> Tensor:
    """Variance `(T,)` of the cosines between rows `(T, N, D)` of N classes, one each: how alike they are by chance.

    A few cosines do not tell it well, so one of the usual variance is counted with them.

    >>> cosine_variance(torch.eye(3)[None]).mul(60 * 3)
    tensor([1.])
    """
    rows, n = l2_normalise(rows), rows.shape[1]
    pairs = n * (n - 1) // 2
    cosines = (rows @ rows.mT).tril(-1)  # each pair once
    total, squares = cosines.sum(dim=(1, 2)), cosines.square().sum(dim=(1, 2))
    around = torch.addcmul(squares, total, total, value=-1 / max(pairs, 1))
    return (around + _WORTH * _USUAL_VARIANCE) / (max(pairs - 1, 0) + _WORTH)


def one_shot_log_odds(variance: Tensor, gap: float = COSINE_GAP) -> Tensor:
    r"""Log-odds `(T,)` of an example for its own class against another, where nothing but one example a class is known.

    Cosines scatter with `variance` v, those of a query with its own class around a mean that is higher by Δ = `gap`:
    the likelihood ratio of two normal distributions rises with slope Δ/v. Other things than chance make classes alike,
    and so

        log-odds = (1/12² + v²/Δ²)^(−1/2)

    In many dimensions v is small and the first term decides, in few the second.

    >>> one_shot_log_odds(torch.tensor([0.0, 0.1]))
    tensor([12.0000,  3.1819])
    """
    return (MOST_LOG_ODDS**-2 + (variance / gap).square()).rsqrt()
