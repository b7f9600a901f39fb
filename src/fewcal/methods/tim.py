"""TIM and α-TIM: prototypes trained for the mutual information between queries and their classes.

Boudiaf, Masud, Rony, Dolz, Piantanida, Ben Ayed. Transductive information maximization for few-shot learning.
NeurIPS 2020 (TIM-GD). Veilleux, Boudiaf, Piantanida, Ben Ayed. Realistic evaluation of transductive few-shot learning.
NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.gaussianize import Gaussianization
from fewcal.heads.linear import class_means, membership
from fewcal.methods.base import RowMap, TaskBatch
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method
from fewcal.methods.soft_kmeans import squared_distances


@register_method
class TIM(NearestCentroid):
    """Minimise λ CE(support) − H(mean p) + c · mean H(p) over prototypes, with p ∝ exp(−τ/2 ‖x − m‖²) of unit rows.

    By `steps` steps of Adam from the class means. The paper has λ = c = 0.1, τ = 15, 1000 steps and a rate of 10⁻⁴.
    """

    name = "tim"
    transductive = True
    probabilistic = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "cross_entropy": Parameter("λ, weight of the cross-entropy of the support", low=0, high=1e6),
        "conditional": Parameter("c, weight of the entropy of a query's answer", low=0, high=1e6),
        "temperature": Parameter("τ, what half the squared distances are multiplied by", low=1e-6, high=1e6),
        "steps": Parameter("steps of Adam", low=0, integer=True),
        "rate": Parameter("learning rate", low=0, high=1e3),
    }
    cross_entropy: float
    conditional: float
    temperature: float
    steps: int
    rate: float

    def __init__(
        self,
        cross_entropy: float = 0.1,
        conditional: float = 0.1,
        temperature: float = 15.0,
        steps: int = 1000,
        rate: float = 1e-4,
    ) -> None:
        self.set_parameters(
            cross_entropy=cross_entropy, conditional=conditional, temperature=temperature, steps=steps, rate=rate
        )

    @property
    def space(self) -> Hashable:
        return "unit"

    @property
    def row_map(self) -> RowMap:
        return Gaussianization("none", l2=True)

    def order(self, batch: TaskBatch) -> float:
        """Order of the entropies; 1 is Shannon's."""
        return 1.0

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        order = self.order(batch)
        with torch.inference_mode(False), torch.enable_grad():
            support, query = batch.support.clone(), query.clone()  # autograd takes no tensors of inference mode
            means = class_means(support, batch.labels, batch.n_classes).requires_grad_()
            own = membership(batch.labels, batch.n_classes, query.dtype) / support.shape[1]
            optimiser = torch.optim.Adam([means], lr=self.rate)
            for _ in range(self.steps):
                p = torch.softmax(self._scores(query, means), dim=-1)
                cross = -(own * torch.log_softmax(self._scores(support, means), dim=-1)).sum()
                marginal, conditional = entropy(p.mean(dim=1), order).sum(), entropy(p, order).mean(dim=1).sum()
                optimiser.zero_grad()
                (self.cross_entropy * cross - marginal + self.conditional * conditional).backward()
                optimiser.step()
            return self._scores(query, means).detach()

    def _scores(self, x: Tensor, means: Tensor) -> Tensor:
        return -0.5 * self.temperature * squared_distances(x, means)


@register_method
class AlphaTIM(TIM):
    """TIM with Tsallis entropies of order α, which let class shares be unequal.

    The paper has λ = c = 1 and α from validation tasks; "auto" are the values of its script: 2 at one shot, 7 from
    five shots on, 5 between them.
    """

    name = "alpha-tim"
    accepts: ClassVar[Mapping[str, Parameter]] = {
        **TIM.accepts,
        "alpha": Parameter("α, order of the entropies", low=1, high=100, also=("auto",)),
    }
    alpha: float | str

    def __init__(
        self,
        cross_entropy: float = 1.0,
        conditional: float = 1.0,
        temperature: float = 15.0,
        steps: int = 1000,
        rate: float = 1e-4,
        alpha: float | str = "auto",
    ) -> None:
        super().__init__(cross_entropy, conditional, temperature, steps, rate)
        self.set_parameters(alpha=alpha)

    def order(self, batch: TaskBatch) -> float:
        if not isinstance(self.alpha, str):
            return self.alpha
        return 2.0 if batch.shots <= 1 else 7.0 if batch.shots >= 5 else 5.0


def entropy(p: Tensor, order: float = 1.0) -> Tensor:
    """Tsallis entropy (1 − Σ p^α) / (α − 1) along the last axis; −Σ p log p at α = 1.

    >>> entropy(torch.tensor([0.5, 0.5]), 2.0), entropy(torch.tensor([0.5, 0.5]))
    (tensor(0.5000), tensor(0.6931))
    """
    if order == 1:
        return -(p * (p + 1e-12).log()).sum(dim=-1)
    return (1 - (p + 1e-12).pow(order).sum(dim=-1)) / (order - 1)
