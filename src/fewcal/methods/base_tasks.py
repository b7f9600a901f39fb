r"""How sure one example a class can make, measured on tasks of base classes.

Of one example a class nothing can be left out, so that the scale of its probabilities has to come from elsewhere. Where
a bank keeps rows, tasks of base classes tell it: about ten classes each, every one of a few rows in turn the example
and the others queries. γ of the hierarchical model and the log-odds of the bank-less classifier are such that its
average confidence in these tasks is its accuracy; likelihood would be decided by the few rows that lie farthest off.

A base class is better known than a new one in three ways. As a neighbour it is left out (`posterior(without=...)`).
Its rows are part of the covariance that they are whitened with: without row i, with deviation r from its class mean,
products with r are larger by 1/(1 − h), h = rᵀA⁻¹r / df (Sherman and Morrison's formula). And the extractor may have
learnt it: the same is measured once more on rows as new classes would have them then, and what tells which of the two
it is (`fewcal.learnt_classes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fewcal.bank import BaseBank
from fewcal.bank.build import OneShotScale
from fewcal.calibrate import spaced_indices
from fewcal.class_prior import ClassPrior, posterior
from fewcal.heads.base import Head
from fewcal.heads.discriminant import Discriminant, misled
from fewcal.learnt_classes import learnt_by_bank, with_new_classes
from fewcal.methods.bankless import one_shot_head

if TYPE_CHECKING:
    from torch import Tensor

# Classes of a task, about, and classes and rows that tasks are made of, at most: it bounds time and memory.
_WAYS, _MOST_CLASSES, _MOST_ROWS = 10, 120, 600
# Rows of a class, at least and at most, where it has as many.
_FEWEST, _MOST = 5, 12
# 1 − leverage, at least.
_LEAST_LEFT = 0.1
# Octaves around a guess in which the scale is looked for, and halvings of that.
_OCTAVES, _HALVINGS = 6.0, 12
# Log-odds of the bank-less classifier to start from.
_USUAL_LOG_ODDS = 8.0


def one_shot_scale(
    bank: BaseBank, space: BaseBank, prior: ClassPrior, guess: float, *, sharpness: float, strength: float, say: float
) -> OneShotScale | None:
    """What tasks of base classes tell; for a bank without rows, what is known from when it had them.

    `space` is the bank behind its transform, where `prior` was fitted; `guess` is one of γ, the others are as in
    `posterior`.
    """
    if bank.parts.rows is None:
        return bank.parts.one_shot
    whitening = _whitening(prior)
    classes, given = _tasks(bank, bank.parts.rows.joined())
    x, length = given, None
    if bank.transform is None and space.transform is not None:
        x, length = space.transform.with_log_length(given)
    g, n, p, _ = x.shape
    centres, means = space.means[classes][:, :, None], prior.means[classes][:, :, None]
    deviations = (x - centres) @ whitening
    weighed = prior.leverage * deviations.square().sum(dim=-1, keepdim=True)
    fresh = centres @ whitening + deviations / (1 - weighed).clamp(min=_LEAST_LEFT)
    rows = fresh / fresh.norm(dim=-1, keepdim=True).clamp(min=1e-12) - prior.origin
    count = float(1 / (1 / bank.counts.double()).mean())
    both, plain_both = with_new_classes(rows, means, count, prior.origin), with_new_classes(x, centres, count)
    without = classes.expand(2, p, g, n).reshape(2 * p * g, n)
    labels = torch.arange(n, device=x.device).expand(2 * p * g, n)

    def model(examples: Tensor) -> Head:
        found = posterior(prior, examples, 1.0, sharpness=sharpness, strength=strength, say=say, without=without)
        return Discriminant(examples, labels, found.mean, found.precision, found.worth, 0.0).head(1.0)

    def plain(examples: Tensor) -> Head:
        return one_shot_head(examples, labels, n, torch.ones_like)

    gamma, new_gamma = _calibrated(both, model, guess, misled(n, 1))
    log_odds, new_log_odds = _calibrated(plain_both, plain, _USUAL_LOG_ODDS)
    told = learnt_by_bank(gamma / guess, rows, means, given, length)
    return OneShotScale(gamma, log_odds, new_gamma, new_log_odds, *told)


def _whitening(prior: ClassPrior) -> Tensor:
    whitening = prior.transform.whitening
    assert whitening is not None
    return whitening


def _tasks(bank: BaseBank, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Base classes `(G, N)` of G tasks and P of their `rows`, `(G, N, P, D)`; both evenly spaced."""
    counts = bank.counts
    chosen = min(len(counts), _MOST_CLASSES)
    p = min(int(counts.median()), max(_FEWEST, min(_MOST, _MOST_ROWS // chosen)))
    known = (counts >= p).nonzero().flatten()  # half of the classes at least
    chosen = min(len(known), _MOST_CLASSES)
    g = max(1, round(chosen / _WAYS))
    n = chosen // g
    classes = known[spaced_indices(len(known), g * n, known.device)].view(n, g).T
    first = (counts.cumsum(dim=0) - counts)[classes][..., None]
    step = ((torch.arange(p, device=counts.device) + 0.5) * counts[classes][..., None] / p).long()
    return classes, rows[(first + step).flatten()].float().view(g, n, p, -1)


def _calibrated(x: Tensor, make: Callable[[Tensor], Head], guess: float, doubt: float = 0.0) -> list[float]:
    """Scales of scores by which the confidence in tasks of rows `x (V, G, N, P, D)` is as high as their accuracy.

    `make` is given examples `(V·P·G, N, D)` and returns a classifier of scale 1, whose answers are `doubted`. One scale
    for each of V kinds of rows.
    """
    v, g, n, p, d = x.shape
    examples = x.permute(0, 3, 1, 2, 4).reshape(v * p * g, n, d)
    queries = x.reshape(v, 1, g, n * p, d).expand(v, p, g, n * p, d).reshape(v * p * g, n * p, d)
    scores = make(examples).logits(queries).view(v, p, g, n, p, n)
    others = ~torch.eye(p, dtype=torch.bool, device=x.device)  # a row is no query where it is the example
    scores = scores.permute(1, 4, 0, 2, 3, 5)[others].transpose(0, 1)  # (V, P·(P−1), G, N, N)
    right = (scores.argmax(dim=-1) == torch.arange(n, device=x.device)).float().mean(dim=(1, 2, 3))
    behind = scores - scores.amax(dim=-1, keepdim=True)
    low, high = torch.full_like(right, -_OCTAVES), torch.full_like(right, _OCTAVES)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        every = ((guess * 2**middle)[:, None, None, None, None] * behind).exp_().add_(doubt)
        sure = (1 + doubt) * every.sum(dim=-1).reciprocal().mean(dim=(1, 2, 3))
        low, high = torch.where(sure < right, middle, low), torch.where(sure < right, high, middle)
    return (guess * 2 ** ((low + high) / 2)).tolist()
