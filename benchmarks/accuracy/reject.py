"""What "none of these" costs: rows kept and rows of other classes let through, on tasks of real features.

    python benchmarks/accuracy/reject.py FEATURES... [--limit 0.05] [--tasks 30] [--way 5]

A row of another class comes from the same split. A row is kept where `outlier_pvalue` is not below the limit. ± is the
95% half-width over tasks.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from common import Table, add_record_option, feature_folders

from fewcal import BaseBank, FeatureSet, FewShotClassifier
from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSplit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--limit", type=float, default=0.05)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--way", type=int, default=5)
    parser.add_argument("--split", default="val")
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)
    print(f"{options.tasks} {options.split} tasks, {options.way}-way, limit {options.limit}\n")
    table = Table("features", "shots", "base classes", "true rows kept %", "rows of other classes let through %")
    for folder in feature_folders(*options.features):
        features = FeatureSet.load(folder)
        split = features.split(options.split)
        if len(split.classes) <= options.way:
            continue
        bank = BaseBank().fit(features.base.features, features.base.labels)
        for shot, base in ((1, bank), (2, bank), (2, None), (5, bank), (5, None)):
            kept, passed = shares(base, split, options.way, shot, options.tasks, options.limit)
            half = 1.96 * np.std(passed, ddof=1) / len(passed) ** 0.5
            through = f"{100 * np.mean(passed):.1f} ± {100 * half:.1f}"
            table.add(folder.name, shot, 0 if base is None else len(base), f"{100 * np.mean(kept):.0f}", through)
    table.keep(options.record)


def shares(
    bank: BaseBank | None, split: FeatureSplit, way: int, shot: int, tasks: int, limit: float
) -> tuple[list[float], list[float]]:
    """Of each task the shares of its own queries and of rows of other classes that are kept."""
    x, y = split.float32(), split.require_labels()
    rng = np.random.default_rng(0)
    kept: list[float] = []
    passed: list[float] = []
    for _ in range(tasks):
        classes = rng.permutation(len(split.classes))[:way]
        rows = [rng.permutation(np.flatnonzero(y == c))[: shot + 15] for c in classes]
        support = np.concatenate([r[:shot] for r in rows])
        own = np.concatenate([r[shot:] for r in rows])
        outside = rng.permutation(np.flatnonzero(~np.isin(y, classes)))[:75]
        fitted = FewShotClassifier(bank).fit(x[support], y[support])
        if bank is not None and fitted.explain().weight == 0:
            return [], []
        kept.append(float((fitted.outlier_pvalue(x[own]) >= limit).mean()))
        passed.append(float((fitted.outlier_pvalue(x[outside]) >= limit).mean()))
    return kept, passed


if __name__ == "__main__":
    main()
