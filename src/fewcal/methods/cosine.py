"""Cosine classifier: one unit vector for each class, trained on the support with a scaled softmax.

Chen, Liu, Kira, Wang, Huang. A closer look at few-shot classification. ICLR 2019 (Baseline++, its classifier).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from fewcal._utils.lazy_torch import torch
from fewcal._utils.types import JSON
from fewcal.gaussianize import l2_normalise
from fewcal.heads.linear import LinearHead, class_means, membership
from fewcal.methods.base import Method, TaskBatch
from fewcal.methods.registry import register_method

if TYPE_CHECKING:
    from torch import Tensor


@register_method
class CosineClassifier(Method):
    """Softmax over `scale` × cosine similarity; weights start at the class means and take `steps` gradient steps."""

    name = "cosine"

    def __init__(self, scale: float = 10.0, steps: int = 50, lr: float = 0.1) -> None:
        self.scale, self.steps, self.lr = scale, steps, lr

    @property
    def settings(self) -> dict[str, JSON]:
        return {"scale": self.scale, "steps": self.steps, "lr": self.lr}

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
