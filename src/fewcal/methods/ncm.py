"""Nearest centroid: the plainest few-shot classifier.

Snell, Swersky, Zemel. Prototypical networks for few-shot learning. NeurIPS 2017 (its classifier, without its training).
"""

from __future__ import annotations

from fewcal.heads.linear import LinearHead, class_means, nearest_mean_head
from fewcal.methods.base import Method, TaskBatch
from fewcal.methods.registry import register_method


@register_method
class NearestCentroid(Method):
    """Classify by the nearest class mean of the support, on features as they are."""

    name = "ncm"
    probabilistic = False  # distances, whose width stands in for what one shot cannot tell

    def fit(self, batch: TaskBatch) -> LinearHead:
        means = class_means(batch.support, batch.labels, batch.n_classes)
        # Probabilities need a width, and one shot has none: the mean squared distance between class means stands in.
        scatter = (means - means.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2), keepdim=True)
        width = scatter / max(batch.n_classes - 1, 1)
        return nearest_mean_head(means, (0.5 * width).clamp(min=1e-12))
