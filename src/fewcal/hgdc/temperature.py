r"""The temperature of HGDC and its ridge, from tasks of base classes; then from support rows that are left out.

With one example a class nothing of a task can be left out. The base classes are split in two halves, and each half is
the bank of one-shot tasks of the other (`cross_validate`). That gives three numbers:

- the ridge λ of the whitening: half of its posterior mean on a logarithmic scale, with a uniform prior over `RIDGES`.
  A half has half of the rows, and the noise of a covariance, which the ridge is against, is inverse to its rows;
- γ/γ₀, the scale of the scores for which the mean confidence in these tasks is their accuracy;
- the stacking weight ω between HGDC and the support-only classifier, likewise a posterior mean.

In both posteriors each example counts once: the log-likelihood of a task is the mean over its queries, times its
examples. An extractor that was trained on the base classes separates them better than new classes, so γ is limited:

    γ ≤ confidence · γ₀,    γ₀ = w / √(2a)                                  (`Prior.gaussian_gamma`)

From three examples a class on, each support row is scored without itself, and γ is updated (`fit_gamma`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fewcal.hgdc.prior import Eigen, class_eigen, fit_prior, span

# Nodes of the posterior means of λ, from a full whitening to none, and of ω.
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Size of the study, which bounds its time: rows of the covariances, classes, and of each task classes and rows.
STUDY_ROWS, STUDY_CLASSES, TASK_CLASSES, TASK_ROWS = 4096, 128, 5, 6
# Resolution of γ: range of log₂ γ and halvings of it, and the grid of `fit_gamma` (powers of ten from, to, nodes).
LOG2_RANGE, HALVINGS = 12.0, 16
GAMMA_GRID = (-1.2, 1.5, 28)
# Numbers in memory while the grid is evaluated.
GRID_MEMORY = 1 << 20

PlainScores: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


class Study(NamedTuple):
    """What tasks of base classes give: the ridge λ, the scale γ in units of γ₀, and the stacking weight ω.

    The defaults are for banks that allow no such tasks: no evidence of λ and ω, and γ at its limit.
    """

    ridge: float = 1.0
    gamma: float = float("inf")
    weight: float = 0.0


def cross_validate(
    rows: list[Tensor],
    plain: list[Tensor],
    plain_scores: PlainScores,
    ridge: float | None,
    *,
    floor: float,
    sharpness: float,
    share: float,
) -> Study:
    """Study one-shot tasks of left-out base classes.

    Parameters
    ----------
    rows : list of C tensors (P_c, D)
        Gaussianized rows of each base class, before whitening.
    plain : list of C tensors (P_c, D')
        The same rows as the support-only classifier has them.
    plain_scores : callable
        Log-probabilities `(T, Q, N)` of that classifier for queries `(T, Q, D')`, from examples `(T, N, D')`.
    ridge : float or None
        λ, where it is given and not to be estimated.
    floor, sharpness, share : float
        As in `fit_prior`.
    """
    rest = max(rows[0].shape[1] - sum(map(len, rows)), 0)
    if rest:  # fewer rows than features: the same in the space that they span
        rows = list(span(torch.cat(rows))[1].float().split([len(r) for r in rows]))
    folds = [fold for k in range(2) if (fold := Fold.make(rows, plain, k, rest)) is not None]
    if not folds:
        return Study() if ridge is None else Study(ridge)
    ridges = RIDGES if ridge is None else (ridge,)
    scores = [[fold.scores(node, floor, sharpness, share) for node in ridges] for fold in folds]
    gammas = [[calibrated_gamma(s, fold.truth) for s in own] for fold, own in zip(folds, scores, strict=True)]
    losses = [
        [fold.loss(g * s) for s, g in zip(own, scales, strict=True)]
        for fold, own, scales in zip(folds, scores, gammas, strict=True)
    ]
    posterior = torch.softmax(-torch.tensor(losses).sum(dim=0), dim=0)
    log_ridge = posterior @ torch.tensor(ridges, dtype=posterior.dtype).log()
    log_gamma = posterior @ torch.tensor(gammas, dtype=posterior.dtype).log().mean(dim=0)
    # At the node of highest posterior: ω hardly differs between neighbours.
    best = int(posterior.argmax())
    mixed = torch.zeros(len(WEIGHTS), dtype=torch.float64)
    for fold, own, gamma in zip(folds, scores, gammas, strict=True):
        model = torch.log_softmax(gamma[best] * own[best], dim=-1)
        support_only = plain_scores(fold.plain_examples, fold.plain_queries)
        mixed += torch.tensor([fold.loss(torch.lerp(support_only, model, w)) for w in WEIGHTS])
    weight = torch.softmax(-mixed, dim=0) @ torch.tensor(WEIGHTS, dtype=torch.float64)
    own_ridge = float(log_ridge.exp()) / 2 if ridge is None else ridge
    return Study(own_ridge, float(log_gamma.exp()), float(weight))


class Fold(NamedTuple):
    """One half of the base classes as a bank, and one-shot tasks of the other: every row in turn is the example.

    Attributes
    ----------
    own : Eigen
    examples : Tensor (T, N, D)
        In the eigenbasis of `own`, like `queries (T, Q, D)`.
    plain_examples, plain_queries : Tensor (T, N, D') and (T, Q, D')
    truth : Tensor (T, Q)
    """

    own: Eigen
    examples: Tensor
    queries: Tensor
    plain_examples: Tensor
    plain_queries: Tensor
    truth: Tensor

    @classmethod
    def make(cls, rows: list[Tensor], plain: list[Tensor], k: int, rest: int = 0) -> Fold | None:
        """Half number k, 0 or 1; None of too few classes or rows for tasks. `rest` is that of `Eigen`."""
        bank, held = rows[k::2], range(1 - k, len(rows), 2)
        n = min(TASK_CLASSES, len(held))
        p = min([TASK_ROWS, *(len(rows[i]) for i in held)])
        if len(bank) < 2 or n < 2 or p < 2:
            return None
        counts = torch.tensor([len(r) for r in bank], device=rows[0].device).double()
        values, vectors, means = class_eigen(bank)
        own = Eigen.make(values, means, counts, rest)
        if rest:
            vectors = torch.nn.functional.pad(vectors, (0, 1))
        groups = [held[g :: len(held) // n][:n] for g in range(len(held) // n)]
        others = torch.tensor([[j for j in range(p) if j != i] for i in range(p)])

        def tasks(of: list[Tensor]) -> tuple[Tensor, Tensor]:
            every = torch.stack([torch.stack([of[i][:p] for i in group]) for group in groups])  # (G, N, P, D)
            examples = every.permute(2, 0, 1, 3).flatten(0, 1)  # (P·G, N, D)
            queries = every[:, :, others].permute(2, 0, 1, 3, 4)  # (P, G, N, P − 1, D)
            return examples, queries.flatten(0, 1).flatten(1, 2)

        examples, queries = tasks([r[:p] @ vectors for r in rows])
        truth = torch.arange(n, device=examples.device).repeat_interleave(p - 1).expand(len(examples), -1)
        return cls(own, examples, queries, *tasks(plain), truth)

    def scores(self, ridge: float, floor: float, sharpness: float, share: float) -> Tensor:
        """Scores of HGDC with γ = γ₀, `(T, Q, N)`."""
        prior, (scale, rotation) = fit_prior(self.own, ridge, floor, sharpness, share)
        normalize = torch.nn.functional.normalize
        whitened, rotation = scale.float(), rotation.float()
        examples = normalize(self.examples * whitened, dim=-1) @ rotation - prior.origin
        found = prior.posterior(examples, 1.0)
        directions = found.mean * found.precision
        bias = torch.linalg.vecdot(directions, found.mean) + 2 * directions @ prior.origin
        queries = normalize(self.queries * whitened, dim=-1)
        return prior.gaussian_gamma * (2 * queries @ (directions @ rotation.T).mT - bias[:, None])

    def loss(self, scores: Tensor) -> float:
        """Minus the log-likelihood of the answers, each example counted once."""
        losses = -torch.log_softmax(scores, dim=-1).gather(2, self.truth[..., None])
        return float(losses.double().mean()) * scores.shape[0] * scores.shape[2]


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
