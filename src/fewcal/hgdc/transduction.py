r"""Unlabelled rows: expectation maximization over the posterior of the class means.

M unlabelled rows x stand beside the support. With responsibilities r and the weight η of such a row, in examples,

    μ_n = (A_n + κ p_n)/(k_n + κ),    k_n = K_n + η Σ r_xn,    A_n = Σ labelled rows + η Σ r_xn x,
    r_x = softmax(log z_n + s_n(x))   with s_n the scores of the classifier at these means.

s_n is the mixture with the support-only classifier, whose means stay as they are: on raw features unlabelled rows bring
nothing. The odds of its weight, ω/(1 − ω), are multiplied by Σk/ΣK. Two things differ from plain EM:

- r_x and the answer to x are made *without x* (collapsed: x leaves A, k and z before it is scored). A row cannot
  confirm its own answer, and one row alone has the answer of the inductive classifier;
- z_n is the probability that class n is present at all. With q_x = e^{s_n(x)} / Σ_{m≠n} z_m e^{s_m(x)} and Z the number
  of other classes, Σ_{m≠n} z_m,

      logit z_n = a + η Σ_x [log(1 + q_x) + log(Z / (Z + 1))].

  This is the likelihood ratio of the rows with and without the class. Shares of present classes are not estimated: the
  share of a class with an untypical example would shrink.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fewcal.heads.linear import LinearHead, class_shots
from fewcal.hgdc.discriminant import Discriminant
from fewcal.hgdc.mixture import mixture
from fewcal.hgdc.prior import Prior

# η, the weight of an unlabelled row, and a, the log-odds that a class is present: docs/method.md.
ROW_WEIGHT, PRESENCE_LOG_ODDS = 0.2, 2.0
# Iterations: of z alone with the inductive scores, then of r, the scores and z.
WARM_UP, STEPS = 3, 6


@dataclass(frozen=True, eq=False)
class SoftPosterior:
    """HGDC whose class means follow soft labels of unlabelled rows.

    Attributes
    ----------
    prior : Prior
    model : Discriminant
        Of the support; its metric is that of the final number of rows.
    gamma : Tensor (T, 1, 1)
    offset : Tensor (T, 1, D)
    total, counts : Tensor (T, N, D), (T, N, 1)
        Sum and number of the support rows of each class.
    rows : Tensor (T, M, D)
        Unlabelled rows, less the offset.
    names : Tensor (N, C) or None
        Scores of the classes' names (`fewcal.hgdc.names`).
    """

    prior: Prior
    model: Discriminant
    gamma: Tensor
    offset: Tensor
    total: Tensor
    counts: Tensor
    rows: Tensor
    names: Tensor | None = None

    @classmethod
    def make(
        cls,
        prior: Prior,
        support: Tensor,
        labels: Tensor,
        n: int,
        rows: Tensor,
        scatter: float,
        names: Tensor | None = None,
    ) -> SoftPosterior:
        """Prepare for support `(T, S, D)` with labels `(T, S)` of n classes, and unlabelled rows `(T, M, D)`."""
        shots = class_shots(labels, n, support.dtype)
        means, counts = shots.means(support), shots.counts[..., None]
        offset = prior.offset(means, shots.average)
        found = prior.posterior(means - offset, shots.each, names)
        model = Discriminant(support - offset, labels, found.mean, found.precision, found.kappa, scatter)
        gamma = torch.as_tensor(model.fit(prior.gamma, shots).gamma).to(support).reshape(-1, 1, 1)
        # The variance of new rows falls as means become certain; each answer is without its own row.
        k = shots.average + ROW_WEIGHT * (rows.shape[1] - 1) / n
        model = replace(model, metric=(k + prior.kappa) / (k + prior.kappa + 1))
        return cls(prior, model, gamma, offset, (means - offset) * counts, counts, rows - offset, names)

    @cached_property
    def _squares(self) -> Tensor:
        """xᵀPx of the unlabelled rows, `(T, M, 1)`."""
        return torch.linalg.vecdot(self.model.multiply(self.rows), self.rows)[..., None]

    def _means(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k `(T, N, 1)`, Pμ `(T, N, D)` and μᵀPμ `(T, N)`."""
        k, total = self.counts + r.sum(dim=1)[..., None], torch.baddbmm(self.total, r.mT, self.rows)
        mean = self.prior.posterior(total / k, k[..., 0], self.names).mean
        directions = self.model.multiply(mean)
        return k, directions, torch.linalg.vecdot(directions, mean)

    def scores(self, r: Tensor) -> Tensor:
        """Scores `(T, M, N)` of the unlabelled rows, each without itself, given their weights `r (T, M, N)`."""
        k, directions, lengths = self._means(r)
        across, lengths = self.rows @ directions.mT, lengths[:, None]
        # Without row x the mean is μ + f (μ − x), with the mean κ of all directions.
        f = r / (k.mT + float(1 / self.prior.psi.mean()) - r).clamp(min=1e-6)
        own = lengths + 2 * f * (lengths - across) + f.square() * (lengths - 2 * across + self._squares)
        return self.gamma * (2 * (across + f * (across - self._squares)) - own)

    def head(self, r: Tensor) -> LinearHead:
        """The classifier of new rows, given all."""
        _, directions, lengths = self._means(r)
        return LinearHead(2 * self.gamma * directions, -self.gamma[..., 0] * lengths).shifted(self.offset)


