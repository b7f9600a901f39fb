r"""GDC as a hierarchical Gaussian model, the `default`: everything that it needs to know follows from the bank.

1. β of the power transform is the gentlest that makes base classes Gaussian (`fewcal.power_choice`).
2. Rows are centred, scaled to unit length, whitened with the pooled covariance and scaled again.
3. The base means and the near ones among them are the prior of a class mean, its examples the likelihood
   (`fewcal.class_prior`): eq. 5 with weights that fall with the number of examples.
4. The posterior predictive classifies, together with the scatter of the support (`fewcal.heads.discriminant`): with one
   example the base classes have most of the say, with many the examples.

How far the base classes are trusted is judged before: a bank whose means are noise is not used at all
(`fewcal.methods.bankless` answers), nor is one of few classes; between that and full trust, and where base classes do
not resemble those of the task, the two classifiers share the answer.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from warnings import warn

import torch
from torch import Tensor

from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, distances
from fewcal.class_prior import (
    ClassPrior,
    enough_classes,
    fit_class_prior,
    posterior,
    prior_bank,
    reliability,
    why_ignored,
)
from fewcal.domain_match import Trust
from fewcal.errors import FewcalWarning
from fewcal.gaussianize import Gaussianization
from fewcal.heads.base import Head
from fewcal.heads.discriminant import Discriminant
from fewcal.heads.linear import LinearHead, class_means, class_sizes, membership
from fewcal.methods.bankless import UnitRows, bankless_head
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.params import GDCParams

# Resemblance of the support to its neighbours, as a share of that of held-out base classes: none and all of the say.
_UNLIKE, _LIKE = 0.5, 0.8
# Rows looked at together.
_AT_ONCE = 2048
# Base classes that an explanation names for a support point, at most.
_EXPLAINED = 16


class HierarchicalGDC(Method):
    """The hierarchical model with `GDCParams(model="hierarchical")`.

    Rows in its space are those of the model, and behind them the same rows as the bank-less classifier sees them.
    """

    name = "gdc"
    needs_bank = True
    prior: ClassPrior
    _centred_space: BaseBank
    # Why the bank is not used, where it is not; then the method is the bank-less classifier.
    unused: str | None = None

    def __init__(self, params: GDCParams) -> None:
        self.params = params

    @property
    def settings(self) -> dict[str, JSON]:
        return self.params.as_dict()

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        self.params = p = self.params.for_bank(bank)
        space = bank.transformed(beta=float(p.beta), kind=p.kind, eps=p.eps, center=True, l2=True, moments=True)
        share = reliability(space)
        self.unused = why_ignored(len(space), share) if p.trust == "auto" else None
        if self.unused is not None:
            words = f"the bank is not used: {self.unused}; answers come from your examples alone"
            warn(words, FewcalWarning, stacklevel=2)
            return self
        key = ("class prior", float(p.whiten), p.floor, p.sharpness)
        ridge = float(p.whiten) / max(share, 0.01) ** 2  # where base means are noisy, so is much of their covariance
        self.prior = space.memo.get(key, lambda: fit_class_prior(space, ridge, p.floor, p.sharpness))
        self._centred_space = space
        self.set_space(self.prior.transform, bank, *key)
        return self

    @property
    def bank(self) -> BaseBank:
        """The bank in the space of the prior, for explanations and outlier tests."""
        space = self._centred_space
        return space.memo.get(("bank of", self.prior), lambda: prior_bank(self.prior, space))

    @property
    def space(self) -> Hashable:
        return super().space if self.unused is None else "unit"

    @property
    def row_map(self) -> RowMap:
        if self.unused is not None:
            return UnitRows()
        return PairedRows(self.prior.transform, self.prior.origin)

    def in_bank(self, x: Tensor) -> Tensor:
        """Rows `(*B, D)` in the space of the bank, of rows `(*B, 2D)` in that of the method."""
        return self._centred(x) + self.prior.origin

    def _centred(self, x: Tensor) -> Tensor:
        return x[..., : len(self.prior.origin)]

    def precompute(self, z: Tensor) -> Tensor | None:
        """How much each row resembles its neighbours among the base classes, `(R, 1)`: what trust is judged by."""
        if self.params.trust != "auto" or self.unused is not None:
            return None
        parts = [self.prior.resemblance(self._centred(part), self.params.sharpness) for part in z.split(_AT_ONCE)]
        return torch.cat(parts)[:, None]

    def trust(self, batch: TaskBatch) -> Trust:
        """The say of the base classes in each task."""
        p = self.params
        if p.trust != "auto":
            return Trust(batch.support.new_full((len(batch.support),), float(p.trust)), None)
        if batch.precomputed is None:
            like = self.prior.resemblance(self._centred(batch.support), p.sharpness)
        else:
            like = batch.precomputed[..., 0]
        ratio = ((like.mean(dim=1) / self.prior.similarity - _UNLIKE) / (_LIKE - _UNLIKE)).clamp(0, 1)
        return Trust(enough_classes(len(self.prior.means)) * ratio, ratio <= 0)

    def calibration(self, batch: TaskBatch) -> Calibration:
        """What the prior does to each support point, in the terms of eq. 5: its nearest base classes and their shares.

        The share of the prior in a posterior mean differs by direction; its average over directions is told.
        """
        p, k = self.params, min(_EXPLAINED, len(self.bank))
        support = self._centred(batch.support)
        weights, _ = self.prior.neighbours(support, p.sharpness)
        worth = 1 / self.prior.psi + p.strength
        shots = class_sizes(batch.labels)[..., None].to(support.dtype)
        moved = (shots * support + worth * (weights @ self.prior.means)) / (shots + worth)
        share = (worth / (shots + worth)).mean(dim=-1, keepdim=True) * self.trust(batch).share[:, None, None]
        top, index = weights.topk(k, dim=-1)
        top = share * top / top.sum(dim=-1, keepdim=True)
        every = distances(self.in_bank(batch.support), self.bank) / self.prior.unit
        return Calibration(index, every.gather(-1, index), top / (1 - share), moved + self.prior.origin)

    def fit(self, batch: TaskBatch) -> Head:
        p = self.params
        if self.unused is not None:
            return bankless_head(batch.support, batch.labels, batch.n_classes)
        with torch.no_grad():
            support = self._centred(batch.support)
            own = class_means(support, batch.labels, batch.n_classes)
            shots = membership(batch.labels, batch.n_classes, support.dtype).sum(dim=1)
            found = posterior(self.prior, own, shots, sharpness=p.sharpness, strength=p.strength)
            parts = Discriminant(support, batch.labels, found.mean, found.precision, found.worth, p.scatter)
            return blended(parts.head(self.confidence), batch, self.trust(batch).share)

    @property
    def confidence(self) -> float:
        """The guess of γ: how fast probabilities rise with scores.

        In a world of round classes it would be 1/(2·variance). Real ones are longer where classes differ, and novel
        classes scatter more than base classes do: the powers were fitted to the calibration error of one-shot tasks of
        5 and 20 validation classes of all feature sets. With each set left out in turn it is 0.037 there on average.
        """
        within, along = self.prior.within, self.prior.along
        return 3.77 * (within / (2 * along)) ** 0.53 * within**0.38

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        neighbours = 0 if self.unused is not None else n_classes * len(self.prior.means)
        return 4 * (12 * n_support * dim + 4 * n_support * min(n_support, dim) + neighbours)


@dataclass(frozen=True, eq=False)
class PairedRows:
    """Rows as the model sees them, less the origin, and behind them as the bank-less classifier does: `(R, 2D)`.

    Without `paired` the model's alone, for a head that looks at no more.
    """

    model: Gaussianization
    origin: Tensor
    paired: bool = True

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows."""
        rows = self.model(x, name) - self.origin
        return torch.cat([rows, UnitRows()(x)], dim=-1) if self.paired else rows

    def to(self, device: torch.device | str) -> PairedRows:
        """The same on `device`."""
        return replace(self, model=self.model.to(device), origin=self.origin.to(device))


