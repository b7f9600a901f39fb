"""The default preset beside every plain baseline on the same tasks: accuracies, paired differences, calibration error.

    python benchmarks/accuracy/default.py FEATURES [MORE_FEATURES…] [--cells 5x1,5x5|all] [--tasks 1000] [--split novel]

FEATURES is a feature folder or holds some; `make_sets.py` makes more. Cells are WAYxSHOT; `all` is 5 and 20 ways with
1, 5, 10 and 20 shots, where classes and rows suffice. Cells of large support get fewer tasks, as the table says. `dc`
is sampled and slow: it runs on the first `--dc-tasks` tasks and is compared on those. Choose on val; novel is for the
final figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import (
    QUERIES,
    Cell,
    Points,
    Table,
    add_record_option,
    average,
    difference,
    feature_folders,
    parse_cells,
)

from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.stats import calibration_error
from fewcal.features import FeatureSet

BASELINES = ("ncm", "simpleshot", "cosine", "lr_l2", "lda", "dc")
OURS = "gdc"
METHODS = (*BASELINES, "bankless", OURS)
REFERENCE = "simpleshot"


@dataclass(frozen=True, eq=False)
class CellResult:
    """One feature set, one cell: accuracies `(T,)` by method, in 0..1, and the calibration error of ours."""

    features: str
    cell: Cell
    accuracy: Mapping[str, np.ndarray]
    ece: float

    def gap(self, baseline: str) -> Points:
        """Ours minus a baseline on the same tasks."""
        return difference(self.accuracy[OURS], self.accuracy[baseline])

    @property
    def baselines(self) -> list[str]:
        return [name for name in BASELINES if name in self.accuracy]

    @property
    def best(self) -> str:
        """The baseline that ours is least above, each on the tasks that it ran on."""
        return min(self.baselines, key=lambda name: self.gap(name).mean)

    def row(self, methods: Sequence[str]) -> list[object]:
        """Its line in the table."""
        best = self.best
        return [
            self.features,
            self.cell,
            len(self.accuracy[OURS]),
            *(f"{100 * self.accuracy[name].mean():.2f}" for name in methods),
            *([self.gap(REFERENCE)] if REFERENCE in self.accuracy else []),
            f"{self.gap(best)} ({best})",
            f"{self.ece:.3f}",
        ]


def run_cell(
    features: FeatureSet, protocol: Protocol, methods: Sequence[str], dc_tasks: int, device: str
) -> CellResult:
    """Run a cell; task i is the same for every method."""
    results = evaluate([m for m in methods if m != "dc"], features, protocol, device)
    accuracy = {name: results.accuracy(name) for name in results.correct}
    if "dc" in methods:
        some = Protocol(**{**protocol.to_dict(), "tasks": min(dc_tasks, protocol.tasks)})
        accuracy["dc"] = evaluate(["dc"], features, some, device).accuracy("dc")
    return CellResult("", Cell(protocol.way, protocol.shot), accuracy, calibration_error(results.bins[OURS]))


def summary(results: Sequence[CellResult]) -> str:
    """Worst difference to the best baseline, mean difference to each, largest calibration error."""
    worst = min(results, key=lambda r: r.gap(r.best).mean)
    unsure = max(results, key=lambda r: r.ece)
    lines = [
        f"{len(results)} cells",
        f"worst difference to the best baseline: {worst.gap(worst.best)} ({worst.features} {worst.cell}, {worst.best})",
    ]
    for name in (n for n in (*BASELINES, "bankless") if all(n in r.accuracy for r in results)):
        lines.append(f"mean difference to {name}: {average(r.gap(name) for r in results)}")
    lines.append(f"largest calibration error: {unsure.ece:.3f} ({unsure.features} {unsure.cell})")
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--cells", default="5x1,5x5")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--dc-tasks", type=int, default=100)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"{OURS} and baselines, with commas")
    add_record_option(parser)
    options = parser.parse_args()
    methods = options.methods.split(",")
    if OURS not in methods or not set(methods) & set(BASELINES):
        parser.error(f"--methods needs {OURS} and at least one of {', '.join(BASELINES)}")
    cells, folders = parse_cells(options.cells), feature_folders(*options.features)
    told = f"; dc on at most {options.dc_tasks} of them" if "dc" in methods else ""
    print(f"{options.split} tasks, seed {options.seed}, accuracy %, differences with their 95% half-width{told}\n")
    compared = [f"{OURS} − {REFERENCE}"] if REFERENCE in methods else []
    table = Table("features", "cell", "tasks", *methods, *compared, f"{OURS} − best baseline", f"ECE of {OURS}")
    found: list[CellResult] = []
    for folder in folders:
        features = FeatureSet.load(folder)
        for cell in (c for c in cells if c.fits(features.split(options.split))):
            protocol = Protocol(
                cell.way, cell.shot, QUERIES, cell.tasks(options.tasks), options.seed, split=options.split
            )
            made = run_cell(features, protocol, methods, options.dc_tasks, options.device)
            found.append(CellResult(folder.name, cell, made.accuracy, made.ece))
            table.add(*found[-1].row(methods))
    table.keep(options.record)
    print("\n" + (summary(found) if found else "no cell fits"))


if __name__ == "__main__":
    main()
