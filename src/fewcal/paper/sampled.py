"""What the paper's figures share: settings that sample points, banks, and points in the plane."""

from __future__ import annotations

import numpy as np

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.presets import get_preset

# The paper's method where features have another scale than the paper's: unit vectors around the base mean. Chosen from
# 48 settings on validation tasks of Stanford Dogs, CUB and miniImageNet, 1-shot: within 0.2 points of the best with
# sampled points (n = 50, L-BFGS). The search was made after a setting that is best in closed form (α1 = 100) had turned
# the verdict on t-SNE of novel classes around; docs/paper.md gives both outcomes.
SCALED = get_preset("paper").with_changes(
    beta=1.0,
    center=True,
    l2=True,
    k=8,
    m=2.0,
    cov_weights="bases-only",
    alpha1=10.0,
    alpha2_ratio=10.0,
    head="closed_form",
)
SCALED_SAMPLED = SCALED.with_changes(head="lbfgs", n=50)
PRINTED = get_preset("paper")
# The default with its samples drawn: the closed form is what n → ∞ gives.
SAMPLED = get_preset("whitened").with_changes(head="lbfgs")


def base_of(features: FeatureSet) -> FeatureSplit:
    """The base split, which every figure needs."""
    if features.base is None:
        raise InputError("the paper's figures need base classes; add a base split to the features")
    return features.base


def bank_of(features: FeatureSet) -> BaseBank:
    """The base classes as a bank."""
    base = base_of(features)
    return BaseBank().fit(base.features, base.require_labels())


def embed(points: np.ndarray, seed: int, iterations: int = 1000) -> list[list[float]]:
    """Points (P, D) in the plane by t-SNE, (P, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(points) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=iterations)
    with threadpool_limits(1):  # a few hundred points: threads would wait for each other most of the time
        plane = tsne.fit_transform(points.astype(np.float64))
    rounded: list[list[float]] = np.round(plane.astype(np.float64), 3).tolist()
    return rounded
