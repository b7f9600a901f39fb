"""HGDC: a hierarchical Gaussian model of class means, the method that fewcal recommends.

What it needs of the base classes follows from the bank (`fewcal.hgdc.prior`, `fewcal.hgdc.temperature`). The posterior
of the class means classifies, together with the scatter of the support (`fewcal.hgdc.discriminant`), and is mixed with
the support-only classifier where base classes are few, unreliable or of another domain (`fewcal.hgdc.mixture`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar
from warnings import warn

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter, SearchRange
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.gaussianize import Gaussianization
from fewcal.heads.base import Head
from fewcal.heads.linear import class_shots
from fewcal.hgdc.discriminant import Discriminant
from fewcal.hgdc.mixture import MixtureHead, bank_weight, domain_shift, mean_reliability
from fewcal.hgdc.prior import Prior, eigen, fit_prior
from fewcal.hgdc.temperature import STUDY_CLASSES, STUDY_ROWS, Study, cross_validate
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.methods.registry import register_method
from fewcal.methods.support_only import UnitRows, fit_support_only

# Weight of the base classes below which a fit warns.
LOW_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class State:
    """What HGDC keeps of a bank.

    Attributes
    ----------
    prior : Prior
    study : Study
    weight : float
        ω of a task in the domain of the base classes.
    classes : tuple of hashable
        Names of the base classes.
    """

    prior: Prior
    study: Study
    weight: float
    classes: tuple[Hashable, ...]

    def to(self, device: torch.device | str) -> State:
        """The same on another device."""
        return replace(self, prior=self.prior.to(device))


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
            search=SearchRange(0.03, 30.0, log=True),
        ),
        "kurtosis": Parameter(
            "the power transform is the gentlest that brings the within-class kurtosis below this; inf: none",
            low=1.0,
            infinite=True,
            search=SearchRange(3.5, 14.0, log=True),
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
        "scatter": Parameter(
            "ridge of the scatter of the support, in OAS ridges; large: it does not count",
            low=1e-3,
            search=SearchRange(1.0, 100.0, log=True),
        ),
        "confidence": Parameter(
            "limit of γ, the scale of log-probabilities, in units of w/√(2a)",
            low=1e-3,
            search=SearchRange(1.0, 16.0, log=True),
        ),
        "classes": Parameter(
            "h: number of base classes at which these weigh as much as the examples alone", low=0,
            search=SearchRange(1.0, 100.0, log=True),
        ),
        "shift": Parameter(
            "δ₀²: distance from the domain of the base classes at which their weight halves, in their variance",
            low=1e-6,
            infinite=True,
            search=SearchRange(0.05, 1.0, log=True),
        ),
    }
    ridge: float | str
    kurtosis: float
    floor: float
    sharpness: float
    scatter: float
    confidence: float
    classes: float
    shift: float
    state: State
    _bank: BaseBank | None = None

    def __init__(
        self,
        ridge: float | str = "auto",
        kurtosis: float = 7.0,
        floor: float = 0.15,
        sharpness: float = 1.75,
        scatter: float = 10.0,
        confidence: float = 4.0,
        classes: float = 10.0,
        shift: float = 0.2,
    ) -> None:
        self.set_parameters(
            ridge=ridge,
            kurtosis=kurtosis,
            floor=floor,
            sharpness=sharpness,
            scatter=scatter,
            confidence=confidence,
            classes=classes,
            shift=shift,
        )

    # ---- the bank ---------------------------------------------------------------------------------------------------

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        key = ("hgdc", self.ridge, self.kurtosis, self.floor, self.sharpness, self.classes)
        self.state = bank.memo.get(key, lambda: self._fit_state(bank))
        self._bank = bank
        self.set_space(self.state.prior.transform, bank, *key)
        if self.state.weight < LOW_WEIGHT:
            warn(
                f"the base classes get weight {self.state.weight:.2f}: they are few or their means hardly differ; "
                "answers rely on your examples",
                FewcalWarning,
                stacklevel=2,
            )
        return self

    def _fit_state(self, bank: BaseBank) -> State:
        power = bank.power_choice(limit=self.kurtosis)
        space = bank.transformed(beta=power.beta, kind=power.kind, center=True, l2=True, moments=True)
        base = space.transform or Gaussianization("none")
        study = self._study(bank, base)
        own, vectors = eigen(space)
        ridge = study.ridge if study is not None else 1.0 if isinstance(self.ridge, str) else float(self.ridge)
        prior, whitening = fit_prior(own, ridge, self.floor)
        matrix = ((vectors * whitening.scale) @ whitening.rotation).float()
        prior = replace(prior, transform=replace(base, whitening=matrix))
        if study is None:
            study = Study(ridge, float("inf"), 0.0)
        weight = bank_weight(len(bank), mean_reliability(space), study.weight, self.classes)
        return State(prior, study, weight, tuple(bank.classes))

    def _study(self, bank: BaseBank, base: Gaussianization) -> Study | None:
        if not bank.has_rows:
            return bank.parts.study
        rows = [r.float() for r in ordered_rows(bank)]
        return cross_validate(
            [base(r) if bank.transform is None else r for r in rows],
            [UnitRows()(r) for r in rows],
            support_only_scores,
            None if isinstance(self.ridge, str) else float(self.ridge),
            floor=self.floor,
            sharpness=self.sharpness,
        )

    @property
    def row_map(self) -> RowMap:
        return PairedRows(self.state.prior.transform, self.state.prior.origin)

    # ---- a batch of tasks -------------------------------------------------------------------------------------------

    def weight(self, batch: TaskBatch) -> Tensor:
        """ω of each task, `(T,)`."""
        x = batch.support[..., : len(self.state.prior.origin)]
        shots = class_shots(batch.labels, batch.n_classes, x.dtype)
        return self._weight(shots.means(x), shots.average)

    def _weight(self, means: Tensor, shots: float) -> Tensor:
        shift = domain_shift(self.state.prior, means, shots, max(self.state.study.outside, self.floor))
        return self.state.weight / (1 + (shift / self.shift).square())

    def fit(self, batch: TaskBatch) -> MixtureHead:
        with torch.inference_mode():
            prior = self.state.prior
            d = len(prior.origin)
            support, plain = batch.support[..., :d], batch.support[..., d:]
            shots = class_shots(batch.labels, batch.n_classes, support.dtype)
            means = shots.means(support)
            found = prior.posterior(means, shots.each, self.sharpness)
            parts = Discriminant(support, batch.labels, found.mean, found.precision, found.kappa, self.scatter)
            gamma = min(self.state.study.gamma, self.confidence * prior.gamma)
            return MixtureHead(
                parts.fit(gamma, shots).head,
                fit_support_only(plain, batch.labels, batch.n_classes),
                self._weight(means, shots.average),
            )

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        neighbours = n_classes * len(self.state.classes)
        return 4 * (12 * n_support * dim + 4 * n_support * min(n_support, dim) + neighbours)


@dataclass(frozen=True, eq=False)
class PairedRows:
    """Rows in the space of the prior, less its origin, beside rows of `UnitRows`: `(R, 2D)`."""

    model: Gaussianization
    origin: Tensor

    def __call__(self, x: Tensor, name: str = "X") -> Tensor:
        """Map rows `(R, D)`."""
        return torch.cat([self.model(x, name).sub_(self.origin), UnitRows()(x)], dim=-1)

    def to(self, device: torch.device | str) -> PairedRows:
        """The same on `device`."""
        return PairedRows(self.model.to(device), self.origin.to(device))


def support_only_scores(examples: Tensor, queries: Tensor) -> Tensor:
    """Log-probabilities `(T, Q, N)` of the support-only classifier, from one example a class, `(T, N, D)`."""
    t, n, _ = examples.shape
    labels = torch.arange(n, device=examples.device).expand(t, n)
    return torch.log_softmax(fit_support_only(examples, labels, n).logits(queries), dim=-1)


def ordered_rows(bank: BaseBank) -> list[Tensor]:
    """A few rows of some base classes, in an order that depends on their values alone.

    Tasks of base classes are then the same whatever the order of the bank. Rows are ordered by their sum of absolute
    values and taken at even steps, classes by the mean of that.
    """
    chosen = torch.linspace(0, len(bank) - 1, min(len(bank), STUDY_CLASSES)).long().tolist()
    sums = bank.memo.get("row sums", lambda: [bank.rows(i).double().abs().sum(dim=1).sort() for i in range(len(bank))])
    order = sorted(range(len(bank)), key=lambda i: float(sums[i].values.mean()))
    most = max(STUDY_ROWS // len(chosen), 2)
    found = []
    for i in (order[j] for j in chosen):
        at = sums[i].indices
        if len(at) > most:
            at = at[torch.linspace(0, len(at) - 1, most, device=at.device).long()]
        found.append(bank.rows(i)[_low_discrepancy(at)])
    return found


def _low_discrepancy(at: Tensor) -> Tensor:
    """A permutation of which every beginning is spread over the whole: multiples of the golden ratio."""
    steps = torch.arange(len(at), device=at.device, dtype=torch.float64)
    return at[torch.argsort((steps * 0.6180339887498949) % 1)]
