r"""How sure one example a class can make, measured on tasks of base classes.

Of one example a class nothing can be left out, so that the scale of its probabilities has to come from elsewhere. Where
a bank keeps rows, tasks of base classes tell it: about ten classes each, every one of a few rows in turn the example
and the others queries. γ of the hierarchical model and the log-odds of the bank-less classifier are such that its
average confidence in these tasks is its accuracy; likelihood would be decided by the few rows that lie farthest off.

A base class is better known than a new one in three ways. As a neighbour it is left out (`posterior(without=...)`).
Its rows are part of the covariance that they are whitened with: without row i, with deviation r from its class mean,
products with r are larger by 1/(1 − h), h = rᵀA⁻¹r / df (Sherman and Morrison's formula). And the extractor may have
been trained on it, which no row tells: what is measured here is a limit, not an estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fewcal._utils.lazy_torch import torch
from fewcal.bank import BaseBank
from fewcal.bank.build import OneShotScale
from fewcal.calibrate import spaced_indices
from fewcal.class_prior import ClassPrior, posterior
from fewcal.gaussianize import l2_normalise
from fewcal.heads.base import Head
from fewcal.heads.discriminant import Discriminant, misled
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
    classes, x = _tasks(bank, space, bank.parts.rows.joined())
    g, n, p, _ = x.shape
    labels = torch.arange(n, device=x.device).expand(p * g, n)
    centres = space.means[classes][:, :, None]
    deviations = x - centres
    weighed = prior.leverage * (deviations @ _whitening(prior)).square().sum(dim=-1, keepdim=True)
    fresh = centres + deviations / (1 - weighed).clamp(min=_LEAST_LEFT)

    def model(examples: Tensor) -> Head:
        without = classes.expand(p, g, n).reshape(p * g, n)
        found = posterior(prior, examples, 1.0, sharpness=sharpness, strength=strength, say=say, without=without)
        return Discriminant(examples, labels, found.mean, found.precision, found.worth, 0.0).head(1.0)

    def plain(examples: Tensor) -> Head:
        return one_shot_head(examples, labels, n, torch.ones_like)

    rows = l2_normalise(fresh @ _whitening(prior)) - prior.origin
    return OneShotScale(_calibrated(rows, model, guess, misled(n, 1)), _calibrated(x, plain, _USUAL_LOG_ODDS))


def _whitening(prior: ClassPrior) -> Tensor:
    whitening = prior.transform.whitening
    assert whitening is not None
    return whitening


def _tasks(bank: BaseBank, space: BaseBank, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Base classes `(G, N)` of G tasks and P of their `rows`, `(G, N, P, D)`, in `space`; both evenly spaced."""
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
    x = rows[(first + step).flatten()].float()
    if bank.transform is None and space.transform is not None:
        x = space.transform(x)
    return classes, x.view(g, n, p, -1)


def _calibrated(x: Tensor, make: Callable[[Tensor], Head], guess: float, doubt: float = 0.0) -> float:
    """The scale of scores by which the confidence in tasks of rows `x (G, N, P, D)` is as high as their accuracy.

    `make` is given examples `(P·G, N, D)` and returns a classifier of scale 1, whose answers are `doubted`.
    """
    g, n, p, d = x.shape
    examples = x.permute(2, 0, 1, 3).reshape(p * g, n, d)
    queries = x.reshape(1, g, n * p, d).expand(p, g, n * p, d).reshape(p * g, n * p, d)
    scores = make(examples).logits(queries).view(p, g, n, p, n)
    others = ~torch.eye(p, dtype=torch.bool, device=x.device)  # a row is no query where it is the example
    scores = scores.permute(0, 3, 1, 2, 4)[others]  # (P·(P−1), G, N, N)
    right = float((scores.argmax(dim=-1) == torch.arange(n, device=x.device)).float().mean())
    behind = scores - scores.amax(dim=-1, keepdim=True)
    low, high = -_OCTAVES, _OCTAVES
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        every = (guess * 2**middle * behind).exp_().add_(doubt)
        sure = (1 + doubt) * float(every.sum(dim=-1).reciprocal().mean())
        low, high = (middle, high) if sure < right else (low, middle)
    return guess * 2 ** ((low + high) / 2)
