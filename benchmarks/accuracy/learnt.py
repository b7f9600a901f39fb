"""Did the extractor learn the base classes, and what do new classes have of the variance between them?

    python benchmarks/accuracy/learnt.py FEATURES [MORE_FEATURES…]

For every set and split, in the space of the default: the variance between class means, of new classes over base classes
(`between`), within classes likewise (`within`), and the signs by which the default tells (`fewcal.learnt_classes`):
log-odds of the bank, γ of its one-shot tasks over the guess, by how much rows fall short of base rows (d), and the
probability that the base classes were learnt, in tasks of 5 and of 20 classes with rows as short as these.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from common import feature_folders, table_head, table_row
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSet
from fewcal.learnt_classes import learnt
from fewcal.methods import make_method
from fewcal.methods.hierarchical import HierarchicalGDC


def variances(rows: Tensor, labels: np.ndarray) -> tuple[float, float]:
    """Between class means, less their noise, and within classes, of rows `(R, D)`."""
    classes = [rows[torch.from_numpy(labels == c)] for c in np.unique(labels)]
    means = torch.stack([c.mean(dim=0) for c in classes])
    scatter = sum(float((c - m).square().sum()) for c, m in zip(classes, means, strict=True))
    within = scatter / (len(rows) - len(classes))
    noise = within * float(np.mean([1 / len(c) for c in classes]))
    return float((means - means.mean(dim=0)).square().sum()) / (len(classes) - 1) - noise, within


def signs(folder: Path) -> None:
    """Print the rows of a feature set."""
    features = FeatureSet.load(folder)
    base = features.split("base")
    method = make_method("gdc").prepare(BaseBank().fit(base.features, base.require_labels()))
    if not isinstance(method, HierarchicalGDC) or method.one_shot is None:
        return
    scale, prior = method.one_shot, method.prior
    for split in (s for s in ("val", "novel") if s in features.splits()):
        rows = features.split(split)
        z = method.row_map(torch.from_numpy(rows.float32()))
        between, within = variances(z[:, : len(prior.origin)], rows.require_labels())
        short = (scale.length - z[:, -1].mean()) / scale.spread
        told = [f"{float(learnt(scale.learnt, short[None], ways)):.2f}" for ways in (5, 20)]
        numbers = (
            between / prior.gap,
            within / prior.within,
            scale.learnt,
            scale.gamma / method.confidence,
            float(short),
        )
        print(table_row([folder.name, split, *(f"{v:.2f}" for v in numbers), *told]), flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    warnings.simplefilter("ignore", FewcalWarning)
    columns = ("features", "split", "between", "within", "log-odds of the bank", "γ / guess", "d")
    folders = feature_folders(*parser.parse_args().features)
    print(table_head(*columns, "learnt, 5 classes", "20 classes"))
    for folder in folders:
        signs(folder)


if __name__ == "__main__":
    main()
