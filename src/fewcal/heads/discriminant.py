r"""A linear discriminant whose covariance the support helps to estimate, with probabilities from leave-one-out.

    score_n(x) = γ (2 xᵀPμ_n − μ_nᵀPμ_n),     P = (V⁻¹ + RᵀR/ν)⁻¹

R are the deviations of support rows from the mean of their class, V a diagonal metric (the unit matrix, or what a prior
says of the directions), μ_n the class means (their own, or what a prior makes of them). ν is `ridge` times the ridge of
the oracle approximating shrinkage estimator (Chen, Wiesel, Eldar, Hero, IEEE TSP 2010): with one shot R is empty and
this is the nearest mean, and the more rows there are the more of their covariance counts. P is never built: with S rows
and D features everything is solved in the smaller of the two dimensions.

γ turns scores into log-probabilities. It has a prior guess; where classes have three rows or more, each row is scored
as if it had not been there, and γ is the posterior mean under the likelihood of those scores, on a logarithmic scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fewcal.heads.linear import LinearHead

# Values of γ that are tried, as multiples of the prior guess, and the standard deviation of the prior of log γ.
_STEPS = torch.logspace(-0.9, 0.9, 19)
_PRIOR_WIDTH = 0.5
# Of 1 − leverage, at least: a row that carries its own direction alone says nothing when it is left out.
_LEAST_LEFT = 0.05


def oas_ridge(trace: Tensor, square: Tensor, rows: Tensor, dim: int) -> Tensor:
    """ν `(T,)` with RᵀR + ν·I proportional to the OAS covariance; `trace` and `square` are tr RᵀR and tr (RᵀR)²."""
    t1, t2 = trace / rows, square / rows.square()
    share = ((1 - 2 / dim) * t2 + t1.square()) / ((rows + 1 - 2 / dim) * (t2 - t1.square() / dim)).clamp(min=1e-12)
    share = share.clamp(1e-3, 0.999)
    return share / (1 - share) * rows * t1 / dim


class RowProducts(NamedTuple):
    """aᵀPb of what belongs to each support row: its deviation r, itself x, the mean w of its class without it.

    `(T, S, 1)` each, and `rm (T, S, N)` of r with every class mean.
    """

    rr: Tensor
    rx: Tensor
    rm: Tensor
    rw: Tensor
    xw: Tensor
    ww: Tensor


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
    """

    support: Tensor
    labels: Tensor
    means: Tensor
    metric: Tensor
    worth: Tensor
    ridge: float

    def head(self, guess: Tensor | float) -> LinearHead:
        """The classifier; `guess (T,)` or a number is the prior guess of γ."""
        member = torch.nn.functional.one_hot(self.labels, self.means.shape[1]).to(self.support.dtype)  # (T, S, N)
        counts = member.sum(dim=1)
        gamma = torch.as_tensor(guess, dtype=member.dtype, device=member.device).expand(len(member))
        freedom = (counts - 1).clamp(min=0).sum(dim=1)
        if not bool((freedom > 0).any()):
            return self._linear(self.means * self.metric, gamma)
        freedom = freedom.clamp(min=1)
        shots = (member @ counts[..., None]).squeeze(-1)  # (T, S): rows of the class of each
        solve = self._in_rows if self.support.shape[1] <= self.support.shape[2] else self._in_features
        directions, nu, found = solve(member / counts.clamp(min=1)[:, None], shots, freedom)
        scores = self.left_out(directions, nu, found, shots)
        return self._linear(directions, fit_gamma(scores, self.labels, shots, gamma))

    def _linear(self, directions: Tensor, gamma: Tensor) -> LinearHead:
        bias = -(directions * self.means).sum(dim=-1)
        return LinearHead(2 * gamma[:, None, None] * directions, gamma[:, None] * bias)

    def _in_rows(self, member: Tensor, shots: Tensor, freedom: Tensor) -> tuple[Tensor, Tensor, RowProducts]:
        """Pμ `(T, N, D)`, ν `(T, 1, 1)` and products among rows, all from the products of rows and means with V.

        RVRᵀ + νI has the inverse M, P = V − VRᵀMRV, and so RP = νMRV.
        """
        s = self.support.shape[1]
        every = torch.cat([self.support, self.means], dim=1)
        weighted = every * self.metric
        gram = weighted @ every.mT
        centring = torch.eye(s, dtype=gram.dtype, device=gram.device) - member @ (member > 0).to(gram.dtype).mT
        rx, rm = centring @ gram[:, :s, :s], centring @ gram[:, :s, s:]
        rr = rx @ centring.mT
        nu = self._nu(rr, freedom)
        inverse = torch.cholesky_inverse(
            torch.linalg.cholesky(rr + nu * torch.eye(s, dtype=gram.dtype, device=gram.device))
        )
        w = self._without(shots)
        rw = centring @ (weighted[:, :s] @ w.mT)  # column i is what row i left behind
        solved = inverse @ rw

        def diagonal(a: Tensor, b: Tensor) -> Tensor:
            return (a * b).sum(dim=1)[..., None]

        inside = inverse @ rm
        found = RowProducts(
            rr=nu * diagonal(inverse, rr),
            rx=nu * diagonal(inverse, rx),
            rm=nu * inside,
            rw=nu * diagonal(inverse, rw),
            xw=_dot(weighted[:, :s], w) - diagonal(rx, solved),
            ww=_dot(w * self.metric, w) - diagonal(rw, solved),
        )
        return (self.means - (centring.mT @ inside).mT @ self.support) * self.metric, nu, found

    def _in_features(self, member: Tensor, shots: Tensor, freedom: Tensor) -> tuple[Tensor, Tensor, RowProducts]:
        """The same where rows outnumber features: P is the inverse of a D×D matrix."""
        x = self.support
        index = self.labels[..., None].expand(x.shape)
        r = x - (member.mT @ x).gather(1, index)
        scaled = r * self.metric.sqrt()
        nu = self._nu(scaled.mT @ scaled, freedom)
        lower = torch.linalg.cholesky(r.mT @ r / nu + torch.diag(1 / self.metric))
        w = self._without(shots)
        directions, moved, solved = (torch.cholesky_solve(v.mT, lower).mT for v in (self.means, r, w))
        rr, rx, rw = _dot(moved, r), _dot(moved, x), _dot(moved, w)
        return directions, nu, RowProducts(rr, rx, moved @ self.means.mT, rw, _dot(x, solved), _dot(w, solved))

    def _without(self, shots: Tensor) -> Tensor:
        """The mean of the class of each row without it, `(T, S, D)`."""
        total = shots[..., None] + self.worth
        own = self.means.gather(1, self.labels[..., None].expand(self.support.shape))
        return (total * own - self.support) / (total - 1).clamp(min=1e-6)

    def _nu(self, gram: Tensor, freedom: Tensor) -> Tensor:
        trace, square = gram.diagonal(dim1=1, dim2=2).sum(dim=-1), gram.square().sum(dim=(1, 2))
        dim = self.support.shape[2]
        return (self.ridge * oas_ridge(trace, square, freedom, dim)).clamp(min=1e-12)[:, None, None]

    def left_out(self, directions: Tensor, nu: Tensor, found: RowProducts, shots: Tensor) -> Tensor:
        """Scores of each support row by the discriminant without it, `(T, S, N)`, by Sherman and Morrison's formula.

        Without row i, RᵀR is less by K/(K−1)·r rᵀ, and of the means only that of its own class moves, to w.
        """
        k = shots[..., None]
        change = k / (k - 1).clamp(min=1) / nu  # (T, S, 1)
        gain = change / (1 - change * found.rr).clamp(min=_LEAST_LEFT)

        def updated(plain: Tensor, across: Tensor) -> Tensor:
            return plain + gain * (2 * found.rx * across - across.square())

        plain = 2 * self.support @ directions.mT - (directions * self.means).sum(dim=-1)[:, None]
        own = updated(2 * found.xw - found.ww, found.rw)
        return updated(plain, found.rm).scatter(2, self.labels[..., None], own)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)[..., None]


