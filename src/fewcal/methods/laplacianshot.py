"""LaplacianShot: nearest prototypes, with like answers for neighbouring queries.

Ziko, Dolz, Granger, Ben Ayed. Laplacian regularized few-shot learning. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.methods.base import TaskBatch, UnitRows
from fewcal.methods.bd_cspn import rectified_means
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method
from fewcal.methods.soft_kmeans import squared_distances


@register_method
class LaplacianShot(UnitRows, NearestCentroid):
    """y_qn ∝ exp(−‖x_q − m′_n‖² + λ Σ_p w_qp y_pn), repeated; w_qp = 1 where p is among the k neighbours of q.

    Prototypes m′ are those of BD-CSPN. The paper has 20 steps and k = 3, where the authors' script counts the query
    itself. Its λ is from validation tasks: for miniImageNet 0.7 at one shot and 0.3 at five.
    """

    name = "laplacianshot"
    transductive = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "weight": Parameter("λ, weight of the neighbours' answers", low=0, high=1e6),
        "neighbours": Parameter("k, neighbours of a query among the queries, itself one of them", low=1, integer=True),
        "steps": Parameter("steps of the bound optimiser", low=0, integer=True),
    }
    weight: float
    neighbours: int
    steps: int

    def __init__(self, weight: float = 0.7, neighbours: int = 3, steps: int = 20) -> None:
        self.set_parameters(weight=weight, neighbours=neighbours, steps=steps)

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        unary = -squared_distances(query, rectified_means(batch, query))
        affinity = neighbour_matrix(query, self.neighbours - 1)
        scores = unary
        for _ in range(self.steps):
            scores = unary + self.weight * (affinity @ torch.softmax(scores, dim=-1))
        return scores


def neighbour_matrix(x: Tensor, k: int) -> Tensor:
    """Ones where row p is among the `k` nearest of row q, other than itself: `x (T, Q, D)` → `(T, Q, Q)`.

    >>> neighbour_matrix(torch.tensor([[[0.0], [1.0], [3.0]]]), 1)
    tensor([[[0., 1., 0.],
             [1., 0., 0.],
             [0., 1., 0.]]])
    """
    distances = squared_distances(x, x)
    distances.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    nearest = distances.topk(min(k, x.shape[1] - 1), largest=False).indices
    return torch.zeros_like(distances).scatter_(2, nearest, 1.0)
