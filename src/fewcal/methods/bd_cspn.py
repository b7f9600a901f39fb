"""BD-CSPN: prototypes rectified by the queries that are most surely theirs.

Liu, Song, Qin. Prototype rectification for few-shot learning. ECCV 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.gaussianize import l2_normalise
from fewcal.heads.linear import class_means, membership
from fewcal.methods.base import TaskBatch, UnitRows
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.registry import register_method


@register_method
class BDCSPN(UnitRows, NearestCentroid):
    """Cosine to m′_n = Σ w_n(x) x / Σ w_n(x) with w_n(x) = exp(ε cos(x, m_n)), over examples and queries nearest m_n.

    Queries are shifted by mean(support) − mean(queries) before they are given to classes. `confident` restricts them to
    those of a class with the highest cosine, as in the paper. Public implementations take all, with ε = 1, and classify
    queries as they were before the shift; so does this.
    """

    name = "bd-cspn"
    transductive = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "scale": Parameter("ε, what cosines are multiplied by", low=1e-6, high=80),
        "confident": Parameter("queries of a class that rectify its prototype", low=0, integer=True, also=("all",)),
    }
    scale: float
    confident: int | str

    def __init__(self, scale: float = 1.0, confident: int | str = "all") -> None:
        self.set_parameters(scale=scale, confident=confident)

    def fit_predict(self, batch: TaskBatch, query: Tensor) -> Tensor:
        confident = None if isinstance(self.confident, str) else self.confident
        return cosines(query, rectified_means(batch, query, self.scale, confident))


def rectified_means(batch: TaskBatch, query: Tensor, scale: float = 1.0, confident: int | None = None) -> Tensor:
    """Rectified prototypes `(T, N, D)`; `confident` None takes all queries `(T, Q, D)`."""
    query = query + (batch.support.mean(dim=1, keepdim=True) - query.mean(dim=1, keepdim=True))
    means = class_means(batch.support, batch.labels, batch.n_classes)
    cosine = cosines(query, means)
    chosen = membership(cosine.argmax(dim=-1), batch.n_classes, query.dtype)
    if confident is not None:
        own = cosine.masked_fill(chosen == 0, -torch.inf)
        rank = own.argsort(dim=1, descending=True).argsort(dim=1)
        chosen = chosen * (rank < confident)
    rows = torch.cat([batch.support, query], dim=1)
    member = torch.cat([membership(batch.labels, batch.n_classes, query.dtype), chosen], dim=1)
    weight = member * (scale * torch.cat([cosines(batch.support, means), cosine], dim=1)).exp()
    return (weight.mT @ rows) / weight.sum(dim=1)[..., None]


def cosines(x: Tensor, means: Tensor) -> Tensor:
    """Cosines of rows `x (T, Q, D)` with `means (T, N, D)`, `(T, Q, N)`."""
    return l2_normalise(x) @ l2_normalise(means).mT
