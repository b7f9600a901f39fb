r"""GDC as a hierarchical Gaussian model, the `default`: everything that it needs to know follows from the bank.

1. The power transform is the gentlest that makes base classes Gaussian (`fewcal.power_choice`).
2. Rows are centred, features that spread far more than others brought down, rows scaled to unit length, whitened with
   the pooled covariance and scaled again.
3. The base means and the near ones among them are the prior of a class mean, its examples the likelihood
   (`fewcal.class_prior`): eq. 5 with weights that fall with the number of examples.
4. The posterior predictive classifies, together with the scatter of the support (`fewcal.heads.discriminant`): with one
   example the base classes have most of the say, with many the examples.

How far the base classes are trusted is judged before: a bank whose means are noise is not used at all
(`fewcal.methods.bankless` answers). Few base classes have less of a say as neighbours, and little else than their
covariance is left of them; and where they are few, or the task does not lie along the directions in which they differ,
the two classifiers share the answer, unless support rows that are left out show that the model knows them better.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict
from warnings import warn

import torch

from fewcal._utils.scales import at_most, between
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.bank.build import OneShotScale
from fewcal.calibrate import Calibration, distances
from fewcal.class_prior import ClassPrior, Posterior, fit_class_prior, posterior, prior_bank
from fewcal.domain_match import Trust
from fewcal.errors import FewcalWarning
from fewcal.gaussianize import Gaussianization
from fewcal.heads.base import Head
from fewcal.heads.discriminant import (
    COSINE_GAP,
    Discriminant,
    Fitted,
    cosine_variance,
    doubted,
    one_shot_log_odds,
)
from fewcal.heads.linear import ClassShots, LinearHead, class_shots, class_sizes
from fewcal.learnt_classes import learnt
from fewcal.methods.bankless import BaseOdds, Hints, UnitRows, bankless_head, base_centre, fit_bankless
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.methods.base_tasks import one_shot_scale
from fewcal.params import GDCParams
from fewcal.trust import reliability, say_with_evidence, say_with_shots, why_ignored, why_partly_used

if TYPE_CHECKING:
    from torch import Tensor

# Match of the support with the domain of the bank up to which base classes have no say, and from which they have all.
UNLIKE, LIKE = 0.2, 0.4
# A say of the base classes below which it is told.
LITTLE_SAY = 0.5
# The share of the gap of cosines of base classes that new classes have, at one shot: fitted to validation classes.
_GAP_KEPT = 0.8
# γ in units of that of one-shot tasks of base classes, times K^(1/4) with K examples: of base classes as they are, and
# as new ones would be to an extractor that learnt them. And the most of the first, in units of the guess without such
# tasks, with many base classes and with none. All chosen on validation classes.
_AS_THEY_ARE, _AS_NEW = 1.1, 0.95
_MOST_OF_GUESS, _MOST_OF_GUESS_OF_FEW = 1.05, 1.5
# The say of as many base classes as it takes for their tasks to tell what examples are worth without base classes.
_TASKS_TELL = 0.25
# Classes of a task from which on they share their neighbours, which are worth less then: chosen on validation classes.
_SHARED = 10
# Columns that hold the length of a row: gathering rows is quicker where each begins at a multiple of 64 bytes.
_ALIGNED = 16
# Base classes that an explanation names for a support point, at most.
_EXPLAINED = 16


class _Weights(TypedDict):
    """τ and κ0, as `posterior` takes them."""

    sharpness: Tensor | float
    strength: float


class HierarchicalGDC(Method):
    """The hierarchical model with `GDCParams(model="hierarchical")`.

    Rows in its space are those of the model, behind them the same rows as the bank-less classifier sees them, and the
    logarithm of their length; in support whose raw rows the batch has, those of the model alone are enough.
    """

    name = "gdc"
    needs_bank = True
    prior: ClassPrior
    # What tasks of base classes tell of one example a class, where the bank keeps rows.
    one_shot: OneShotScale | None = None
    _centred_space: BaseBank
    _given: BaseBank
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
        space = bank.transformed(**{**p.space, "center": True, "l2": True}, moments=True)
        share = reliability(space)
        self.unused = why_ignored(len(space), share) if p.trust == "auto" else None
        if self.unused is not None:
            words = f"the bank is not used: {self.unused}; answers come from your examples alone"
            warn(words, FewcalWarning, stacklevel=2)
            return self
        key = ("class prior", float(p.whiten), p.floor)
        ridge = float(p.whiten) / max(share, 0.01) ** 2  # where base means are noisy, so is much of their covariance
        self.prior = space.memo.get(key, lambda: fit_class_prior(space, ridge, p.floor))
        self._centred_space = space
        self._given = bank
        self.one_shot = space.memo.get(
            ("one-shot scale", *key, p.sharpness, p.strength, self.say),
            lambda: one_shot_scale(
                bank, space, self.prior, self.confidence, say=self.say, sharpness=p.sharpness, strength=p.strength
            ),
        )
        if self.say < LITTLE_SAY:
            words = f"{self.partly_used}; at one shot they have a say of {self.say:.0%} beside your examples"
            warn(words, FewcalWarning, stacklevel=2)
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
        """Rows `(*B, D)` in the space of the bank, of rows `(*B, 2D + 16)` in that of the method."""
        return self._centred(x) + self.prior.origin

    def _centred(self, x: Tensor) -> Tensor:
        dim = self.prior.origin.shape[0]
        return x if x.shape[-1] == dim else x[..., :dim]

    @property
    def partly_used(self) -> str | None:
        """Why the base classes have less than all of the say in any task, and what is used of them."""
        return why_partly_used(len(self.prior.means)) if self.params.trust == "auto" else None

    @property
    def say(self) -> float:
        """The say of the base classes as neighbours, and of their model in tasks of one shot."""
        return self.prior.say if self.params.trust == "auto" else 1.0

    def say_at(self, shots: float) -> float:
        """The say of their model in tasks of so many shots."""
        return 1.0 if self.say == 1 else say_with_shots(self.say, shots, self.prior.ridge_share)

    def trust(self, batch: TaskBatch) -> Trust:
        """The say of the base classes in each task, as `fit` uses it."""
        share = self._fit(batch).trust
        return Trust(share, share <= 0 if self.params.trust == "auto" else None)

    def _trust_before(self, batch: TaskBatch) -> Tensor:
        """The share `(T,)` before rows are left out: by the number of base classes, and by where the task lies.

        The match of N classes, told in units of the say of C base classes, is known up to e/√(N − 1) of these, e the
        `alignment_error`. Where that is more than what lies between tasks that are like the base classes and those that
        are not, the match counts by as much less.
        """
        p = self.params
        if p.trust != "auto":
            return batch.support.new_full((len(batch.support),), float(p.trust))
        most, share = self.say_at(batch.shots), self._in_domain(batch)
        return share if most == 1 else most * share

    def _in_domain(self, batch: TaskBatch) -> Tensor:
        """How far each task lies in the domain of the base classes, `(T,)` from 0 to 1."""
        share = self.prior.domain_match(self._centred(batch.support), UNLIKE, LIKE).clamp_(0, 1)
        known = (LIKE - UNLIKE) * (batch.n_classes - 1) ** 0.5 * self.prior.say / self.prior.alignment_error
        return share if known >= 1 else 1 - known * (1 - share)

    def _learnt(self, batch: TaskBatch) -> Tensor | float:
        """The probability that the extractor learnt the base classes, for each task where its rows tell, `(T,)`."""
        scale = self.one_shot
        if scale is None:
            return 0.0
        if scale.spread == 0:
            return learnt(scale.learnt, None, batch.n_classes)
        length = batch.support[..., -1:] if batch.raw is None else self.prior.transform.log_length(batch.raw)
        return learnt(scale.learnt, (scale.length - length.mean(dim=(1, 2))) / scale.spread, batch.n_classes)

    def calibration(self, batch: TaskBatch) -> Calibration:
        """What the prior does to each support point, in the terms of eq. 5: its nearest base classes and their shares.

        The share of the prior in a posterior mean differs by direction; its average over directions is told.
        """
        k, weighed = min(_EXPLAINED, len(self.bank)), self._weights(batch, self._learnt(batch))
        support = self._centred(batch.support)
        weights = self.prior.neighbours(support, weighed["sharpness"])
        shots = class_sizes(batch.labels)
        found = posterior(self.prior, support, shots, say=self.say, **weighed)
        prior = (found.worth / (shots[..., None] + found.worth)).mean(dim=-1, keepdim=True)
        share = self.say * prior * self.trust(batch).share[:, None, None]
        top, index = weights.topk(k, dim=-1)
        top = share * top / top.sum(dim=-1, keepdim=True)
        every = distances(self.in_bank(batch.support), self.bank) / self.prior.unit
        return Calibration(index, every.gather(-1, index), top / (1 - share), found.mean + self.prior.origin)

    def fit(self, batch: TaskBatch) -> Head:
        if self.unused is not None:
            return bankless_head(batch.support, batch.labels, batch.n_classes)
        return self._fit(batch)

    def _fit(self, batch: TaskBatch) -> BlendedHead:
        p = self.params
        with torch.inference_mode():
            support, known = self._centred(batch.support), self._learnt(batch)
            weights = self._weights(batch, known)
            shots = class_shots(batch.labels, batch.n_classes, support.dtype)
            own = shots.means(support)
            trust = self._trust_before(batch)
            found = posterior(self.prior, own, shots.each, say=self.say, **weights)
            parts = Discriminant(support, batch.labels, found.mean, found.precision, found.worth, p.scatter)
            model = parts.fitted(self._gamma(own, shots, found, known, weights), shots)
            if float(trust.min()) >= 1:
                return BlendedHead(model.head, None, trust, batch.shots)
            return blended(model, batch, trust, self._hints(batch, known), judged=p.trust == "auto")

    def _hints(self, batch: TaskBatch, known: Tensor | float) -> Hints:
        """What the base classes tell the bank-less classifier; `known` is how likely they were learnt."""
        centre = base_centre(self._given)
        if self.one_shot is None:
            return Hints(self.cosine_gap, centre)
        odds, told = (self.one_shot.log_odds, self.one_shot.new_log_odds), self._in_domain(batch)
        if self.say < _TASKS_TELL:
            told = (self.say / _TASKS_TELL) ** 2 * told
        return Hints(COSINE_GAP, centre, BaseOdds(*odds, known, told, 1 + (1 - self.say) / 4))

    def _weights(self, batch: TaskBatch, known: Tensor | float) -> _Weights:
        """τ and κ0; `known` is how likely base classes were learnt.

        Neighbours that many classes share do not tell them apart. And which are near one example can be told no more
        surely than which class a row is of: where tasks of base classes allow less of γ than its guess, τ is as much
        less. The mean of K examples tells it √K times as surely.
        """
        sharpness, strength = self.params.sharpness, self.params.strength * min(1.0, _SHARED / batch.n_classes)
        if self.one_shot is None:
            return {"sharpness": sharpness, "strength": strength}
        guess = self.confidence / batch.shots**0.5
        as_they_are = min(1.0, _AS_THEY_ARE * self.one_shot.gamma / guess)
        as_new = min(as_they_are, _AS_NEW * self.one_shot.new_gamma / guess)
        softer = as_new if as_new == as_they_are else between(as_they_are, as_new, known)
        return {"sharpness": sharpness * softer, "strength": strength}

    def _gamma(
        self, own: Tensor, shots: ClassShots, found: Posterior, known: Tensor | float, weights: _Weights
    ) -> Tensor | float:
        """γ in each task, `(T,)`, for class means `own (T, N, D)`; `known` is how likely base classes were learnt.

        Where rows of base classes are known, tasks of these tell it: as they are for an extractor that never saw them,
        and as new classes would be for one that learnt them; neither far from the guess without them.
        """
        guess = self._guess(own, shots, found, weights)
        scale = self.one_shot
        if scale is None:
            return guess
        more = float(shots.average**0.25)
        most = _MOST_OF_GUESS * self.say + _MOST_OF_GUESS_OF_FEW * (1 - self.say)
        as_they_are = at_most(most * guess, _AS_THEY_ARE * more * scale.gamma)
        as_new = at_most(at_most(guess, _AS_THEY_ARE * more * scale.gamma), _AS_NEW * more * scale.new_gamma)
        return between(as_they_are, as_new, known)

    def _guess(self, own: Tensor, shots: ClassShots, found: Posterior, weights: _Weights) -> Tensor | float:
        """The guess of γ without tasks of base classes.

        `confidence` is that of a bank of many classes. With fewer the log-odds of an example stay the same, and at one
        shot they are, by the say of the base classes, those of examples without base classes. At one shot they cannot
        exceed what the cosines of examples of different classes allow.
        """
        one_shot = shots.most <= 1
        if self.say == 1 and (self.one_shot is not None or (not one_shot and self.cosine_gap >= COSINE_GAP)):
            return self.confidence
        apart = own_log_odds(own, found)
        if self.say == 1:
            odds = shots.average**0.5 * self.cosine_gap / cosine_variance(own)
            return (odds / apart).clamp(max=self.confidence)
        whole = posterior(self.prior, own, shots.each, **weights)
        odds = self.confidence * own_log_odds(own, whole)
        if one_shot:
            variance, gap = cosine_variance(own), self.cosine_gap
            full, none = torch.minimum(odds, gap / variance), one_shot_log_odds(variance, gap)
            odds = full**self.say * none ** (1 - self.say)
        return odds / apart

    @property
    def cosine_gap(self) -> float:
        """By how much the cosine of two rows of a new class exceeds that of rows of two, at most.

        As much as is usual where rows tell more (`one_shot`), or where the extractor learnt to tell base classes apart;
        where it never saw them, as much as that of theirs. Of few base classes, which may be coarser or finer than new
        ones, by their say.
        """
        if self.one_shot is not None:
            return COSINE_GAP
        known = min(COSINE_GAP, _GAP_KEPT * self.prior.gap)
        return COSINE_GAP ** (1 - self.say) * known**self.say

    @property
    def confidence(self) -> float:
        """The guess of γ: how fast probabilities rise with scores.

        In a world of round classes it would be 1/(2·variance). Real ones are longer where classes differ, and novel
        classes scatter more than base classes do: the powers were fitted to the calibration error of one-shot tasks of
        5 and 20 validation classes of all feature sets. With answers that are `doubted` the same factor is best.
        """
        within, along = self.prior.within, self.prior.along
        return 3.77 * (within / (2 * along)) ** 0.53 * within**0.38

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        neighbours = 0 if self.unused is not None else n_classes * len(self.prior.means)
        return 4 * (12 * n_support * dim + 4 * n_support * min(n_support, dim) + neighbours)


def own_log_odds(own: Tensor, found: Posterior) -> Tensor:
    """How much higher a class scores at the mean of its examples than other classes do, on average, `(T,)`; γ = 1."""
    # What a class scores whatever the row cancels out: this is the covariance of means and directions Pμ.
    together = ((own - own.mean(dim=1, keepdim=True)) * found.mean) * found.precision
    return (2 / max(own.shape[1] - 1, 1) * together.sum(dim=(1, 2))).clamp(min=1e-9)


@dataclass(frozen=True, eq=False)
class PairedRows:
    """Rows as the model sees them, less the origin, as the bank-less classifier does, and their length: `(R, 2D + 16)`.

    Without `paired` those of the model alone, for a head that looks at no more.
    """

    model: Gaussianization
    origin: Tensor
    paired: bool = True

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows."""
        if not self.paired:
            return self.model(x, name).sub_(self.origin)
        rows, length = self.model.with_log_length(x, name)
        return torch.cat([rows.sub_(self.origin), UnitRows()(x), length.expand(-1, _ALIGNED)], dim=-1)

    @property
    def of_model(self) -> PairedRows:
        """The map without the second half."""
        return PairedRows(self.model, self.origin, paired=False)

    def to(self, device: torch.device | str) -> PairedRows:
        """The same on `device`."""
        return replace(self, model=self.model.to(device), origin=self.origin.to(device))


