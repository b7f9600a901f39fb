"""Were the constants of the default fitted to our feature sets? Choose them on all sets but one, and read that one.

    python benchmarks/accuracy/choices.py FEATURES [MORE_FEATURES…] [--cells 5x1,5x5,20x1] [--tasks 250]

Each constant of the preset `default` is varied by itself, those of its parameters and those of its rules. For every
feature set in turn, the setting with the largest mean gain over SimpleShot on the validation classes of all other sets
is read on the validation and the novel classes of the set that was left out, beside the default and the best setting in
hindsight. Novel classes are looked at with the default and the chosen setting alone.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from common import QUERIES, Cell, average, difference, feature_folders, parse_cells, table_head, table_row

from fewcal import class_prior
from fewcal.errors import FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.gaussianize import fit_gaussianization
from fewcal.methods import Method, hierarchical, make_method
from fewcal.power_choice import POWERS, PowerSample, within_class_kurtosis
from fewcal.presets import get_preset

DEFAULT = "default"
# Values that are tried in place of those of the default. `kurtosis` is the threshold of the choice of β; of the rules,
# `classes` is the number of base classes from which on they have all of the say (60), `match` multiplies both limits of
# the match with their domain (0.2, 0.4), `ridges` is how far the ridges that the whitening averages lie apart (4).
GRID: dict[str, tuple[float, ...]] = {
    "whiten": (1.0, 4.0),
    "strength": (0.5, 2.0, 4.0),
    "sharpness": (1.25, 2.5),
    "floor": (0.5, 2.0),
    "scatter": (5.0, 20.0),
    "kurtosis": (4.0, 5.0, 10.0, 1e9),
    "classes": (40.0, 90.0),
    "match": (0.5, 1.5),
    "ridges": (1.0, 8.0),
}
RULES = ("classes", "match", "ridges")
Gains = dict[str, dict[str, float]]  # points above SimpleShot by feature set and setting, mean over cells


@dataclass(frozen=True)
class Setting:
    """One constant of the default changed, or none."""

    constant: str = ""
    value: float = 0.0

    def __str__(self) -> str:
        return f"{self.constant}={self.value:g}" if self.constant else DEFAULT

    def method(self, powers: Mapping[float, float]) -> Method:
        """The method, where features have these kurtoses after each power."""
        if not self.constant or self.rule:
            return make_method("gdc")
        if self.constant == "kurtosis":
            return make_method("gdc", beta=power_at(powers, self.value))
        return make_method("gdc", get_preset(DEFAULT).with_changes(**{self.constant: self.value}))

    @property
    def rule(self) -> str:
        """The constant, if it is one of a rule and no parameter."""
        return self.constant if self.constant in RULES else ""

    def applied(self) -> AbstractContextManager[object]:
        """Within it the constant of a rule has the value."""
        v = self.value
        match self.rule:
            case "classes":
                return patch.multiple(class_prior, ENOUGH_CLASSES=v)
            case "match":
                return patch.multiple(hierarchical, UNLIKE=v * hierarchical.UNLIKE, LIKE=v * hierarchical.LIKE)
            case "ridges":
                return patch.multiple(class_prior, RIDGES=(1 / v, 1.0, v))
        return nullcontext()


SETTINGS = [Setting(), *(Setting(name, value) for name, values in GRID.items() for value in values)]


def power_at(powers: Mapping[float, float], threshold: float) -> float:
    """The largest power whose kurtosis is at most `threshold`, else the smallest."""
    good = [beta for beta, kurtosis in powers.items() if kurtosis <= threshold]
    return max(good) if good else min(powers)


def kurtosis_by_power(base: FeatureSplit) -> dict[float, float]:
    """Within-class kurtosis after each power, from the rows that the default would choose by."""
    labels = base.require_labels()
    sample = PowerSample().update(torch.from_numpy(base.float32()), labels.tolist()).rows
    codes = torch.repeat_interleave(torch.arange(len(sample)), torch.tensor([len(rows) for rows in sample.values()]))
    x = torch.cat([torch.stack(rows) for rows in sample.values()])
    return {b: within_class_kurtosis(fit_gaussianization(x, b, center=True, l2=True)(x), codes) for b in POWERS}


def accuracies(
    features: FeatureSet, settings: Sequence[Setting], cells: Sequence[Cell], protocol: Protocol, device: str
) -> list[dict[str, np.ndarray]]:
    """Accuracies `(T,)` of SimpleShot and each setting in each cell that fits; `protocol` has split, seed and tasks."""
    powers = kurtosis_by_power(features.split("base"))
    found = []
    for cell in (c for c in cells if c.fits(features.split(protocol.split))):
        tasks = cell.tasks(protocol.tasks)
        of_cell = Protocol(cell.way, cell.shot, QUERIES, tasks, protocol.seed, protocol.split)
        accuracy = {}
        # A rule holds for all methods of an evaluation, and its bank remembers what followed from it.
        for rule, group in groupby(settings, key=lambda s: str(s) if s.rule else ""):
            together = list(group)
            methods = {str(s): s.method(powers) for s in together}
            if not rule:
                methods["simpleshot"] = make_method("simpleshot")
            with together[0].applied():
                results = evaluate(methods, features, of_cell, device)
            accuracy |= {name: results.accuracy(name) for name in methods}
        found.append(accuracy)
    return found


def gains(cells: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Points of each setting above SimpleShot, mean over cells."""
    names = [name for name in cells[0] if name != "simpleshot"]
    return {name: float(np.mean([100 * (c[name] - c["simpleshot"]).mean() for c in cells])) for name in names}


