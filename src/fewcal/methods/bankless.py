"""The best classifier without base classes: what answers when there is no bank, and when a bank does not help.

On rows of unit length. At one shot the nearest class mean, after what the support has in common was taken away from
all rows; with more shots the mean of two linear classifiers that err differently: the discriminant with the scatter of
the support (`fewcal.heads.discriminant`) and logistic regression. Neither prefers classes with more examples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from fewcal._utils.scales import between
from fewcal.bank import BaseBank
from fewcal.bank.build import UnitCentre
from fewcal.gaussianize import Gaussianization, l2_normalise
from fewcal.heads.base import Head
from fewcal.heads.discriminant import (
    COSINE_GAP,
    Discriminant,
    Fitted,
    cosine_variance,
    one_shot_log_odds,
    squared_separation,
)
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead, class_means, membership
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.methods.registry import register_method

if TYPE_CHECKING:
    from torch import Tensor

# Ridge of the support's scatter in OAS ridges, and the guess of γ times the squared separation of the class means with
# more shots than one, at most. The same for all data, chosen on validation classes.
RIDGE, SHARPNESS = 25.0, 8.0
C = 1.0
# Rows that are all much alike are made this long around their mean: logistic regression would hardly move for less.
_LEAST_LENGTH = 0.3
# Log-odds of one example by tasks of base classes, in units of what examples tell, at most; and of those that base
# classes would have as new ones, what is taken. Chosen on validation classes.
_MOST_OF_EXAMPLES, _AS_NEW = 2.0, 1.1
# Features from which on rows are taken for embeddings, whose direction says all.
_EMBEDDING = 32


@register_method
class Bankless(Method):
    """No base classes: unit-length rows, a discriminant with the support's scatter and logistic regression."""

    name = "bankless"

    def __init__(self, before: Gaussianization | None = None) -> None:
        self.before = before

    @property
    def space(self) -> Hashable:
        return "unit" if self.before is None else ("unit", id(self.before))

    @property
    def row_map(self) -> RowMap:
        return UnitRows(self.before)

    def fit(self, batch: TaskBatch) -> Head:
        return bankless_head(batch.support, batch.labels, batch.n_classes)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows of unit length; with few features, which are no embedding and whose length says something, as they are.

    `before` is a transform that comes first.
    """

    before: Gaussianization | None = None

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(R, D)`."""
        x = x if self.before is None else self.before(x, name)
        return l2_normalise(x) if x.shape[-1] >= _EMBEDDING else x

    def to(self, device: torch.device | str) -> UnitRows:
        """The same on `device`."""
        return self if self.before is None else UnitRows(self.before.to(device))


def bankless_head(support: Tensor, labels: Tensor, n_classes: int) -> Head:
    """The classifier for support rows `(T, S, D)` of `UnitRows` with labels `(T, S)`."""
    return fit_bankless(support, labels, n_classes)[0]


class BaseOdds(NamedTuple):
    """Log-odds of one example by tasks of base classes: as these are, and as new classes would be if they were learnt.

    `learnt` is how likely that is, `in_domain (T,)` how far a task is one of their domain, from 0 to 1. Few classes are
    often coarser than new ones: by the factor `leeway` they are no reason to lower the odds that examples tell.
    """

    as_they_are: float
    as_new: float
    learnt: Tensor | float
    in_domain: Tensor
    leeway: float = 1.0

    def of(self, examples: Tensor) -> Tensor:
        """What they make of the log-odds `(T,)` that examples alone tell; in another domain they can only lower them.

        >>> odds = BaseOdds(8.0, 4.0, torch.tensor([0.0, 1.0]), torch.ones(2))
        >>> odds.of(torch.tensor([6.0, 6.0])), odds._replace(in_domain=torch.zeros(2)).of(torch.tensor([6.0, 9.0]))
        (tensor([8.0000, 4.4000]), tensor([6., 8.]))
        """
        known = examples.clamp(self.as_they_are, self.leeway * self.as_they_are)
        known = torch.minimum(known, _MOST_OF_EXAMPLES * examples)
        least = torch.minimum(examples, known)
        return between(least, between(known, least.clamp(max=_AS_NEW * self.as_new), self.learnt), self.in_domain)


