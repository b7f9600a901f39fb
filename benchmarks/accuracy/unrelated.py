"""Does the default preset do harm? Signed, unit-norm, text-like embeddings with few or unrelated base classes.

    python benchmarks/accuracy/unrelated.py [--tasks 600]

Classes are Gaussians on the sphere, in families, with anisotropic within-class covariance. In `unrelated` cases the
base classes live in another subspace with another covariance; in `shuffled` ones their labels mean nothing; in
`hostile` ones they vary within a class exactly where the novel classes differ, so that whitening with them is wrong.
Prints the paired difference of gdc to simpleshot on the same tasks.
"""

from __future__ import annotations

import argparse

import numpy as np

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet, FeatureSplit

D = 384


def rows_of(rng: np.random.Generator, means: np.ndarray, count: int, nuisance: np.ndarray) -> np.ndarray:
    """Unit rows around class means: a few shared directions and isotropic noise, `(C·count, D)`."""
    x = np.repeat(means, count, axis=0)
    x = x + rng.standard_normal((len(x), len(nuisance))) @ nuisance + 0.5 * rng.standard_normal(x.shape) / np.sqrt(D)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def case(kind: str, classes: int, rows: int, seed: int) -> FeatureSet:
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((D, D)))
    topics, others = rotation[:60], rotation[60:120]
    common = rng.standard_normal(D) / np.sqrt(D)  # embeddings of one encoder share a direction

    def means(count: int, subspace: np.ndarray) -> np.ndarray:
        families = rng.standard_normal((10, len(subspace)))
        codes = families[rng.integers(10, size=count)] + 0.7 * rng.standard_normal((count, len(subspace)))
        return 0.12 * codes @ subspace + 1.5 * common

    nuisance = 0.12 * rng.standard_normal((40, 60)) @ topics * np.linspace(1.5, 0.2, 40)[:, None]
    foreign = 0.12 * rng.standard_normal((40, 60)) @ others * np.linspace(1.5, 0.2, 40)[:, None]
    novel = rows_of(rng, means(30, topics), 40, nuisance)
    away = kind in ("unrelated", "hostile")
    hostile = 0.3 * topics[:20] * np.linspace(1.5, 0.2, 20)[:, None]
    within = {"unrelated": foreign, "hostile": hostile}.get(kind, nuisance)
    base = rows_of(rng, means(classes, others if away else topics), rows, within)
    labels = np.repeat(np.arange(classes), rows)
    if kind == "shuffled":
        labels = rng.permutation(labels)
    return FeatureSet(
        base=FeatureSplit.from_arrays(base.astype(np.float32), labels, [f"b{i}" for i in range(classes)]),
        novel=FeatureSplit.from_arrays(
            novel.astype(np.float32), np.repeat(np.arange(30), 40), [f"n{i}" for i in range(30)]
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = [(5, 1), (5, 5), (20, 1), (20, 5)]
    header = " | ".join(f"{way}-way {shot}-shot" for way, shot in settings)
    print(f"gdc − simpleshot, points, {options.tasks} tasks each\n\n| base classes | {header} |")
    print(f"|---|{'---:|' * len(settings)}")
    worst = np.inf
    for kind in ("related", "unrelated", "shuffled", "hostile"):
        for classes, rows in ((16, 10), (16, 30), (32, 20), (64, 30), (100, 10), (100, 30)):
            features = case(kind, classes, rows, options.seed)
            cells = []
            for way, shot in settings:
                protocol = Protocol(way=way, shot=shot, query=10, tasks=options.tasks)
                results = evaluate(["simpleshot", "gdc"], features, protocol)
                gain = 100 * (results.accuracy("gdc") - results.accuracy("simpleshot"))
                worst = min(worst, gain.mean())
                cells.append(f"{gain.mean():+.2f} ± {1.96 * gain.std() / np.sqrt(len(gain)):.2f}")
            print(f"| {kind}, {classes} × {rows} rows | {' | '.join(cells)} |", flush=True)
    print(f"\nworst {worst:+.2f}")


if __name__ == "__main__":
    main()
