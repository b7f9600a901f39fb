"""Nearest centroid: the plainest few-shot classifier.

Snell, Swersky, Zemel. Prototypical networks for few-shot learning. NeurIPS 2017 (its classifier, without its training).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.heads.linear import LinearHead, class_means, nearest_mean_head
from fewcal.methods.base import Method


class NearestCentroid(Method):
    """Classify by the nearest class mean of the support, on features as they are."""

    name = "ncm"

    def fit(
        self,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        random: TaskRandom,
        shared: dict[Hashable, Any] | None = None,
    ) -> LinearHead:
        means = class_means(support, labels, n_classes)
        # Probabilities need a width, and one shot has none: the mean squared distance between class means stands in.
        width = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2), keepdim=True) / max(n_classes - 1, 1)
        return nearest_mean_head(means, (0.5 * width).clamp(min=1e-12))