class Hints(NamedTuple):
    """What a bank tells the bank-less classifier of one example a class.

    By how much cosines within a class exceed others (`gap`), where base classes are `centre`d, and the log-odds of an
    example in their tasks.
    """

    gap: float = COSINE_GAP
    centre: UnitCentre | None = None
    odds: BaseOdds | None = None


NO_HINTS = Hints()


def base_centre(bank: BaseBank) -> UnitCentre | None:
    """Where base classes are centred when rows have unit length; None of one class, or where nobody knows any more.

    Moments suffice: they tell the mean squared length of the rows of a class, by whose root its mean is divided.
    """

    def make() -> UnitCentre | None:
        if bank.transform is not None or bank.dim < _EMBEDDING or len(bank) < 2:
            return None
        squares = bank.means.square().sum(dim=1) + bank.moments.within_scatter / bank.counts
        means = bank.means / squares.sqrt().clamp(min=1e-30).to(bank.means)[:, None]
        centre = means.mean(dim=0)
        return UnitCentre(centre, float((means - centre).square().sum()) / (len(bank) - 1) / len(bank))

    return bank.parts.unit_centre or bank.memo.get("unit centre", make)


def fit_bankless(
    support: Tensor, labels: Tensor, n_classes: int, hints: Hints = NO_HINTS
) -> tuple[Head, Tensor | None]:
    """`bankless_head`, and what its discriminant says of each support row without it, `(T, S, N)`; None at one shot."""
    with torch.no_grad():
        if support.shape[2] < _EMBEDDING:  # rows of any length: the same at every scale
            scale = support.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
            head, left_out = _discriminant_and_logistic(support / scale, labels, n_classes)
            return LinearHead(head.weight / scale, head.bias), left_out
        if support.shape[1] == n_classes:

            def log_odds(variance: Tensor) -> Tensor:
                examples = one_shot_log_odds(variance, hints.gap)
                return examples if hints.odds is None else hints.odds.of(examples)

            return one_shot_head(support, labels, n_classes, log_odds, hints.centre), None
        return _discriminant_and_logistic(support, labels, n_classes)


def _discriminant_and_logistic(support: Tensor, labels: Tensor, n_classes: int) -> Fitted:
    means = class_means(support, labels, n_classes)
    log_odds = _log_odds(means, support.shape[1] / n_classes)
    # Neither classifier depends on the origin, but rounding does: of rows that are all much alike, as those of many
    # transformers are, nothing of what tells them apart would be left in their products.
    centre = support.mean(dim=1, keepdim=True)
    support = support - centre
    length = support.square().sum(dim=2).mean(dim=1).sqrt().clamp(min=1e-12)[:, None, None]
    scaled, means = support / length, (means - centre) / length
    one = means.new_ones(means.shape[2])
    parts = Discriminant(scaled, labels, means, one, 0 * one, RIDGE, unbiased=True)
    discriminant, left_out = parts.fitted(log_odds / squared_separation(means))
    discriminant = LinearHead(discriminant.weight / length, discriminant.bias)
    larger = (_LEAST_LENGTH / length).clamp(min=1)
    logistic = bankless_logistic(larger * support, labels, n_classes)
    # How many examples a class has says nothing of how often it is asked for.
    counts = membership(labels, n_classes, means.dtype).sum(dim=1).clamp(min=1)
    even = LinearHead(larger * logistic.weight, logistic.bias - (counts / counts.amax(dim=1, keepdim=True)).log())
    head = _average(discriminant, even)
    return Fitted(LinearHead(head.weight, head.bias - (head.weight @ centre.mT).squeeze(-1)), left_out)


def _log_odds(means: Tensor, shots: float) -> Tensor | float:
    """The guess of γ times the squared separation of class means `(T, N, D)`.

    As at one shot, cosines tell what is possible; the mean of K examples has up to √K times the cosine with its class.
    """
    if means.shape[2] < _EMBEDDING:
        return SHARPNESS
    variance = cosine_variance(means - common_part(means))
    return (shots**0.5 * one_shot_log_odds(variance)).clamp(max=SHARPNESS)


