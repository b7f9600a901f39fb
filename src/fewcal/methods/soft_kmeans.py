"""Soft k-means, or EM with one width: class means that queries pull towards them.

Ren, Triantafillou, Ravi, Snell, Swersky, Tenenbaum, Larochelle, Zemel. Meta-learning for semi-supervised few-shot
classification. ICLR 2018 (its refinement of prototypes, without its training).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.heads.linear import class_means, membership
from fewcal.methods.base import TaskBatch, UnitRows
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method


@register_method
class SoftKMeans(UnitRows, NearestCentroid):
    """m_n ← (Σ x_s [y_s = n] + Σ x_q z_qn) / (Σ [y_s = n] + Σ z_qn) with z_qn ∝ exp(−κ ‖x_q − m_n‖²).

    The paper takes one step. Its network is trained for distances as they are (κ = 1); rows of unit length need a
    larger κ.
    """

    name = "soft-kmeans"
    transductive = True
    probabilistic = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "steps": Parameter("steps of EM", low=0, integer=True),
        "scale": Parameter("κ, what squared distances are multiplied by", low=1e-6, high=1e6),
    }
    steps: int
    scale: float

    def __init__(self, steps: int = 1, scale: float = 10.0) -> None:
        self.set_parameters(steps=steps, scale=scale)

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        member = membership(batch.labels, batch.n_classes, query.dtype)
        rows = torch.cat([batch.support, query], dim=1)
        scores = self._scores(query, class_means(batch.support, batch.labels, batch.n_classes))
        for _ in range(self.steps):
            weight = torch.cat([member, torch.softmax(scores, dim=-1)], dim=1)
            scores = self._scores(query, (weight.mT @ rows) / weight.sum(dim=1)[..., None])
        return scores

    def _scores(self, query: Tensor, means: Tensor) -> Tensor:
        return -self.scale * squared_distances(query, means)


def squared_distances(x: Tensor, means: Tensor) -> Tensor:
    """Squared distances of rows `x (T, Q, D)` from `means (T, N, D)`, `(T, Q, N)`.

    >>> squared_distances(torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2))
    tensor([[[25.]]])
    """
    cross = torch.baddbmm(means.square().sum(dim=-1)[:, None], x, means.mT, alpha=-2)
    return (cross + x.square().sum(dim=-1, keepdim=True)).clamp(min=0)
