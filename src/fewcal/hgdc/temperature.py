r"""The temperature of HGDC and its ridge, from tasks of base classes; then from support rows that are left out.

With one example a class nothing of a task can be left out. The base classes are split in two halves, and each half is
the bank of one-shot tasks of the other (`cross_validate`). That gives three numbers:

- the ridge λ of the whitening: its posterior mean on a logarithmic scale, where the log-likelihood of the left-out rows
  counts each example once, with a uniform prior over `RIDGES`;
- γ, for which the mean confidence in these tasks is their accuracy;
- the stacking weight ω between HGDC and the support-only classifier, likewise a posterior mean.

An extractor that was trained on the base classes tells them apart better than new classes, so γ is limited:

    γ ≤ confidence · w / √(2a)                                              (`Prior.gamma`)

From three examples a class on, each support row is scored without itself, and γ is updated (`fit_gamma`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from fewcal.hgdc.prior import Eigen, Prior, fit_prior

if TYPE_CHECKING:
    from torch import Tensor

# Resolution of the posterior means: nodes of λ and of ω.
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Size of the study, which bounds its time: rows of the covariance, classes, and of each task classes and rows.
STUDY_ROWS, STUDY_CLASSES, TASK_CLASSES, TASK_ROWS = 4096, 128, 5, 6
# Resolution of γ: halvings of the interval of log₂ γ, and the grid of `fit_gamma` (powers of ten from, to, nodes).
LOG2_RANGE, HALVINGS = 12.0, 16
GAMMA_GRID = (-1.2, 1.5, 28)
# Numbers in memory while the grid is evaluated.
GRID_MEMORY = 1 << 20

PER = 6.0
PlainScores = Callable[["Tensor", "Tensor"], "Tensor"]


class Study(NamedTuple):
    """What tasks of base classes give: the ridge λ, the scale γ and the stacking weight ω."""

    ridge: float
    gamma: float
    weight: float
    outside: float = 0.0


def cross_validate(
    rows: list[Tensor],
    plain: list[Tensor],
    scores: PlainScores,
    ridge: float | None,
    *,
    floor: float,
    sharpness: float,
) -> Study | None:
    """Study one-shot tasks of left-out base classes; None of fewer than four classes.

    Parameters
    ----------
    rows : list of C tensors (P_c, D)
        Gaussianized rows of each base class, before whitening.
    plain : list of C tensors (P_c, D')
        The same rows as the support-only classifier sees them.
    scores : callable
        Log-probabilities `(T, Q, N)` of that classifier for queries `(T, Q, D')`, from examples `(T, N, D')`.
    ridge : float or None
        λ, where it is given and not to be estimated.
    floor, sharpness : float
        As in `fit_prior` and `Prior.weights`.
    """
    folds = [f for f in (_Fold.make(rows, plain, k) for k in range(2)) if f is not None]
    if not folds:
        return None
    ridges = RIDGES if ridge is None else (ridge,)
    found = [[fold.scores(one, floor, sharpness) for one in ridges] for fold in folds]
    gammas = [[calibrated_gamma(s, fold.truth) for s in own] for fold, own in zip(folds, found, strict=True)]
    loss = torch.tensor(
        [
            [fold.loss(g * s) for s, g in zip(own, scales, strict=True)]
            for fold, own, scales in zip(folds, found, gammas, strict=True)
        ]
    ).sum(dim=0)
    share = torch.softmax(-loss / PER, dim=0)
    at = share @ torch.tensor(ridges, dtype=share.dtype).log()
    log_gamma = share @ torch.tensor(gammas, dtype=share.dtype).log().mean(dim=0)
    # Of the node with most of the posterior: ω hardly differs between nodes that are close to each other.
    best = int(share.argmax())
    weight = _stacking_weight(folds, [own[best] for own in found], [own[best] for own in gammas], scores)
    outside = sum(fold.outside(ridges[best], floor) for fold in folds) / len(folds)
    return Study(float(at.exp()), float(log_gamma.exp()), weight, outside)


def _stacking_weight(folds: list[_Fold], found: list[Tensor], gammas: list[float], scores: PlainScores) -> float:
    losses = torch.zeros(len(WEIGHTS), dtype=torch.float64)
    for fold, own, gamma in zip(folds, found, gammas, strict=True):
        model = torch.log_softmax(gamma * own, dim=-1)
        plain = scores(fold.plain_examples, fold.plain_queries)
        losses += torch.tensor([fold.loss(torch.lerp(plain, model, w)) for w in WEIGHTS])
    return float(torch.softmax(-losses / PER, dim=0) @ torch.tensor(WEIGHTS, dtype=torch.float64))


class _Fold(NamedTuple):
    """One half of the base classes as a bank, and one-shot tasks of the other: every row in turn is the example."""

    own: Eigen
    examples: Tensor
    queries: Tensor
    plain_examples: Tensor
    plain_queries: Tensor
    truth: Tensor

    @classmethod
    def make(cls, rows: list[Tensor], plain: list[Tensor], fold: int) -> _Fold | None:
        bank, held = rows[fold::2], range(1 - fold, len(rows), 2)
        n = min(TASK_CLASSES, len(held))
        p = min([TASK_ROWS, *(len(rows[i]) for i in held)])
        if len(bank) < 2 or n < 2 or p < 2:
            return None
        counts = torch.tensor([len(r) for r in bank], device=rows[0].device).double()
        means = torch.stack([r.mean(dim=0) for r in bank]).double()
        centred = torch.cat([r - r.mean(dim=0) for r in bank])
        values, vectors = torch.linalg.eigh(centred.T @ centred / max(float(counts.sum()) - len(bank), 1.0))
        own = Eigen(values.clamp(min=0).double(), means @ vectors.double(), counts)
        count = len(held) // n
        groups = [held[g::count][:n] for g in range(count)]

        def tasks(of: list[Tensor]) -> tuple[Tensor, Tensor]:
            every = torch.stack([torch.stack([of[i][:p] for i in group]) for group in groups])  # (G, N, P, D)
            examples = every.permute(2, 0, 1, 3).flatten(0, 1)  # (P·G, N, D)
            others = torch.stack([torch.cat([every[:, :, :i], every[:, :, i + 1 :]], dim=2) for i in range(p)])
            return examples, others.flatten(0, 1).flatten(1, 2)  # (P·G, N·(P − 1), D)

        examples, queries = tasks(rows)
        truth = torch.arange(n, device=examples.device).repeat_interleave(p - 1).expand(len(examples), -1)
        return cls(own, examples @ vectors, queries @ vectors, *tasks(plain), truth)

    def scores(self, ridge: float, floor: float, sharpness: float) -> Tensor:
        """Scores of HGDC with γ = 1, `(T, Q, N)`."""
        prior, whitening = fit_prior(self.own, ridge, floor)
        map_rows = type(whitening)(whitening.scale.float(), whitening.rotation.float())
        examples = map_rows(self.examples) - prior.origin
        found = prior.posterior(examples, 1.0, sharpness)
        directions = found.mean * found.precision
        bias = torch.linalg.vecdot(directions, found.mean) + 2 * directions @ prior.origin
        return 2 * map_rows(self.queries) @ directions.mT - bias[:, None]

    def outside(self, ridge: float, floor: float) -> float:
        """ψ⊥: the variance of left-out class means outside of the span of the others, in units of that within."""
        prior, whitening = fit_prior(self.own, ridge, floor)
        rank = len(prior.base_means) - 1
        t, n, _ = self.examples.shape
        p = self.truth.shape[1] // n + 1
        rows = whitening(self.examples.double()) - prior.origin
        means = rows.unflatten(0, (p, t // p)).mean(dim=0)[..., rank:]
        if not means.shape[-1]:
            return 0.0
        return max(float(means.square().mean() / prior.within.mean()) - 1 / p, 0.0)

    def loss(self, scores: Tensor) -> float:
        """Minus the log-likelihood of the answers, each example counted once."""
        losses = -torch.log_softmax(scores, dim=-1).gather(2, self.truth[..., None])
        n = scores.shape[2]
        return float(losses.double().mean()) * n * len(scores)


def calibrated_gamma(scores: Tensor, truth: Tensor) -> float:
    """γ for which the mean confidence of scores `(T, Q, N)` is their accuracy, by bisection.

    >>> scores = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]])
    >>> round(calibrated_gamma(scores, torch.tensor([[0, 1, 0, 1]])), 2)  # three of four are right: log 3
    1.1
    """
    right = (scores.argmax(dim=-1) == truth).double().mean()
    behind = scores - scores.amax(dim=-1, keepdim=True)
    low, high = -LOG2_RANGE, LOG2_RANGE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        confidence = (2**middle * behind).exp_().sum(dim=-1).reciprocal_().double().mean()
        low, high = (middle, high) if confidence < right else (low, middle)
    return float(2 ** ((low + high) / 2))


@cache
def _gamma_grid() -> Tensor:
    return torch.logspace(*GAMMA_GRID, device="cpu")


def fit_gamma(scores: Tensor, labels: Tensor, counts: Tensor, guess: Tensor, width: float) -> Tensor:
    """γ `(T,)`: its posterior mean on a logarithmic scale, given scores `(T, S, N)` of rows that were left out.

    The prior of log γ is normal around that of `guess (T,)`, with standard deviation `width`; `counts (T, S)` is how
    much each row counts.

    >>> sure, labels = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), torch.tensor([[0, 1]])
    >>> rows, one = torch.ones(1, 2), torch.ones(1)
    >>> bool(fit_gamma(sure, labels, rows, one, 0.5) > 1), bool(fit_gamma(-sure, labels, rows, one, 0.5) < 1)
    (True, True)
    """
    grid = _gamma_grid().to(scores)
    ahead = scores - scores.gather(2, labels[..., None])  # of each class to the true one
    # Classes before rows, and the largest subtracted once for all γ: sums over a short last axis are slow.
    behind = ahead.mT * guess[:, None, None]  # (T, N, S)
    top = behind.amax(dim=1)
    behind = behind - top[:, None]
    parts = grid.split(max(1, GRID_MEMORY // behind.numel()))
    spread = torch.cat([(g[:, None, None, None] * behind).exp_().sum(dim=2).log_() for g in parts])
    loss = ((spread + grid[:, None, None] * top) * counts).sum(dim=2)  # (G, T)
    prior = 0.5 * (grid.log() / width).square()
    share = torch.softmax(-loss - prior[:, None], dim=0)
    return guess * (share.T @ grid.log()).exp()
