r"""Unlabelled rows: expectation maximization over the posterior of the class means.

M unlabelled rows x stand beside the support. With responsibilities r and the weight η of such a row, in examples,

    μ_n = (A_n + κ p_n)/(k_n + κ),    k_n = K_n + η Σ r_xn,    A_n = Σ labelled rows + η Σ r_xn x,
    r_x = softmax(log z_n + s_n(x))   with s_n the scores of the classifier at these means.

Two things keep this honest:

- r_x and the answer to x are made *without x* (collapsed: x leaves A, k and z before it is scored). A row cannot
  confirm its own answer, and one row alone has the answer of the inductive classifier;
- z_n is the probability that class n is present at all. With q_x = e^{s_n(x)} / Σ_{m≠n} z_m e^{s_m(x)} and Z the number
  of other classes, Σ_{m≠n} z_m,

      logit z_n = a + η Σ_x [log(1 + q_x) + log(Z / (Z + 1))].

  This is the likelihood ratio of the rows with and without the class. Shares of present classes are not estimated: the
  share of a class with an untypical example would shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fewcal.heads.linear import LinearHead, class_shots
from fewcal.hgdc.discriminant import Discriminant
from fewcal.hgdc.mixture import cosine_scale, plain_discriminant
from fewcal.hgdc.prior import MIN_VARIANCE, Prior, task_offset

# η, the weight of an unlabelled row, and a, the log-odds that a class is present: docs/method.md.
ROW_WEIGHT, PRESENCE_LOG_ODDS = 0.2, 2.0
# Updates of z with the inductive scores, then of everything.
WARM_UP, STEPS = 3, 6


class View(Protocol):
    """A classifier whose scores follow its class means."""

    def scores(self, r: Tensor) -> Tensor:
        """Scores `(T, M, N)` of the unlabelled rows, each without itself, given their weights `r (T, M, N)`."""

    def head(self, r: Tensor) -> LinearHead:
        """The classifier of new rows, given all."""


@dataclass(frozen=True, eq=False)
class GaussianView:
    """Scores γ (2 xᵀPμ − μᵀPμ), with means that a prior shrinks, or without one.

    Attributes
    ----------
    model : Discriminant
        Of the support; its metric is that of the final number of rows.
    gamma : Tensor (T, 1, 1)
    centre, length : Tensor (T, 1, D), (T, 1, 1)
        What is subtracted from rows, and what they are then divided by.
    total, counts : Tensor (T, N, D), (T, N, 1)
        Sum and number of the support rows of each class.
    rows : Tensor (T, M, D)
        Unlabelled rows, centred and scaled.
    prior : Prior or None
    noise : Tensor (T, N) or None
        What the noise of the mean of the support adds to μᵀPμ.
    """

    model: Discriminant
    gamma: Tensor
    centre: Tensor
    length: Tensor
    total: Tensor
    counts: Tensor
    rows: Tensor
    prior: Prior | None = None
    noise: Tensor | None = None

    @cached_property
    def multiply(self) -> Callable[[Tensor], Tensor]:
        """The product of P with rows."""
        return self.model.multiplication()

    @cached_property
    def squares(self) -> Tensor:
        """xᵀPx of the unlabelled rows, `(T, M, 1)`."""
        return torch.linalg.vecdot(self.multiply(self.rows), self.rows)[..., None]

    def _means(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """μ `(T, N, D)`, k `(T, N, 1)` and Pμ."""
        k, total = self.counts + r.sum(dim=1)[..., None], torch.baddbmm(self.total, r.mT, self.rows)
        mean = total / k if self.prior is None else self.prior.posterior(total / k, k[..., 0]).mean
        return mean, k, self.multiply(mean)

    def _lengths(self, mean: Tensor, k: Tensor, directions: Tensor) -> Tensor:
        lengths = torch.linalg.vecdot(directions, mean)
        return lengths if self.noise is None else lengths - self.noise * (self.counts / k)[..., 0]

    def scores(self, r: Tensor) -> Tensor:
        mean, k, directions = self._means(r)
        across = self.rows @ directions.mT
        lengths = self._lengths(mean, k, directions)[:, None]
        kappa = 0.0 if self.prior is None else float(1 / self.prior.psi.mean())
        # Without row x the mean is μ + f (μ − x).
        f = r / (k.mT + kappa - r).clamp(min=1e-6)
        squares = self.squares
        own = lengths + 2 * f * (lengths - across) + f.square() * (lengths - 2 * across + squares)
        return self.gamma * (2 * (across + f * (across - squares)) - own)

    def head(self, r: Tensor) -> LinearHead:
        mean, k, directions = self._means(r)
        lengths = self._lengths(mean, k, directions)
        weight = 2 * self.gamma / self.length * directions
        return LinearHead(weight, -self.gamma[..., 0] * lengths).shifted(self.centre)


@dataclass(frozen=True, eq=False)
class CosineView:
    """Scores 2γ xᵀA/|A| of the support-only classifier with one example a class.

    Attributes
    ----------
    scale : Tensor (T, 1, 1)
        2γ over the length of a row.
    centre, total, rows
        As of `GaussianView`.
    """

    scale: Tensor
    centre: Tensor
    total: Tensor
    rows: Tensor

    def scores(self, r: Tensor) -> Tensor:
        total = torch.baddbmm(self.total, r.mT, self.rows)
        across, squares = self.rows @ total.mT, torch.linalg.vecdot(self.rows, self.rows)[..., None]
        lengths = torch.linalg.vecdot(total, total)[:, None] - 2 * r * across + r.square() * squares
        return self.scale * (across - r * squares) * lengths.clamp(min=MIN_VARIANCE).rsqrt()

    def head(self, r: Tensor) -> LinearHead:
        total = torch.baddbmm(self.total, r.mT, self.rows)
        weight = self.scale * torch.nn.functional.normalize(total, dim=-1)
        return LinearHead(weight, weight.new_zeros(weight.shape[:2])).shifted(self.centre)


def prior_view(prior: Prior, support: Tensor, labels: Tensor, n: int, rows: Tensor, scatter: float) -> GaussianView:
    """HGDC of support `(T, S, D)` with labels `(T, S)` of n classes, and unlabelled rows `(T, M, D)`."""
    shots = class_shots(labels, n, support.dtype)
    means, counts = shots.means(support), shots.counts[..., None]
    offset = prior.offset(means, shots.average)
    found = prior.posterior(means - offset, shots.each)
    model = Discriminant(support - offset, labels, found.mean, found.precision, found.kappa, scatter)
    gamma = torch.as_tensor(model.fit(prior.gamma, shots).gamma).to(support).reshape(-1, 1, 1)
    # The variance of new rows falls as means become certain; each answer is without its own row.
    k = shots.average + ROW_WEIGHT * (rows.shape[1] - 1) / n
    model = replace(model, metric=(k + prior.kappa) / (k + prior.kappa + 1))
    one = torch.ones_like(gamma)
    return GaussianView(model, gamma, offset, one, (means - offset) * counts, counts, rows - offset, prior)


def plain_view(support: Tensor, labels: Tensor, n: int, rows: Tensor, scatter: float) -> View:
    """The support-only classifier of rows of unit length; shapes as for `prior_view`."""
    shots = class_shots(labels, n, support.dtype)
    means, counts = shots.means(support), shots.counts[..., None]
    centre = task_offset(means)
    means, rows = means - centre, rows - centre
    if shots.most == 1:
        return CosineView(cosine_scale(means)[:, None, None], centre, means, rows)
    model, guess, length = plain_discriminant(support - centre, labels, means, shots, scatter)
    fitted = model.fit(guess, shots)
    gamma = torch.as_tensor(fitted.gamma).reshape(-1, 1, 1)
    return GaussianView(model, gamma, centre, length, model.means * counts, counts, rows / length, noise=fitted.noise)


class Transduction(NamedTuple):
    """What unlabelled rows give.

    Attributes
    ----------
    scores : Tensor (T, M, N)
        Log-probabilities of the unlabelled rows, up to a constant of each, each without itself.
    head : LinearHead
        The classifier of new rows, on the rows of all views side by side.
    presence : Tensor (T, N)
        z, or the frequencies.
    """

    scores: Tensor
    head: LinearHead
    presence: Tensor


def transduce(views: Sequence[tuple[float, View]], priors: Tensor | None = None) -> Transduction:
    """Infer the classes of unlabelled rows by a mixture of views, given with their weights.

    Frequencies `priors (N,)` that are given take the place of z.
    """
    t, m, n, like = _sizes(views)
    r = like.new_zeros(t, m, n)

    def scores(r: Tensor) -> Tensor:
        total = torch.zeros_like(r)
        for weight, view in views:
            total = total.add_(view.scores(r), alpha=weight)
        return total

    def shares(found: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return presence(found, z) if priors is None else (z[:, None], z)

    found, z = scores(r), like.new_ones(t, n) if priors is None else priors.expand(t, n)
    for _ in range(WARM_UP):
        own, z = shares(found, z)
    for _ in range(STEPS if m > 1 else 0):
        r = ROW_WEIGHT * torch.softmax(found + own.log(), dim=-1)
        found = scores(r)
        own, z = shares(found, z)
    heads = [view.head(r) for _, view in views]
    weight = torch.cat([w * head.weight for (w, _), head in zip(views, heads, strict=True)], dim=-1)
    bias = sum((w * head.bias for (w, _), head in zip(views, heads, strict=True)), start=z.log())
    return Transduction(found + own.log(), LinearHead(weight, bias), z)


def presence(scores: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Update z `(T, N)`: the probability of each class as each row has it without itself `(T, M, N)`, and with all.

    >>> own, z = presence(torch.tensor([[[9.0, 0.0, 0.0]] * 40]), torch.ones(1, 3))
    >>> [round(p, 2) for p in z[0].tolist()]
    [1.0, 0.22, 0.22]
    """
    e = torch.exp(scores - scores.amax(dim=-1, keepdim=True)) * z[:, None]
    q = e / z[:, None] / (e.sum(dim=-1, keepdim=True) - e).clamp(min=1e-12)
    others = (z.sum(dim=-1, keepdim=True) - z).clamp(min=1e-12)
    evidence = torch.log1p(q) + torch.log(others / (others + 1))[:, None]
    total = evidence.sum(dim=1, keepdim=True)
    own = torch.sigmoid(PRESENCE_LOG_ODDS + ROW_WEIGHT * (total - evidence))
    return own.clamp(min=1e-6), torch.sigmoid(PRESENCE_LOG_ODDS + ROW_WEIGHT * total[:, 0]).clamp(min=1e-6)


def _sizes(views: Sequence[tuple[float, View]]) -> tuple[int, int, int, Tensor]:
    view = views[0][1]
    assert isinstance(view, GaussianView | CosineView)
    (t, m, _), n = view.rows.shape, view.total.shape[1]
    return t, m, n, view.total
