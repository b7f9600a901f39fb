"""Made-up features with the structure that calibration lives on: related classes, shared within-class directions."""

from __future__ import annotations

import numpy as np

from fewcal.errors import InputError
from fewcal.features import FeatureSet, FeatureSplit


def make_features(
    base: int = 64,
    val: int = 16,
    novel: int = 20,
    rows: int = 100,
    dim: int = 64,
    *,
    families: int = 12,
    spread: float = 1.0,
    relu: bool = True,
    seed: int = 0,
) -> FeatureSet:
    """Return a feature set whose classes come in families, split at random into base, val and novel.

    A class mean is its family's mean plus its own offset; rows differ from it along a few directions that all classes
    share and by isotropic noise. With `relu` negative values become 0, as after a network's last activation.

    Parameters
    ----------
    base, val, novel : classes of each split
    rows : rows of each class
    dim : D
    families : groups of related classes
    spread : size of the within-class variation; larger is harder
    relu : features ≥ 0, or of both signs

    Examples
    --------
    >>> fs = make_features(base=8, val=4, novel=5, rows=10, dim=16)
    >>> len(fs.base.classes), fs.novel.features.shape
    (8, (50, 16))
    """
    total = base + val + novel
    if min(base, val, novel) < 0 or total < 1 or rows < 1 or dim < 2 or families < 1:
        raise InputError("make_features needs classes, rows, at least two features and one family")
    rng = np.random.default_rng(seed)
    family = rng.standard_normal((families, dim))
    means = family[rng.integers(families, size=total)] + 0.7 * rng.standard_normal((total, dim))
    nuisance = rng.standard_normal((max(2, dim // 8), dim))  # what changes within any class: pose, light, …
    splits: dict[str, FeatureSplit | None] = {}
    begin = 0
    for name, size in (("base", base), ("val", val), ("novel", novel)):
        labels = np.repeat(np.arange(size), rows)
        noise = rng.standard_normal((len(labels), len(nuisance))) @ nuisance * 0.6
        x = means[begin + labels] + spread * (noise + rng.standard_normal((len(labels), dim)))
        x = np.maximum(x, 0) if relu else x
        names = [f"class {i:03d}" for i in range(begin, begin + size)]
        splits[name] = FeatureSplit.from_arrays(x.astype(np.float32), labels, names) if size else None
        begin += size
    return FeatureSet(splits["base"], splits["val"], splits["novel"])
