"""The same embeddings as people store them: does the default keep its promise on each?

    python benchmarks/accuracy/make_variants.py FEATURES [MORE_FEATURES…] --out VARIANTS [--only unit,outlier]
    python benchmarks/accuracy/default.py VARIANTS --cells 5x1,5x5,20x1,20x5

Every set of FEATURES becomes `NAME+VARIANT`; whatever is fitted, is fitted to base rows:

- `unit`, `centred-unit`: rows of unit length, as services give them; after the base mean was taken away;
- `standard`: each feature less its mean, over its standard deviation;
- `pca16`, `pca128`, `pca64-white`: leading principal components, the last of equal variance;
- `rotated`, `rotated-unit`: turned at random, so that no feature has a meaning or a sign;
- `root`, `cube`: sign(x)·√|x| and sign(x)·|x|³; tails that are short, and very long;
- `shifted`: less half of the mean of each feature: mostly, but not all, above zero, as behind SiLU and GELU;
- `binary`, `int8`: above its median or not; 40 whole numbers;
- `row-scale`: each row times a number of its own, log-normal;
- `outlier`: two features 40 times as large, as some of transformers are;
- `offset`: a vector that is large, and the same for all rows;
- `features48`: 48 features drawn at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import feature_folders

from fewcal.features import FeatureSet

SEED = 0
# Rows that principal components are taken from, at most.
PCA_ROWS = 6000
Variant = Callable[[np.ndarray], np.ndarray]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def variants(base: np.ndarray) -> dict[str, Variant]:
    """Maps of rows `(R, D)` by name, fitted to base rows."""
    rng, d = np.random.default_rng(SEED), base.shape[1]
    mean, spread, median = base.mean(axis=0), base.std(axis=0) + 1e-6, np.median(base, axis=0)
    some = (base - mean)[rng.permutation(len(base))[:PCA_ROWS]]
    _, lengths, axes = np.linalg.svd(some, full_matrices=False)
    lengths = lengths / np.sqrt(len(some)) + 1e-6
    turn, _ = np.linalg.qr(rng.standard_normal((d, d)))
    few, large = rng.permutation(d)[:48], np.isin(np.arange(d), rng.permutation(d)[:2])
    offset = rng.standard_normal(d) * 9 * spread.mean()
    step, cubes = np.abs(base).max() / 20, (np.abs(base) ** 3).mean()

    def row_scale(x: np.ndarray) -> np.ndarray:
        return x * np.exp(0.5 * np.random.default_rng(len(x)).standard_normal((len(x), 1)))

    return {
        "unit": unit,
        "centred-unit": lambda x: unit(x - mean),
        "standard": lambda x: (x - mean) / spread,
        "pca16": lambda x: (x - mean) @ axes[:16].T,
        "pca128": lambda x: (x - mean) @ axes[:128].T,
        "pca64-white": lambda x: (x - mean) @ axes[:64].T / lengths[:64],
        "rotated": lambda x: x @ turn,
        "rotated-unit": lambda x: unit(x @ turn),
        "root": lambda x: np.sign(x) * np.sqrt(np.abs(x)),
        "cube": lambda x: x**3 / cubes,
        "shifted": lambda x: x - mean / 2,
        "binary": lambda x: x > median,
        "int8": lambda x: np.round(np.clip(x / step, -127, 127)),
        "row-scale": row_scale,
        "outlier": lambda x: np.where(large, 40 * x, x),
        "offset": lambda x: x + offset,
        "features48": lambda x: x[:, few],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names with commas; all without")
    options = parser.parse_args()
    for folder in feature_folders(*options.features):
        splits = FeatureSet.load(folder).splits()
        made = variants(splits["base"].float32())
        names = options.only.split(",") if options.only else list(made)
        if unknown := [name for name in names if name not in made]:
            parser.error(f"unknown variant {unknown[0]!r}; there are {', '.join(made)}")
        for name in names:
            out = options.out / f"{folder.name}+{name}"
            out.mkdir(parents=True, exist_ok=True)
            for split, rows in splits.items():
                x = made[name](rows.float32()).astype(np.float32)
                np.savez(out / f"{split}.npz", features=x, labels=rows.require_labels(), classes=np.array(rows.classes))
            print(out, flush=True)


if __name__ == "__main__":
    main()
