"""PT-MAP: a power transform, and class means by optimal transport with equal shares.

Hu, Gripon, Pateux. Leveraging the feature distribution in transfer-based few-shot learning. ICANN 2021.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.gaussianize import l2_normalise
from fewcal.heads.linear import class_means, membership
from fewcal.methods.base import TaskBatch
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method
from fewcal.methods.soft_kmeans import squared_distances

# Added to features before the power, by the paper.
EPSILON = 1e-6
# Sinkhorn's iteration stops where no row sum is further than this from 1, or after so many steps: the authors' values.
SINKHORN_TOLERANCE, SINKHORN_STEPS = 1e-6, 1000


@register_method
class PTMAP(NearestCentroid):
    """m_n ← m_n + α (Σ p_xn x / Σ p_xn − m_n), where p of queries is the transport plan to classes of equal shares.

    Rows are (x + 10⁻⁶)^β of unit length, and centred and scaled again: examples on the mean of the examples, queries
    on that of the queries. Negative features keep their sign, of which the paper has none. Plans have the cost
    ‖x − m_n‖² with entropic regularisation λ; rows sum to 1, columns to Q/N. Defaults are those of the authors' script.
    One query lies on the mean of the queries: its answer says nothing.
    """

    name = "pt-map"
    transductive = True
    probabilistic = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "beta": Parameter("β, power of the features", low=1e-3, high=10),
        "scale": Parameter("λ, what squared distances are multiplied by", low=1e-3, high=20),
        "rate": Parameter("α, step of the class means", low=0, high=1),
        "steps": Parameter("steps of the class means", low=0, integer=True),
    }
    beta: float
    scale: float
    rate: float
    steps: int

    def __init__(self, beta: float = 0.5, scale: float = 10.0, rate: float = 0.2, steps: int = 20) -> None:
        self.set_parameters(beta=beta, scale=scale, rate=rate, steps=steps)

    @property
    def space(self) -> Hashable:
        return ("signed power", self.beta)

    def transform(self, x: Tensor, name: str = "X") -> Tensor:
        return l2_normalise((x.abs() + EPSILON).pow(self.beta).copysign(x))

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        support, query = (l2_normalise(x - x.mean(dim=1, keepdim=True)) for x in (batch.support, query))
        member = membership(batch.labels, batch.n_classes, query.dtype)
        rows = torch.cat([support, query], dim=1)
        means = class_means(support, batch.labels, batch.n_classes)
        for _ in range(self.steps):
            weight = torch.cat([member, self._plan(query, means)], dim=1)
            means = torch.lerp(means, (weight.mT @ rows) / weight.sum(dim=1)[..., None], self.rate)
        return self._plan(query, means).clamp(min=torch.finfo(query.dtype).tiny).log()

    def _plan(self, query: Tensor, means: Tensor) -> Tensor:
        return sinkhorn(-self.scale * squared_distances(query, means))


def sinkhorn(scores: Tensor) -> Tensor:
    """The plan `exp(scores)` `(T, Q, N)` with its rows scaled to sum to 1, and its columns to Q/N.

    >>> sinkhorn(torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]))
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    q, n = scores.shape[1:]
    plan = torch.softmax(scores.double(), dim=-1)
    row = torch.ones_like(plan[..., :1])
    column = (q / n) / (plan.mT @ row)
    moving = torch.ones_like(plan[:, :1, :1], dtype=torch.bool)  # a task that converged does not wait for others
    for step in range(SINKHORN_STEPS):
        before, row = row, torch.where(moving, 1 / (plan @ column), row)
        column = (q / n) / (plan.mT @ row)
        moving = moving & ((row / before - 1).abs().amax(dim=1, keepdim=True) > SINKHORN_TOLERANCE)
        if step % 10 == 9 and not moving.any():
            break
    return (row * plan * column.mT).to(scores.dtype)