def fit_gamma(scores: Tensor, labels: Tensor, shots: Tensor, guess: Tensor) -> Tensor:
    """γ `(T,)`: its posterior mean, on a logarithmic scale, under scores `(T, S, N)` of rows that were left out.

    The prior of log γ is normal around that of `guess (T,)`. A row of a class of K counts (K − 2)/(K − 1): the mean of
    the others is noisier than that of all, and for K = 2 nothing can be told.

    >>> sure, labels = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), torch.tensor([[0, 1]])
    >>> rows, one = torch.full((1, 2), 9.0), torch.ones(1)
    >>> bool(fit_gamma(sure, labels, rows, one) > 1), bool(fit_gamma(-sure, labels, rows, one) < 1)
    (True, True)
    """
    steps = _STEPS.to(scores)
    ahead = scores - scores.gather(2, labels[..., None])  # how far each class is before the right one
    counts = (shots - 2).clamp(min=0) / (shots - 1).clamp(min=1)
    losses = [(torch.logsumexp(g[:, None, None] * ahead, dim=2) * counts).sum(dim=1) for g in steps[:, None] * guess]
    prior = 0.5 * (steps.log() / _PRIOR_WIDTH).square()
    share = torch.softmax(-torch.stack(losses) - prior[:, None], dim=0)  # (G, T)
    return guess * (share.T @ steps.log()).exp()


def squared_separation(means: Tensor) -> Tensor:
    """Mean squared distance between two class means of a task, `(T,)`, for `means (T, N, D)`.

    >>> squared_separation(torch.tensor([[[0.0], [3.0]]]))
    tensor([9.])
    """
    n = means.shape[1]
    scatter = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    return (2 * scatter / max(n - 1, 1)).clamp(min=1e-12)
