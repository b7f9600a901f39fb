"""What the paper's figures share: variants that draw points, banks, and how near drawn points are to a class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.threads import in_parallel
from fewcal.errors import InputError
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.paper.settings import UNIT, Variant, params_text
from fewcal.params import GDCParams

# The paper's method where features have another scale than the paper's. Chosen from 48 settings on validation tasks of
# Stanford Dogs, CUB and miniImageNet, 1-shot: within 0.2 points of the best accuracy with 50 points and L-BFGS.
TUNED = Variant(
    "unit scale, tuned",
    "tuned or rescaled",
    {
        **UNIT,
        "beta": 1.0,
        "k": 8,
        "m": 2.0,
        "cov_weights": "bases-only",
        "alpha1": 10.0,
        "alpha2_ratio": 10.0,
    },
)


def base_of(features: FeatureSet) -> FeatureSplit:
    """The base split, which every figure needs."""
    if features.base is None:
        raise InputError("the paper's figures need base classes; add a base split to the features")
    return features.base


def energy_distance(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""How far clouds `x (*B, n, D)` are from classes that `y (*B, P, D)` are rows of, and how wide they are, `(*B)`.

    The energy distance is 2·E‖X − Y‖ − E‖X − X'‖ − E‖Y − Y'‖; the width is E‖X − X'‖. Both are divided by E‖Y − Y'‖, so
    that no scale matters. The distance is 0 where X has the distribution of Y and above 0 elsewhere (Székely and Rizzo
    2013): neither a cloud that is too narrow nor one that is too wide can be nearer than the class itself, and a single
    row of the class in place of a cloud has a distance of 1.

    >>> y = torch.randn(800, 20, generator=torch.Generator().manual_seed(0))
    >>> [round(float(energy_distance(x, y[400:])[0]), 1) for x in (y[:400], y[:1], 6 * y[:400])]
    [0.0, 1.0, 1.6]
    """
    origin = y.mean(dim=-2, keepdim=True)  # distances do not change, and rounding is least there
    x, y = x - origin, y - origin
    p = y.shape[-2]
    # Y stands for a class, whose rows are all different; X is the cloud itself, n points of equal weight.
    within = torch.cdist(y, y).sum(dim=(-2, -1)) / (p * (p - 1))
    width = torch.cdist(x, x).mean(dim=(-2, -1))
    return (2 * torch.cdist(x, y).mean(dim=(-2, -1)) - width) / within - 1, width / within


def times_smaller(small: np.ndarray, large: np.ndarray, least: float) -> tuple[str, bool | None]:
    """How many times smaller one thing is than another in words, and whether that is at least so many times.

    Both are decimal logarithms of many cases `(T,)`; None where the 95% interval has both sides of `least`.

    >>> times_smaller(np.array([-2.0, -2.1, -1.9]), np.array([0.0]), 10)
    ('100 times smaller (77.1 to 130; 3 cases)', True)
    """
    ratio = float(large.mean() - small.mean())
    half = 1.96 * math.sqrt(sum(v.var(ddof=1) / len(v) for v in (large, small) if len(v) > 1))
    low, high = 10 ** (ratio - half), 10 ** (ratio + half)
    holds = True if low >= least else False if high < least else None
    return f"{10**ratio:.3g} times smaller ({low:.3g} to {high:.3g}; {len(small)} cases)", holds


def sentence(words: str) -> str:
    """Words at the beginning of a sentence.

    >>> sentence("as printed"), sentence("L-BFGS")
    ('As printed', 'L-BFGS')
    """
    return words[:1].upper() + words[1:]


def drawn_text(params: GDCParams) -> str:
    """The setting of drawn points in words: that of the method, less the head, which is not trained.

    >>> from fewcal.paper.settings import paper_params
    >>> drawn_text(paper_params("mini", 1))
    'm=1, k=8, α1=3000, α2=10·α1, β=0.5; n=750 a support point; joint covariance; features at their own scale'
    """
    return "; ".join(part for part in params_text(params).split("; ") if not part.endswith("head"))


def embed(clouds: Sequence[np.ndarray], seed: int, iterations: int = 1000) -> list[list[list[float]]]:
    """Points (P, D) of each cloud in a plane of its own by t-SNE, (P, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    def one(points: np.ndarray) -> list[list[float]]:
        perplexity = min(30.0, (len(points) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=iterations)
        with threadpool_limits(1):  # OpenMP counts for each thread
            plane: np.ndarray = tsne.fit_transform(points.astype(np.float64))
        rounded: list[list[float]] = np.round(plane.astype(np.float64), 3).tolist()
        return rounded

    threads = torch.get_num_threads()  # which the limit hides
    with threadpool_limits(1):  # a few hundred points: threads of one cloud would wait for each other most of the time
        return list(in_parallel(one, clouds, threads))