@dataclass(frozen=True, eq=False)
class BlendedHead(Head):
    """Log-probabilities of two heads, mixed by trust `(T,)`; rows hold those of the first, then of the second.

    `plain` is None where every task trusts the base classes fully. The fewer `shots`, the more the first is `doubted`.
    """

    head: LinearHead
    plain: Head | None
    trust: Tensor
    shots: float

    @property
    def width(self) -> int | None:
        return self.head.weight.shape[-1] if self.plain is None else None

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Scores `(T, Q, N)` of rows `x (T, Q, 2D + 16)`, or `(T, Q, D)` where there is no second head."""
        d = self.head.weight.shape[-1]
        scores = doubted(self.head.logits(x[..., :d]), self.shots)
        if self.plain is None:
            return scores
        g = self.trust[:, None, None]
        plain = torch.log_softmax(self.plain.logits(x[..., d : 2 * d]), dim=-1)
        return g * torch.log_softmax(scores, dim=-1) + (1 - g) * plain

    def to(self, device: torch.device | str) -> BlendedHead:
        return replace(
            self, head=self.head.to(device), plain=self.plain and self.plain.to(device), trust=self.trust.to(device)
        )


def blended(model: Fitted, batch: TaskBatch, trust: Tensor, hints: Hints, judged: bool) -> BlendedHead:
    """The head of the base classes and that of the support alone, each with its say.

    Where trust `(T,)` is `judged`, rather than given, rows that were left out can raise it.
    """
    dim = model.head.weight.shape[-1]
    rows = batch.support[..., dim : 2 * dim] if batch.raw is None else UnitRows()(batch.raw)
    plain, left_out = fit_bankless(rows, batch.labels, batch.n_classes, hints)
    if judged and model.left_out is not None and left_out is not None:
        trust = say_with_evidence(trust, left_out_gain(model.left_out, left_out, batch.labels))
    return BlendedHead(model.head, plain, trust, batch.shots)


def left_out_gain(model: Tensor, plain: Tensor, labels: Tensor) -> Tensor:
    """By how much `model` knows the rows of a class better than `plain`, on average less its standard error, `(T,)`.

    Both score each support row as if it had not been there, `(T, S, N)`; the gain is in log-likelihood. Of two rows of
    a class, or of the only one, nothing is said.

    >>> sure, unsure, labels = torch.tensor([[[9.0, 0.0]] * 3]), torch.zeros(1, 3, 2), torch.tensor([[0, 0, 0]])
    >>> left_out_gain(sure, unsure, labels), left_out_gain(sure[:, :2], unsure[:, :2], labels[:, :2])
    (tensor([0.5198]), tensor([0.]))
    """
    own = labels[..., None]
    more = (torch.log_softmax(model, dim=-1) - torch.log_softmax(plain, dim=-1)).gather(2, own).squeeze(-1)
    rows = class_sizes(labels)
    more = more * ((rows - 2).clamp(min=0) / (rows - 1).clamp(min=1))
    error = torch.linalg.vector_norm(more - more.mean(dim=1, keepdim=True), dim=1)
    return (more.sum(dim=1) - error) / model.shape[2]
