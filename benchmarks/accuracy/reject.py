"""What "none of these" costs: rows kept and rows of other classes let through, on 5-way tasks of real features.

    python benchmarks/accuracy/reject.py FEATURES [--limit 0.05] [--tasks 30]

A row of another class comes from the same split. A row is kept where `outlier_pvalue` is below the limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import feature_folders

from fewcal import BaseBank, FeatureSet, GDCClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--limit", type=float, default=0.05)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--split", default="val")
    options = parser.parse_args()
    print(f"{options.tasks} {options.split} tasks, limit {options.limit}\n")
    print("| features | shots | true rows kept % | rows of other classes let through % |\n|---|---:|---:|---:|")
    for folder in feature_folders(options.features):
        features = FeatureSet.load(folder)
        bank = BaseBank().fit(features.base.features, features.base.labels)
        split = features.split(options.split)
        x, y = split.float32(), split.require_labels()
        for shot in (1, 5):
            rng = np.random.default_rng(0)
            kept, passed = [], []
            for _ in range(options.tasks):
                classes = rng.permutation(len(split.classes))[:5]
                rows = [rng.permutation(np.flatnonzero(y == c))[: shot + 15] for c in classes]
                support = np.concatenate([r[:shot] for r in rows])
                own = np.concatenate([r[shot:] for r in rows])
                outside = rng.permutation(np.flatnonzero(~np.isin(y, classes)))[:75]
                fitted = GDCClassifier(bank=bank).fit(x[support], y[support])
                kept.append((fitted.outlier_pvalue(x[own]) < options.limit).mean())
                passed.append((fitted.outlier_pvalue(x[outside]) < options.limit).mean())
            print(f"| {folder.name} | {shot} | {100 * np.mean(kept):.0f} | {100 * np.mean(passed):.1f} |", flush=True)


if __name__ == "__main__":
    main()
