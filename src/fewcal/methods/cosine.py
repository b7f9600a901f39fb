"""Cosine classifier: one unit vector for each class, trained on the support with a scaled softmax.

Chen, Liu, Kira, Wang, Huang. A closer look at few-shot classification. ICLR 2019 (Baseline++, its classifier).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter, parameters_of
from fewcal.gaussianize import l2_normalise
from fewcal.heads import SGD
from fewcal.heads.linear import LinearHead, class_means, membership
from fewcal.methods.base import Method, TaskBatch
from fewcal.methods.registry import register_method


@register_method
class CosineClassifier(Method):
    """Softmax over `scale` × cosine similarity; weights start at the class means and take `steps` gradient steps."""

    name = "cosine"
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "scale": Parameter("what cosines are multiplied by", low=1e-6, high=1e6),
        "steps": Parameter("gradient steps; 0: the class means as they are", low=0, integer=True),
        "lr": parameters_of(SGD)["lr"],
    }
    scale: float
    steps: int
    lr: float

    def __init__(self, scale: float = 10.0, steps: int = 50, lr: float = 0.1) -> None:
        self.set_parameters(scale=scale, steps=steps, lr=lr)

    @property
    def space(self) -> Hashable:
        return "unit"

    def transform(self, x: Tensor, name: str = "X") -> Tensor:
        return l2_normalise(x)

    def fit(self, batch: TaskBatch) -> LinearHead:
        support = batch.support
        weight = l2_normalise(class_means(support, batch.labels, batch.n_classes))
        target = membership(batch.labels, batch.n_classes, support.dtype)
        for _ in range(self.steps):
            slope = (torch.softmax(self.scale * support @ weight.mT, dim=-1) - target) / support.shape[1]
            grad = self.scale * slope.mT @ support
            # The gradient on the sphere: what is left after the part along the weight itself.
            grad = grad - (grad * weight).sum(dim=-1, keepdim=True) * weight
            weight = l2_normalise(weight - self.lr * grad)
        return LinearHead(self.scale * weight, torch.zeros_like(weight[..., 0]))