class Transduction(NamedTuple):
    """What unlabelled rows give.

    Attributes
    ----------
    scores : Tensor (T, M, N)
        Log-probabilities of the unlabelled rows, up to a constant of each, each without itself.
    head : LinearHead
        The classifier of new rows, on rows of both views.
    presence : Tensor (T, N)
        z, or the frequencies.
    """

    scores: Tensor
    head: LinearHead
    presence: Tensor


def transduce(
    posterior: SoftPosterior, plain: LinearHead, plain_rows: Tensor, weight: float, priors: Tensor | None = None
) -> Transduction:
    """Infer the classes of unlabelled rows.

    Parameters
    ----------
    posterior : SoftPosterior
    plain, plain_rows : LinearHead, Tensor (T, M, D)
        The support-only classifier, and the unlabelled rows as it has them.
    weight : float
        ω of the mixture.
    priors : Tensor (N,) or None
        Known frequencies of the classes, in place of z.
    """
    t, m, _ = plain_rows.shape
    n = plain.bias.shape[1]
    # The odds of the mixture grow with the rows that the means rest on.
    odds = 1 + ROW_WEIGHT * (m - 1) / float(posterior.counts.sum(dim=1).mean())
    weight = weight * odds / (weight * odds + 1 - weight)
    fixed = (1 - weight) * plain.logits(plain_rows)
    r, z = torch.zeros_like(fixed), fixed.new_ones(t, n) if priors is None else priors.expand(t, n)
    scores, z_without = fixed + weight * posterior.scores(r), z[:, None]  # of each row, without itself
    for step in range(WARM_UP + STEPS if m > 1 else 1):
        if step >= WARM_UP:
            r = ROW_WEIGHT * torch.softmax(scores + z_without.log(), dim=-1)
            scores = fixed + weight * posterior.scores(r)
        if priors is None:
            z_without, z = presence(scores, z)
    head = mixture(posterior.head(r), plain, weight)
    return Transduction(scores + z_without.log(), LinearHead(head.weight, head.bias + z.log()), z)


def presence(scores: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Update z `(T, N)`, given scores `(T, M, N)`: z without each row, `(T, M, N)`, and with all rows, `(T, N)`.

    >>> without, z = presence(torch.tensor([[[9.0, 0.0, 0.0]] * 40]), torch.ones(1, 3))
    >>> [round(p, 2) for p in z[0].tolist()]
    [1.0, 0.22, 0.22]
    """
    e = torch.exp(scores - scores.amax(dim=-1, keepdim=True)) * z[:, None]
    q = e / z[:, None] / (e.sum(dim=-1, keepdim=True) - e).clamp(min=1e-12)
    others = (z.sum(dim=-1, keepdim=True) - z).clamp(min=1e-12)
    evidence = torch.log1p(q) + torch.log(others / (others + 1))[:, None]
    total = evidence.sum(dim=1, keepdim=True)
    without = torch.sigmoid(PRESENCE_LOG_ODDS + ROW_WEIGHT * (total - evidence))
    return without.clamp(min=1e-6), torch.sigmoid(PRESENCE_LOG_ODDS + ROW_WEIGHT * total[:, 0]).clamp(min=1e-6)
