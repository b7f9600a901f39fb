"""How honest the accuracy is that the studio expects: its value and interval against the truth.

    fewcal extract IMAGES --out cub-efficientnet
    python benchmarks/accuracy/expected.py cub-efficientnet [--bank] [--split novel] [--ways 5] [--runs 30]

Each run draws classes and 30 items of each, and labels 1, 2, 3 and 5 times as many items as there are classes: at
random, or as the studio proposes. The truth is the share of right answers to all other items of classes that have a
label. `left out` is the share of right answers to examples that were left out one at a time. With `--bank` the base
split is the bank.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from common import Table, add_record_option

from fewcal import BaseBank
from fewcal.apply.studio.answers import (
    Recipe,
    doubt,
    expected_accuracy,
    fitted,
    label_next,
    leave_one_out,
    similarities,
)
from fewcal.features import FeatureSet

SHOTS = (1, 2, 3, 5)
ITEMS = 30  # of a class
HEADER = (
    *("labels", "chosen", "true", "expected", "error"),
    *("interval", "in it", "truth below", "truth above", "left out"),
)


def one_run(
    x: np.ndarray, y: np.ndarray, ways: int, way: str, recipe: Recipe, seed: int
) -> dict[int, tuple[float, ...]]:
    """By the number of labels: true, expected, low, high, share of left-out examples answered rightly."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(np.unique(y), ways, replace=False)
    pool = rng.permutation(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:ITEMS] for c in classes]))
    x, y = x[pool], y[pool]
    labelled, doubts, similar = np.zeros(len(x), bool), np.ones(len(x)), similarities(x, recipe.beta)
    out = {}
    for n in range(1, ways * max(SHOTS) + 1):
        proposed = way == "proposed"
        labelled[label_next(similar, labelled, doubts)[0] if proposed else rng.choice(np.flatnonzero(~labelled))] = True
        shown = n in [ways * k for k in SHOTS]
        classifier = fitted(recipe, x[labelled], y[labelled]) if proposed or shown else None
        if classifier is None:
            continue
        p = classifier.predict_proba(x)
        doubts = doubt(p)
        if shown:
            asked = ~labelled & np.isin(y, classifier.classes_)
            found = expected_accuracy(p, labelled)
            left = leave_one_out(recipe, x[labelled], y[labelled])
            assert found is not None
            true = float((classifier.classes_[p.argmax(axis=1)] == y)[asked].mean())
            share = float("nan") if left is None else left.right / left.asked
            out[n] = (true, found.accuracy, found.low, found.high, share)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--bank", action="store_true")
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    data = FeatureSet.load(options.features)
    rows = data.split(options.split)
    x, y = rows.float32(), rows.require_labels()
    beta = 0.5 if (x >= 0).all() and not options.bank else 1.0  # that of EfficientNet-Lite's extractor
    base = data.base
    recipe = Recipe(BaseBank().fit(base.float32(), base.require_labels()) if options.bank else None, beta=beta)
    table = Table(*HEADER)
    for way in ("random", "proposed"):
        runs = [one_run(x, y, options.ways, way, recipe, seed) for seed in range(options.runs)]
        for n in runs[0]:
            true, expected, low, high, left = np.array([run[n] for run in runs if n in run]).T
            inside = (low <= true) & (true <= high)
            error = f"{100 * (expected - true).mean():+.0f} ± {100 * (expected - true).std(ddof=1):.0f}"
            shares = [inside.mean(), (true < low).mean(), (true > high).mean(), np.nanmean(left)]
            cells = [f"{100 * true.mean():.0f}", f"{100 * expected.mean():.0f}", error]
            cells += [f"{100 * low.mean():.0f} to {100 * high.mean():.0f}", *(f"{100 * s:.0f}" for s in shares)]
            table.add(n, way, *cells)
    table.keep(options.record)


if __name__ == "__main__":
    main()
