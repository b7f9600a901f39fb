"""HGDC beside every plain baseline on the same tasks: accuracies, paired differences, calibration error.

    python benchmarks/accuracy/default.py FEATURES [MORE_FEATURES…] [--cells 5x1,5x5|all] [--tasks 1000] [--split novel]

FEATURES is a feature folder or holds some; `make_sets.py`, `make_odd_sets.py` and `make_new_sets.py` make more. Cells
are WAYxSHOT; `all` is 5 and 20 ways with 1, 5, 10 and 20 shots, where classes and rows suffice. Cells of large support
get fewer tasks, as the table shows. `dc` is sampled and slow: it runs on the first `--dc-tasks` tasks and is compared
on those. Choose on val; novel is for the final figure.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common import (
    Cell,
    Outcome,
    Points,
    Table,
    add_record_option,
    average,
    difference,
    feature_folders,
    parse_cells,
    run_cells,
)

from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSet
from fewcal.methods import make_method

BASELINES = ("ncm", "simpleshot", "cosine", "lr_l2", "lda", "dc")
OURS = "hgdc"
METHODS = (*BASELINES, "support-only", OURS)
# A cell that is further below its best baseline, in points, is named.
BELOW = -0.5


@dataclass(frozen=True, eq=False)
class CellResult:
    """One feature set, one cell: the outcome of each method."""

    features: str
    cell: Cell
    outcomes: Mapping[str, Outcome]

    def gap(self, baseline: str) -> Points:
        """HGDC minus a baseline on the same tasks."""
        return difference(self.outcomes[OURS].accuracy, self.outcomes[baseline].accuracy)

    @property
    def ece(self) -> float:
        """Calibration error of HGDC."""
        return self.outcomes[OURS].ece

    @property
    def best(self) -> str:
        """The baseline that HGDC is least above, each on the tasks that it ran on."""
        return min((name for name in BASELINES if name in self.outcomes), key=lambda name: self.gap(name).mean)

    def row(self, methods: Sequence[str]) -> list[object]:
        """Its line in the table."""
        best = self.best
        return [
            self.features,
            self.cell,
            len(self.outcomes[OURS].accuracy),
            *(f"{100 * self.outcomes[name].accuracy.mean():.2f}" for name in methods),
            f"{self.gap(best)} ({best})",
            f"{self.ece:.3f}",
        ]


def summary(results: Sequence[CellResult]) -> str:
    """Mean difference to each baseline and to the best of each cell, cells below it, calibration error."""
    gaps = [(r.gap(r.best), r) for r in results]
    below = sorted((g.mean, f"{r.features} {r.cell} {g} ({r.best})") for g, r in gaps if g.mean < BELOW)
    unsure = max(results, key=lambda r: r.ece)
    lines = [
        f"{len(results)} cells of {len({r.features for r in results})} sets",
        f"mean difference to the best baseline of each cell: {average(g for g, _ in gaps)}",
        *(
            f"mean difference to {name}: {average(r.gap(name) for r in results)}"
            for name in (*BASELINES, "support-only")
            if all(name in r.outcomes for r in results)
        ),
        f"cells more than {-BELOW} points below a baseline: {'; '.join(name for _, name in below) or 'none'}",
        f"calibration error: mean {sum(r.ece for r in results) / len(results):.3f}, "
        f"largest {unsure.ece:.3f} ({unsure.features} {unsure.cell})",
    ]
    return "\n".join(f"- {line}." for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--cells", default="5x1,5x5")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--dc-tasks", type=int, default=100)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(METHODS), help=f"{OURS} and baselines, with commas")
    add_record_option(parser)
    options = parser.parse_args()
    names = options.methods.split(",")
    if OURS not in names or not set(names) & set(BASELINES):
        parser.error(f"--methods needs {OURS} and at least one of {', '.join(BASELINES)}")
    warnings.simplefilter("ignore", FewcalWarning)  # of few base classes, which some sets have
    torch.set_num_threads(1)
    cells, folders = parse_cells(options.cells), feature_folders(*options.features)
    few = f"; dc on at most {options.dc_tasks} of them" if "dc" in names else ""
    print(f"{options.split} tasks, seed {options.seed}, accuracy %, differences with their 95% half-width{few}\n")
    table = Table("features", "cell", "tasks", *names, f"{OURS} − best baseline", f"ECE of {OURS}")
    results: list[CellResult] = []
    for folder in folders:
        features = FeatureSet.load(folder)
        methods = {name: make_method(name) for name in names}
        limits = {"dc": options.dc_tasks}
        for cell, outcomes in run_cells(features, cells, methods, options.tasks, options.seed, options.split, limits):
            results.append(CellResult(folder.name, cell, outcomes))
            table.add(*results[-1].row(names))
    text = summary(results) if results else "no cell fits"
    table.keep(options.record, notes=text)
    print("\n" + text)


if __name__ == "__main__":
    main()
