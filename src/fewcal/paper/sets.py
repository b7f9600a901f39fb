"""Feature sets of a run: which dataset of the paper each stands for, and its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fewcal.calibrate import squared_distances
from fewcal.errors import InputError
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.features.featureset import SPLITS
from fewcal.features.io.files import EXTENSIONS
from fewcal.gaussianize import fit_gaussianization
from fewcal.paper.published import implied_distances
from fewcal.paper.settings import paper_params

# Beginnings of the names of folders, by dataset of the paper; the first that fits counts.
PREFIXES = {
    "mini2cub": ("mini2cub",),
    "mini": ("mini",),
    "cub": ("cub",),
    "dogs": ("dogs", "stanford-dogs", "stanforddogs"),
    "meta-tiered": ("meta-tiered", "metatiered", "tiered"),
}
# Matching a scale stops at this relative error of the distance, or after so many steps.
SCALE_TOLERANCE, SCALE_STEPS = 1e-3, 20


@dataclass(frozen=True, eq=False)
class Features:
    """A feature set with its name and the dataset of the paper that it stands for."""

    name: str
    dataset: str
    features: FeatureSet

    @cached_property
    def prints(self) -> dict[str, str]:
        """Fingerprints of its splits."""
        return {name: split.fingerprint() for name, split in self.features.splits().items()}

    @cached_property
    def constant(self) -> float:
        """The number that its features are multiplied by for the paper's distance to the nearest base class."""
        return scale_constant(self.features, self.dataset)

    @cached_property
    def matched(self) -> Features:
        """The same features times `constant`."""
        return Features(self.name, self.dataset, scaled(self.features, self.constant))


def paper_distance(dataset: str) -> float:
    """The squared distance to the nearest base class that the paper's weights imply; for others miniImageNet's."""
    return (implied_distances(dataset, 1) or implied_distances("mini", 1))[0]


def nearest_distance(features: FeatureSet, dataset: str) -> float:
    """Mean squared distance to the nearest base class of validation rows, novel ones where there are no others."""
    base, rows, row = features.split("base"), features.val or features.split("novel"), paper_params(dataset, 1)
    x, labels = torch.from_numpy(base.float32()).double(), torch.from_numpy(base.require_labels()).long()
    space = fit_gaussianization(x, row.beta, row.kind, row.center, row.l2, row.eps)
    sums = x.new_zeros(len(base.classes), x.shape[1]).index_add_(0, labels, space(x, "base X"))
    means = sums / torch.bincount(labels, minlength=len(base.classes))[:, None]
    return float(squared_distances(space(torch.from_numpy(rows.float32()).double(), "rows"), means).amin(dim=1).mean())


def scale_constant(features: FeatureSet, dataset: str) -> float:
    """The constant c for which the features times c have the paper's distance to the nearest base class.

    Secant steps in the logarithms: with Tukey's ladder distances grow as c^(2β), with Yeo-Johnson about so.
    """
    slope, aim, constant = 2 * max(paper_params(dataset, 1).beta, 0.25), math.log(paper_distance(dataset)), 0.0
    before: tuple[float, float] | None = None
    for _ in range(SCALE_STEPS):
        distance = math.log(nearest_distance(scaled(features, math.exp(constant)), dataset))
        if abs(aim - distance) < SCALE_TOLERANCE:
            break
        if before is not None and constant != before[0]:
            slope = min(max((distance - before[1]) / (constant - before[0]), 0.25), 6.0)
        before = constant, distance
        constant += (aim - distance) / slope
    return float(f"{math.exp(constant):.6g}")  # the same in each process: the last bits depend on where arrays lie


def scaled(features: FeatureSet, constant: float) -> FeatureSet:
    """The features of all splits times a constant."""

    def times(split: FeatureSplit) -> FeatureSplit:
        x = split.float32() * np.float32(constant)
        return FeatureSplit.from_arrays(x, split.require_labels(), split.classes)

    return FeatureSet(**{n: times(split) for n, split in features.splits().items()}, allow_leaks=features.allow_leaks)


# ---- folders --------------------------------------------------------------------------------------------------------


def dataset_of(folder: str) -> str:
    """The paper's dataset that the name of a folder begins with, or the name itself.

    >>> dataset_of("mini2cub-conv4"), dataset_of("tiered-wrn"), dataset_of("birds")
    ('mini2cub', 'meta-tiered', 'birds')
    """
    found = (d for d, prefixes in PREFIXES.items() if folder.lower().startswith(prefixes))
    return next(found, folder)


def find_folders(given: Sequence[str | Path]) -> list[Features]:
    """Feature sets in folders of features, in folders of such folders, or given as DATASET=DIR."""
    out: dict[str, tuple[str, Path]] = {}
    for item in given:
        text = str(item)
        dataset, equals, place = text.partition("=")
        named = bool(equals) and not Path(text).exists()
        path = Path(place if named else text)
        if not path.is_dir():
            raise InputError(f"--features {text}: there is no folder {path}; give a folder with base, val and novel")
        here = [path] if _has_splits(path) else sorted(p for p in path.iterdir() if p.is_dir() and _has_splits(p))
        if not here:
            raise InputError(f"--features {path} holds no features; give a folder with base and novel, or one of such")
        if named and (not dataset or any(c in dataset for c in '/\\:*?"<>|') or dataset.startswith(".")):
            raise InputError(f"--features {text}: {dataset!r} cannot be the name of a dataset; use letters and digits")
        for one in here:
            name = one.resolve().name
            if name in out and out[name][1].resolve() != one.resolve():
                raise InputError(f"{out[name][1]} and {one} have the same name; rename one of the folders")
            out[name] = dataset if named else dataset_of(name), one
    return [Features(name, dataset, FeatureSet.load(path)) for name, (dataset, path) in out.items()]


def _has_splits(folder: Path) -> bool:
    return any((folder / f"{name}{extension}").is_file() for name in SPLITS for extension in EXTENSIONS)