@dataclass(frozen=True, eq=False)
class BlendedHead(Head):
    """Log-probabilities of two heads, mixed by trust `(T,)`; rows hold those of the first and of the second.

    `plain` is None where every task trusts the base classes fully.
    """

    head: LinearHead
    plain: Head | None
    trust: Tensor

    @property
    def width(self) -> int | None:
        return self.head.weight.shape[-1] if self.plain is None else None

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `x (T, Q, 2D)`, or `(T, Q, D)` where there is no second head."""
        d = self.head.weight.shape[-1]
        scores = self.head.logits(x[..., :d])
        if self.plain is None:
            return scores
        g = self.trust[:, None, None]
        plain = torch.log_softmax(self.plain.logits(x[..., d:]), dim=-1)
        return g * torch.log_softmax(scores, dim=-1) + (1 - g) * plain

    def to(self, device: torch.device | str) -> BlendedHead:
        return BlendedHead(self.head.to(device), self.plain and self.plain.to(device), self.trust.to(device))


def blended(head: LinearHead, batch: TaskBatch, trust: Tensor) -> BlendedHead:
    """The head of the base classes and that of the support alone, each with its say."""
    d = batch.support.shape[-1] // 2
    plain = None
    if bool((trust < 1).any()):
        plain = bankless_head(batch.support[..., d:], batch.labels, batch.n_classes)
    return BlendedHead(head, plain, trust)
