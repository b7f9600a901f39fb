"""The scale of features: squared distances from the nearest base class, beside those that the paper's tables imply.

    python benchmarks/accuracy/scale.py FEATURES... [--split val]

w = 1/(1 + d^m) depends on it. The paper prints no distances; tables 8 and 9 print weights, from which they follow.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from common import Table, add_record_option, feature_folders

from fewcal.bank import BaseBank
from fewcal.calibrate import squared_distances
from fewcal.features import FeatureSet
from fewcal.paper.published import implied_distances
from fewcal.paper.sets import dataset_of
from fewcal.paper.settings import paper_params


def nearest(features: FeatureSet, split: str, beta: float) -> float:
    """Median over the rows of a split of the squared distance from the nearest base mean, after the power β."""
    base = features.split("base")
    bank = BaseBank().fit(base.features, base.require_labels()).transformed(beta=beta, moments=True)
    x = bank.transform(torch.from_numpy(features.split(split).float32()))
    return float(squared_distances(x, bank.means).amin(dim=1).median())


def main() -> None:
    """Print a row for each feature set, and one for each dataset whose weights the paper prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--split", default="val")
    add_record_option(parser)
    options = parser.parse_args()
    table = Table("features", "β", "squared distance", "distance")
    for dataset in ("mini", "meta-tiered"):
        found = implied_distances(dataset, 1)
        beta = paper_params(dataset, 1).beta
        table.add(f"the paper's {dataset}, from its weights", beta, f"{found[0]:.1f}", f"{found[0] ** 0.5:.1f}")
    for folder in feature_folders(*options.features):
        beta = float(paper_params(dataset_of(folder.name), 1).beta)
        squared = nearest(FeatureSet.load(folder), options.split, beta)
        table.add(folder.name, beta, f"{squared:.1f}", f"{squared**0.5:.1f}")
    table.keep(options.record)


if __name__ == "__main__":
    main()
