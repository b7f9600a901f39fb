r"""Support-only: the classifier without base classes, for no bank and for banks of another domain.

It works on rows of unit length. Their common part is subtracted first (`common_part`), and with one example a class the
nearest example answers. With more, a linear discriminant uses the scatter of the support (`fewcal.hgdc.discriminant`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fewcal.gaussianize import Gaussianization, l2_normalise
from fewcal.heads.base import Head
from fewcal.heads.linear import LinearHead, class_means
from fewcal.hgdc.discriminant import Discriminant
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.methods.registry import register_method

if TYPE_CHECKING:
    from torch import Tensor

# All chosen on validation classes of benchmarks/accuracy/default.py: the ridge of the scatter in OAS ridges, the limit
# of the log-odds of an example, and the gap of the cosine within a class to that between classes.
SCATTER_RIDGE, MAX_LOG_ODDS, COSINE_GAP = 25.0, 12.0, 0.33
# The same for the mean of several examples.
MAX_MEAN_LOG_ODDS = 8.0
# Variance of cosines between classes before any is seen, counted as one cosine.
COSINE_VARIANCE = 1 / 60
# Features below which rows are measurements, whose length carries information, and no embedding.
EMBEDDING_FEATURES = 32


@register_method
class SupportOnly(Method):
    """No base classes: unit-length rows and a discriminant with the scatter of the support."""

    name = "support-only"

    def __init__(self, before: Gaussianization | None = None) -> None:
        self.before = before

    @property
    def space(self) -> Hashable:
        return "unit" if self.before is None else ("unit", id(self.before))

    @property
    def row_map(self) -> RowMap:
        return UnitRows(self.before)

    def fit(self, batch: TaskBatch) -> Head:
        return fit_support_only(batch.support, batch.labels, batch.n_classes)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows of unit length, or as they are with less than `EMBEDDING_FEATURES`; `before` is a transform to apply first."""

    before: Gaussianization | None = None

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(R, D)`."""
        x = x if self.before is None else self.before(x, name)
        return l2_normalise(x) if x.shape[-1] >= EMBEDDING_FEATURES else x

    def to(self, device: torch.device | str) -> UnitRows:
        """The same on `device`."""
        return self if self.before is None else UnitRows(self.before.to(device))


def fit_support_only(support: Tensor, labels: Tensor, n_classes: int) -> Head:
    """The classifier for support rows `(T, S, D)` of `UnitRows` with labels `(T, S)`."""
    with torch.no_grad():
        if support.shape[2] < EMBEDDING_FEATURES:  # rows of any length: the same at every scale
            scale = support.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
            head = _discriminant(support / scale, labels, n_classes)
            return LinearHead(head.weight / scale, head.bias)
        if support.shape[1] == n_classes:
            return _nearest_example(support, labels, n_classes)
        return _discriminant(support, labels, n_classes)


def _discriminant(support: Tensor, labels: Tensor, n_classes: int) -> LinearHead:
    means = class_means(support, labels, n_classes)
    gamma = _mean_log_odds(means, support.shape[1] / n_classes) / squared_separation(means)
    # The classifier does not depend on the origin or the scale, but rounding does.
    centre = support.mean(dim=1, keepdim=True)
    support = support - centre
    length = support.square().sum(dim=2).mean(dim=1).sqrt().clamp(min=1e-12)[:, None, None]
    one = means.new_ones(means.shape[2])
    means = (means - centre) / length
    parts = Discriminant(support / length, labels, means, one, 0 * one, SCATTER_RIDGE, unbiased=True)
    head = parts.fit(gamma * length.flatten().square()).head
    weight = head.weight / length
    return LinearHead(weight, head.bias - (weight @ centre.mT).squeeze(-1))


def _mean_log_odds(means: Tensor, shots: float) -> Tensor | float:
    """Prior guess of γ times the squared separation of class means `(T, N, D)`.

    The mean of K examples has up to √K times the cosine of one with its class.
    """
    if means.shape[2] < EMBEDDING_FEATURES:
        return MAX_MEAN_LOG_ODDS
    variance = cosine_variance(means - common_part(means))
    return (shots**0.5 * one_shot_log_odds(variance)).clamp(max=MAX_MEAN_LOG_ODDS)


def _nearest_example(support: Tensor, labels: Tensor, n_classes: int) -> CentredHead:
    centre = common_part(support)
    means = class_means(l2_normalise(support - centre), labels, n_classes)
    gamma = (one_shot_log_odds(cosine_variance(means)) / squared_separation(means))[:, None]
    head = LinearHead(2 * gamma[..., None] * means, -gamma * torch.linalg.vecdot(means, means))
    return CentredHead(head, centre)


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


def common_part(rows: Tensor) -> Tensor:
    r"""What rows `(T, N, D)` of N classes, one each, have in common, `(T, 1, D)`: a share of their mean m.

        ρN / (ρN + 1 − ρ),    ρ = mean cosine of two rows, at least 0

    The squared length of the mean of N unit vectors is ρ + (1 − ρ)/N, of which the second part is chance. Little is
    common where cosines are small, nearly all of the mean where they are large.

    >>> common_part(torch.eye(2)[None]).abs().max(), common_part(torch.ones(1, 3, 2))[0, 0]
    (tensor(0.), tensor([1., 1.]))
    """
    n, mean = rows.shape[1], rows.mean(dim=1, keepdim=True)
    squares = rows.square().sum(dim=(1, 2), keepdim=True)
    common = (n * n * mean.square().sum(dim=2, keepdim=True) - squares).clamp(min=0) / max(n - 1, 1)  # N ρ
    chance = (squares - common).clamp(min=0) / n  # 1 − ρ
    return common / (common + chance).clamp(min=1e-12) * mean


def squared_separation(means: Tensor) -> Tensor:
    """Mean squared distance between two class means of a task, `(T,)`, for `means (T, N, D)`.

    >>> squared_separation(torch.tensor([[[0.0], [3.0]]]))
    tensor([9.])
    """
    n = means.shape[1]
    scatter = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    return (2 * scatter / max(n - 1, 1)).clamp(min=1e-12)


def cosine_variance(rows: Tensor) -> Tensor:
    """Variance `(T,)` of the cosines between rows `(T, N, D)` of N classes, one each.

    `COSINE_VARIANCE` counts as one more cosine.

    >>> cosine_variance(torch.eye(3)[None]).mul(60 * 3)
    tensor([1.])
    """
    rows, n = l2_normalise(rows), rows.shape[1]
    pairs = n * (n - 1) // 2
    cosines = (rows @ rows.mT).tril(-1)  # each pair once
    total, squares = cosines.sum(dim=(1, 2)), cosines.square().sum(dim=(1, 2))
    around = torch.addcmul(squares, total, total, value=-1 / max(pairs, 1))
    return (around + COSINE_VARIANCE) / max(pairs, 1)


def one_shot_log_odds(variance: Tensor) -> Tensor:
    r"""Log-odds `(T,)` of an example for its own class against another, where one example a class is all that is known.

    Cosines scatter with `variance` v, those of a query with its own class around a mean that is higher by Δ = 0.33: the
    likelihood ratio of two normal distributions rises with slope Δ/v. Classes resemble each other for other reasons
    than chance, too, so

        log-odds = (1/12² + v²/Δ²)^(−1/2)

    In many dimensions v is small and the first term decides, in few the second.

    >>> one_shot_log_odds(torch.tensor([0.0, 0.1]))
    tensor([12.0000,  3.1819])
    """
    return (MAX_LOG_ODDS**-2 + (variance / COSINE_GAP).square()).rsqrt()