def chosen_without(left_out: str, val: Gains) -> str:
    """The setting of the largest mean gain on the other sets; the first of equals, so the default before others."""
    others = [by_setting for name, by_setting in val.items() if name != left_out]
    return max(others[0], key=lambda setting: np.mean([by_setting[setting] for by_setting in others]))


def print_settings(val: Gains) -> None:
    """The mean over all sets, and how often a setting gains or loses more than a tenth of a point."""
    print(table_head("setting", "mean gain over SimpleShot", "against default", "worst set", "best set"))
    for setting in next(iter(val.values())):
        against = {name: g[setting] - g[DEFAULT] for name, g in val.items()}
        low, high = min(against, key=against.__getitem__), max(against, key=against.__getitem__)
        cells = ("–", "–") if setting == DEFAULT else (f"{against[low]:+.2f} {low}", f"{against[high]:+.2f} {high}")
        mean = np.mean([g[setting] for g in val.values()])
        print(table_row([setting, f"{mean:+.2f}", f"{np.mean(list(against.values())):+.2f}", *cells]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--cells", default="5x1,5x5,20x1")
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)  # banks that are not used are in other tables
    cells, folders = parse_cells(options.cells), feature_folders(*options.features)
    if len(folders) < 2:
        parser.error("one feature set cannot be left out of one; give at least two")
    on_val = Protocol(tasks=options.tasks, seed=options.seed, split="val")
    on_novel = Protocol(tasks=options.tasks, seed=options.seed)
    val: Gains = {}
    for folder in folders:
        if found := accuracies(FeatureSet.load(folder), SETTINGS, cells, on_val, options.device):
            val[folder.name] = gains(found)
    print(f"Validation classes, {options.tasks} tasks a cell, cells {options.cells}\n")
    print_settings(val)
    print("\nChosen on the validation classes of all sets but the one in the row; points above SimpleShot\n")
    columns = ("val: default", "val: chosen", "val: best in hindsight", "novel: default", "novel: chosen")
    print(table_head("left out", "chosen", *columns, "novel: chosen − default"))
    by_name = {str(setting): setting for setting in SETTINGS}
    for folder in (f for f in folders if f.name in val):
        chosen, here = chosen_without(folder.name, val), val[folder.name]
        best = max(here, key=here.__getitem__)
        settings = [by_name[name] for name in dict.fromkeys((DEFAULT, chosen))]
        novel = accuracies(FeatureSet.load(folder), settings, cells, on_novel, options.device)
        read = gains(novel)
        gap = average(difference(c[chosen], c[DEFAULT]) for c in novel)
        told = [f"{here[DEFAULT]:+.2f}", f"{here[chosen]:+.2f}", f"{here[best]:+.2f} ({best})"]
        told += [f"{read[DEFAULT]:+.2f}", f"{read[chosen]:+.2f}"]
        print(table_row([folder.name, chosen, *told, gap]), flush=True)


if __name__ == "__main__":
    main()
