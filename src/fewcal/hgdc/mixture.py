r"""The weight of HGDC beside the support-only classifier, and the mixture of both.

    log p = ω log p_HGDC + (1 − ω) log p_support-only

    ω = ρ · C/(C + h) · max(1, ω_cv + h/(C + h)) / (1 + (δ²/δ₀²)²)

C is the number of base classes and ρ the reliability of their means: few classes or shuffled labels make ω small. ω_cv
is the stacking weight of left-out base classes (`fewcal.hgdc.temperature`); C/(C + h) stands for the bias of that for
classes that the extractor was trained on. δ² is how far the task lies from the base classes (`domain_shift`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fewcal.heads.base import Head
from fewcal.heads.linear import LinearHead

if TYPE_CHECKING:
    from torch import Tensor

    from fewcal.bank import BaseBank
    from fewcal.hgdc.prior import Prior


RHO = 2.0


def mean_reliability(bank: BaseBank) -> float:
    """ρ: the share of the variance of the base means that is not sampling noise, 0 to 1."""

    def make() -> float:
        noise = float(bank.pooled_eigen()[0].double().sum()) * float((1 / bank.counts.double()).mean())
        between = float(bank.centred_means()[2].double().sum()) / max(len(bank) - 1, 1)
        return max(0.0, 1 - noise / between) if between > 0 else 0.0

    return bank.memo.get("means reliability", make)


def bank_weight(classes: int, reliability: float, stacking: float | None, half: float) -> float:
    """ω of a task in the domain of C base classes; `half` is h, `stacking` ω_cv where it is known.

    >>> bank_weight(10, 1.0, None, half=10.0), bank_weight(10, 1.0, 1.0, half=10.0), bank_weight(10, 0.0, 1.0, half=10.0)
    (0.5, 0.75, 0.0)
    """
    share = classes / (classes + half)
    return min(1.0, RHO * reliability) * share * max(1.0, 1 - share + (stacking or 0.0))


def domain_shift(prior: Prior, means: Tensor, shots: float, outside: float) -> Tensor:
    r"""δ² `(T,)`: how far tasks with class means `(T, N, D)` of K shots lie outside of the span of the base means.

    The mean m of N class means of the same domain has E‖m⊥‖² = v with v = s (ψ⊥ + 1/K) D⊥ / N in the D⊥ directions in
    which base means do not differ; classes of another domain share an offset there. δ² = (‖m⊥‖² − v)₊ / (s ψ⊥ D⊥).
    ψ⊥ is `outside`, the variance of left-out class means in these directions (`Study`).
    """
    rank = len(prior.base_means) - 1
    beyond = means[..., rank:].mean(dim=1)
    if not beyond.shape[-1]:
        return means.new_zeros(len(means))
    unit = prior.within.mean() * beyond.shape[-1]
    excess = beyond.square().sum(dim=-1) / unit - (outside + 1 / shots) / means.shape[1]
    return excess.clamp(min=0) / outside


@dataclass(frozen=True, eq=False)
class MixtureHead(Head):
    """Log-probabilities of HGDC and of the support-only classifier, mixed by ω `(T,)`.

    Rows `(T, Q, D + D')` hold those of the first, then those of the second.
    """

    head: LinearHead
    plain: Head
    weight: Tensor

    def logits(self, x: Tensor, precomputed: Tensor | None = None) -> Tensor:
        """Log-probabilities `(T, Q, N)`, up to a constant of each row."""
        d = self.head.weight.shape[-1]
        model = torch.log_softmax(self.head.logits(x[..., :d]), dim=-1)
        plain = torch.log_softmax(self.plain.logits(x[..., d:]), dim=-1)
        return torch.lerp(plain, model, self.weight[:, None, None])

    def to(self, device: torch.device | str) -> MixtureHead:
        return replace(self, head=self.head.to(device), plain=self.plain.to(device), weight=self.weight.to(device))
