"""HGDC: a hierarchical Gaussian model of class means, the method that fewcal recommends.

What it needs of the base classes follows from the bank (`fewcal.hgdc.prior`, `fewcal.hgdc.temperature`). The posterior
of the class means classifies, together with the scatter of the support (`fewcal.hgdc.discriminant`), in a mixture with
the support-only classifier (`fewcal.hgdc.mixture`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar
from warnings import warn

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter, SearchRange
from fewcal._utils.threads import single_thread
from fewcal.bank import BaseBank
from fewcal.bank.core import even_steps
from fewcal.errors import FewcalWarning
from fewcal.gaussianize import Gaussianization
from fewcal.heads.linear import LinearHead, class_shots
from fewcal.hgdc.discriminant import Discriminant
from fewcal.hgdc.mixture import MIN_RELIABILITY, fit_support_only, mean_reliability, mixture, unit_rows
from fewcal.hgdc.prior import MIN_VARIANCE, Posterior, Prior, base_weight, fit_prior, pooled_eigen
from fewcal.hgdc.temperature import STUDY_CLASSES, STUDY_ROWS, Study, cross_validate
from fewcal.hgdc.transduction import SoftPosterior, Transduction, transduce
from fewcal.methods.base import Contributions, Method, RowMap, TaskBatch, typical_distance
from fewcal.methods.registry import register_method

# Name of the mean of all base classes among those that contribute.
CENTRE = "(mean of all)"


@register_method
class HGDC(Method):
    """The hierarchical Gaussian model."""

    name = "hgdc"
    needs_bank = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "ridge": Parameter(
            "λ, ridge of the whitening in units of the mean variance; auto: from tasks of left-out base classes",
            low=1e-6,
            also=("auto",),
            search=SearchRange(0.01, 100.0, log=True),
        ),
        "kurtosis": Parameter(
            "the power transform is the gentlest that brings the within-class kurtosis below this; inf: none",
            low=1.0,
            infinite=True,
            search=SearchRange(3.5, 14.0, log=True),
        ),
        "spread": Parameter(
            "limit of the standard deviation of a feature, in units of the median; inf: none",
            low=1.0,
            infinite=True,
            search=SearchRange(1.0, 16.0, log=True),
        ),
        "floor": Parameter(
            "variance of new class means where base means do not differ, in units of that within classes",
            low=1e-6,
            search=SearchRange(0.02, 1.0, log=True),
        ),
        "sharpness": Parameter(
            "τ: how fast the weight of a base class falls with its distance; 0: all base classes weigh the same",
            low=0,
            search=SearchRange(0.5, 8.0, log=True),
        ),
        "classes": Parameter(
            "h: number of base classes at which these weigh one half",
            low=0,
            search=SearchRange(5.0, 200.0, log=True),
        ),
        "scatter": Parameter(
            "ridge of the scatter of the support, in OAS ridges; large: it does not count",
            low=1e-3,
            search=SearchRange(1.0, 100.0, log=True),
        ),
        "confidence": Parameter(
            "limit of γ, the scale of log-probabilities, in units of γ₀",
            low=1e-3,
            search=SearchRange(1.0, 16.0, log=True),
        ),
    }
    ridge: float | str
    kurtosis: float
    spread: float
    floor: float
    sharpness: float
    classes: float
    scatter: float
    confidence: float
    prior: Prior
    # Scores of the names of the classes of a task, (N, C).
    names: Tensor | None = None

    def __init__(
        self,
        ridge: float | str = "auto",
        kurtosis: float = 7.0,
        spread: float = 4.0,
        floor: float = 0.15,
        sharpness: float = 1.75,
        classes: float = 40.0,
        scatter: float = 10.0,
        confidence: float = 4.0,
    ) -> None:
        self.set_parameters(
            ridge=ridge,
            kurtosis=kurtosis,
            spread=spread,
            floor=floor,
            sharpness=sharpness,
            classes=classes,
            scatter=scatter,
            confidence=confidence,
        )

    # ---- the bank ---------------------------------------------------------------------------------------------------

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        key = ("hgdc", *(self.settings[name] for name in self.accepts if name != "scatter"))
        with single_thread():
            self.prior = bank.memo.get(key, lambda: self._fit_prior(bank))
        self.set_space(self.prior.transform, bank, *key)
        if self.prior.weight == 0:  # once for each bank: a cross-validation fits many times
            bank.memo.get("warned of labels", _warn_of_labels)
        return self

    @classmethod
    def from_prior(cls, prior: Prior, **settings: float) -> HGDC:
        """The method with a prior that was fitted before; of its parameters `scatter` alone has an effect."""
        out = cls(**settings)
        out.prior = prior
        return out

    def _fit_prior(self, bank: BaseBank) -> Prior:
        power = bank.power_choice(limit=self.kurtosis)
        space = bank.transformed(
            beta=power.beta, kind=power.kind, center=True, spread=self.spread, l2=True, moments=True
        )
        base = space.transform or Gaussianization("none")
        share = base_weight(len(bank), self.classes)
        study = self._study(bank, base, share)
        own, vectors = pooled_eigen(space)
        prior, whitening = fit_prior(own, study.ridge, self.floor, self.sharpness, share)
        size = len(own.values) - (own.rest > 0)
        turned = (vectors[:, :size] * whitening.scale[:size]) @ whitening.rotation[:size, :size]
        matrix = torch.cat([turned, vectors[:, size:] * whitening.scale[-1]], dim=1).float()
        reliable = mean_reliability(space) >= MIN_RELIABILITY
        return replace(
            own.expanded(prior),
            transform=replace(base, whitening=matrix),
            gamma=min(study.gamma, self.confidence) * prior.gaussian_gamma,
            weight=1 - (1 - study.weight) * (1 - share) if reliable else 0.0,
            classes=tuple(bank.classes),
        )

    def _study(self, bank: BaseBank, base: Gaussianization, share: float) -> Study:
        ridge = None if isinstance(self.ridge, str) else float(self.ridge)
        if not bank.has_rows:
            return Study() if ridge is None else Study(ridge)
        rows = [r.float() for r in study_rows(bank)]
        return cross_validate(
            [base.apply(r) if bank.transform is None else r for r in rows],
            [unit_rows(r) for r in rows],
            self._plain_scores,
            ridge,
            floor=self.floor,
            sharpness=self.sharpness,
            share=share,
        )

    def _plain_scores(self, examples: Tensor, queries: Tensor) -> Tensor:
        """Log-probabilities `(T, Q, N)` of the support-only classifier, from one example a class, `(T, N, D)`."""
        t, n, _ = examples.shape
        labels = torch.arange(n, device=examples.device).expand(t, n)
        return torch.log_softmax(fit_support_only(examples, labels, n, self.scatter).logits(queries), dim=-1)

    @property
    def row_map(self) -> RowMap:
        return TwoViews(self.prior.transform, self.prior.origin)

    # ---- a batch of tasks -------------------------------------------------------------------------------------------

    def posterior(self, batch: TaskBatch) -> tuple[Posterior, Tensor]:
        """The posterior of the class means, and the offset of each task, `(T, 1, D)`."""
        prior = self.prior
        support = batch.support[..., : len(prior.origin)]
        shots = class_shots(batch.labels, batch.n_classes, support.dtype)
        means = shots.means(support)
        offset = prior.offset(means, shots.average)
        return prior.posterior(means - offset, shots.each, self.names), offset

    def fit(self, batch: TaskBatch) -> LinearHead:
        with torch.inference_mode():
            d = len(self.prior.origin)
            support, plain = batch.support[..., :d], batch.support[..., d:]
            shots = class_shots(batch.labels, batch.n_classes, support.dtype)
            found, offset = self.posterior(batch)
            parts = Discriminant(support - offset, batch.labels, found.mean, found.precision, found.kappa, self.scatter)
            head = parts.fit(self.prior.gamma, shots).head.shifted(offset)
            return mixture(
                head, fit_support_only(plain, batch.labels, batch.n_classes, self.scatter), self.prior.weight
            )

    def transduce(self, batch: TaskBatch, rows: Tensor, priors: Tensor | None = None) -> Transduction:
        """Infer the classes of unlabelled rows `(T, M, 2D)` together; `priors (N,)` are known frequencies."""
        with torch.inference_mode():
            d, n, support = len(self.prior.origin), batch.n_classes, batch.support
            soft = SoftPosterior.make(
                self.prior, support[..., :d], batch.labels, n, rows[..., :d], self.scatter, self.names
            )
            plain = fit_support_only(support[..., d:], batch.labels, n, self.scatter)
            return transduce(soft, plain, rows[..., d:], self.prior.weight, priors)

    def contributions(self, batch: TaskBatch) -> Contributions:
        with torch.inference_mode():
            prior, d = self.prior, len(self.prior.origin)
            shots = class_shots(batch.labels, batch.n_classes, batch.support.dtype)
            before = shots.means(batch.support[..., :d])
            found, offset = self.posterior(batch)
            after = found.mean + offset
            own = (shots.counts[..., None] / (shots.counts[..., None] + prior.kappa)).mean(dim=-1, keepdim=True)
            near = prior.share * prior.neighbour_weights(before - offset, self.names)
            shares = (1 - own) * torch.cat([near, torch.full_like(own, 1 - prior.share)], dim=-1)
            moved = (after - before).norm(dim=-1) / typical_distance(prior.base_means)
            common = before.mean(dim=1).norm(dim=-1).clamp(min=MIN_VARIANCE)
            outside = offset[:, 0].norm(dim=-1) / common
            return Contributions([*prior.classes, CENTRE], shares, before, after, moved, prior.weight, outside)

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        neighbours = n_classes * len(self.prior.classes)
        return 4 * (12 * n_support * dim + 4 * n_support * min(n_support, dim) + neighbours)


@register_method
class TransductiveHGDC(HGDC):
    """HGDC for all queries of a task together."""

    name = "hgdc-transductive"
    transductive = True

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        return self.transduce(batch, query).scores


def _warn_of_labels() -> None:
    warn("the base classes do not differ beyond chance and are not used; check their labels", FewcalWarning, 5)


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Rows in the space of the prior, less its origin, beside rows of unit length: `(R, 2D)`."""

    model: Gaussianization
    origin: Tensor

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(R, D)`."""
        x = self.model.shifted(x)
        return torch.cat([self.model.apply(x, name).sub_(self.origin), unit_rows(x)], dim=-1)

    @property
    def shift(self) -> Tensor | None:
        """What is subtracted first."""
        return self.model.shift

    def to(self, device: torch.device | str) -> TwoViews:
        """The same on `device`."""
        return TwoViews(self.model.to(device), self.origin.to(device))


def study_rows(bank: BaseBank) -> list[Tensor]:
    """A few rows of some base classes, in an order that depends on their values alone.

    Tasks of base classes are then the same whatever the order of the bank (`RowStore.order`).
    """
    classes, orders = bank.order()
    chosen = [classes[i] for i in even_steps(len(classes), STUDY_CLASSES)]
    count = max(STUDY_ROWS // len(chosen), 2)
    return [bank.rows(i)[_low_discrepancy(orders[i][even_steps(len(orders[i]), count)])] for i in chosen]


def _low_discrepancy(at: Tensor) -> Tensor:
    """A permutation of which every beginning is spread over the whole: multiples of the golden ratio."""
    steps = torch.arange(len(at), device=at.device, dtype=torch.float64)
    return at[torch.argsort((steps * 0.6180339887498949) % 1)]
