"""Equation 13 of the paper as printed, beside the form that fewcal takes by default.

For each feature folder: whether class covariances have an inverse, how many printed distances are negative, for how
many points another base class is the nearest with the ridge, and the accuracy of each form in closed form.

    python benchmarks/accuracy/mahalanobis.py FEATURES... [--split val] [--tasks 1000]
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from common import Table, feature_folders
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.calibrate import MetricOptions, distances
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams

PRINTED = MetricOptions(mahalanobis_ridge=0.0, mahalanobis_shift=False)
# What is measured: the distance, its ridge and its shift.
FORMS = {
    "as printed": ("mahalanobis", 0.0, False),
    "shift alone": ("mahalanobis", 0.0, True),
    "ridge alone": ("mahalanobis", 0.1, False),
    "ridge and shift": ("mahalanobis", 0.1, True),
    "squared Euclidean": ("sqeuclidean", 0.1, True),
}


@dataclass(frozen=True)
class Signs:
    """Shares: of negative distances, of points whose nearest class has one, of points with another nearest class."""

    negative: float
    nearest_negative: float
    other_nearest: float


def signs(x: Tensor, bank: BaseBank) -> Signs:
    """Printed distances of points `x (R, D)` beside those with the usual ridge; `InputError` where none are defined."""
    printed = distances(x, bank, "mahalanobis", PRINTED)
    usual = distances(x, bank, "mahalanobis")
    nearest, index = printed.min(dim=1)
    return Signs(*(float(t.float().mean()) for t in (printed < 0, nearest < 0, index != usual.argmin(dim=1))))


def look(features: FeatureSet, split: str, unit: bool) -> Signs | str:
    """The signs on a split, at the features' own scale or at unit scale; or why there are none."""
    raw = BaseBank().fit(features.split("base").features, features.split("base").require_labels())
    bank = raw.transformed(beta=1.0, center=unit, l2=unit)
    x = bank.transform(torch.as_tensor(features.split(split).features).float())
    try:
        return signs(x, bank)
    except InputError as error:
        return str(error).partition(";")[0]


def accuracies(features: FeatureSet, protocol: Protocol, unit: bool) -> dict[str, str]:
    """Accuracy of GDC with each form, k = 4 and m = 1, in closed form with little shrinkage."""
    base = GDCParams(beta=1.0, k=4, m=1.0, center=unit, l2=unit, alpha1=1.0, alpha2_ratio=1.0, head="closed_form")
    methods = {}
    for name, (metric, ridge, shift) in FORMS.items():
        own = base.with_changes(metric=metric, mahalanobis_ridge=ridge, mahalanobis_shift=shift)
        methods[name] = GDC(own, cap_k=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)  # of negative distances, which are counted above
        found = evaluate(methods, features, protocol).summary(class_intervals=False).methods
    return {name: f"{100 * m.accuracy:.2f} ± {100 * m.ci95:.2f}" for name, m in found.items()}


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--split", default="val")
    parser.add_argument("--tasks", type=int, default=1000)
    options = parser.parse_args()
    shares: list[list[object]] = []
    accuracy: list[list[object]] = []
    for folder in feature_folders(*options.features):
        features = FeatureSet.load(folder)
        for unit, scale in ((False, "own"), (True, "unit")):
            found = look(features, options.split, unit)
            if isinstance(found, str):
                shares.append([folder.name, scale, found, "", ""])
                continue
            values = (found.negative, found.nearest_negative, found.other_nearest)
            shares.append([folder.name, scale, *(f"{100 * v:.1f}" for v in values)])
            for shot in (1, 5):
                protocol = Protocol(shot=shot, tasks=options.tasks, split=options.split)
                accuracy.append([folder.name, scale, shot, *accuracies(features, protocol, unit).values()])
    print(f"points of the {options.split} split\n")
    table = Table("features", "scale", "d < 0 %", "nearest d < 0 %", "another nearest class %")
    for row in shares:
        table.add(*row)
    if accuracy:
        print(f"\naccuracy in %, {options.tasks} {options.split} tasks, 5 ways, k=4, m=1, α1=α2=1, closed form\n")
        table = Table("features", "scale", "shots", *FORMS)
        for row in accuracy:
            table.add(*row)


if __name__ == "__main__":
    main()