def common_part(rows: Tensor, base: UnitCentre | None = None) -> Tensor:
    r"""What rows `(T, N, D)` of N classes, one each, have in common, `(T, 1, D)`: a share of their mean m.

        ρN / (ρN + 1 − ρ),    ρ = mean cosine of two rows, at least 0

    The squared length of the mean of N unit vectors is ρ + (1 − ρ)/N, of which the second part is chance and would be
    taken away from each row with the rest: little is common where rows are unlike, nearly all of the mean where they
    are much alike.

    Base classes know more of it, where they are of the same domain. Their mean b then differs from m by no more than
    the variances of both, a = (1 − ρ)/N and v; by more in another domain, δ. m becomes (1 − w)m + wb with

        w = a / (a + v + 2δ),    δ = (‖m − b‖² − a − v)₊

    as if it were the mean of N/(1 − w) rows. δ counts twice: what is centred elsewhere differs in other ways too.

    >>> common_part(torch.eye(2)[None]).abs().max(), common_part(torch.ones(1, 3, 2))[0, 0]
    (tensor(0.), tensor([1., 1.]))
    """
    n, mean = rows.shape[1], rows.mean(dim=1, keepdim=True)
    squares = rows.square().sum(dim=(1, 2), keepdim=True)
    alike = (n * n * mean.square().sum(dim=2, keepdim=True) - squares).clamp(min=0) / max(n - 1, 1)  # N ρ
    chance = (squares - alike).clamp(min=0) / n  # 1 − ρ
    if base is not None:
        known = base.mean.to(mean)
        gap = (mean - known).square().sum(dim=2, keepdim=True) - chance / n - base.variance
        share = chance / n / (chance / n + base.variance + 2 * gap.clamp(min=0)).clamp(min=1e-12)
        mean, chance = torch.lerp(mean, known, share), (1 - share) * chance
    return alike / (alike + chance).clamp(min=1e-12) * mean


def bankless_logistic(support: Tensor, labels: Tensor, n_classes: int) -> LinearHead:
    """Logistic regression, in the span of the rows: its weights lie there, and rows are often fewer than features."""
    if support.shape[1] >= support.shape[2]:
        return lbfgs_head(support, labels, n_classes, C=C)
    gram = support @ support.mT
    # Rows may be the same, and what rounding makes of a small eigenvalue grows with the trace; all may be zero.
    ridge = (1e-6 * gram.diagonal(dim1=1, dim2=2).sum(dim=1)).clamp(min=1e-30)[:, None, None]
    lower = torch.linalg.cholesky(gram + ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device))
    head = lbfgs_head(lower, labels, n_classes, C=C)  # X = LQ: in the rows of Q those of X are those of L
    inside = torch.linalg.solve_triangular(lower, head.weight, upper=False, left=False)
    return LinearHead(inside @ support, head.bias)


@dataclass(frozen=True, eq=False)
class CentredHead(Head):
    """A head on rows that are moved by `centre (T, 1, D)` and scaled to unit length again."""

    head: LinearHead
    centre: Tensor

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of unit-length rows `x (T, Q, D)`."""
        return self.head.logits(l2_normalise(x - self.centre))

    def to(self, device: torch.device | str) -> CentredHead:
        return CentredHead(self.head.to(device), self.centre.to(device))


def one_shot_head(
    support: Tensor,
    labels: Tensor,
    n_classes: int,
    log_odds: Callable[[Tensor], Tensor],
    base: UnitCentre | None = None,
) -> CentredHead:
    """The nearest of one example a class; `log_odds` of an example, `(T,)`, by the variance of their cosines."""
    centre = common_part(support, base)
    means = class_means(l2_normalise(support - centre), labels, n_classes)
    gamma = (log_odds(cosine_variance(means)) / squared_separation(means))[:, None]
    head = LinearHead(2 * gamma[..., None] * means, -gamma * torch.linalg.vecdot(means, means))
    return CentredHead(head, centre)


def _average(a: LinearHead, b: LinearHead) -> LinearHead:
    """The mean of two heads, the second scaled so that the weights of both are equally long around their mean."""

    def length(head: LinearHead) -> Tensor:
        centred = head.weight - head.weight.mean(dim=1, keepdim=True)
        return torch.linalg.vector_norm(centred, dim=(1, 2)).clamp(min=1e-12)

    scale = (length(a) / length(b))[:, None]
    return LinearHead((a.weight + scale[..., None] * b.weight) / 2, (a.bias + scale * b.bias) / 2)
