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
from common import QUERIES, Cell, Points, average, difference, feature_folders, parse_cells, table_head, table_row

from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet

BASELINES = ("ncm", "simpleshot", "cosine", "lr_l2", "lda", "dc")
METHODS = (*BASELINES, "bankless", "gdc")
REFERENCE = "simpleshot"
# Points above SimpleShot that we asked for, at 5 ways with 1 and 5 shots.
ASKED = {
    "cub-resnet12s": (2.0, 1.8),
    "mini-resnet12s": (1.0, 2.0),
    "cub-resnet12": (5.5, 2.5),
    "dogs-resnet12p64": (3.0, 1.2),
    "mini-resnet12": (1.3, 0.9),
    "mini2cub-conv4": (3.5, 4.5),
}


@dataclass(frozen=True, eq=False)
class CellResult:
    """One feature set, one cell: accuracies `(T,)` by method, in 0..1, and the calibration error of gdc."""

    features: str
    cell: Cell
    accuracy: Mapping[str, np.ndarray]
    ece: float

    def gap(self, baseline: str) -> Points:
        """gdc minus a baseline on the same tasks."""
        return difference(self.accuracy["gdc"], self.accuracy[baseline])

    @property
    def baselines(self) -> list[str]:
        return [name for name in BASELINES if name in self.accuracy]

    @property
    def best(self) -> str:
        """The baseline that gdc is least above, each on the tasks that it ran on."""
        return min(self.baselines, key=lambda name: self.gap(name).mean)

    @property
    def asked(self) -> float | None:
        """Points above SimpleShot that were asked for in this cell."""
        shots = {Cell(5, 1): 0, Cell(5, 5): 1}
        known = self.features in ASKED and self.cell in shots
        return ASKED[self.features][shots[self.cell]] if known else None

    def row(self, methods: Sequence[str]) -> str:
        """Its line in the table."""
        best = self.best
        asked = "–" if self.asked is None else f"{self.asked:.1f}"
        return table_row(
            [
                self.features,
                self.cell,
                len(self.accuracy["gdc"]),
                *(f"{100 * self.accuracy[name].mean():.2f}" for name in methods),
                *([self.gap(REFERENCE), asked] if REFERENCE in self.accuracy else []),
                f"{self.gap(best)} ({best})",
                f"{self.ece:.3f}",
            ]
        )


def run_cell(
    features: FeatureSet, protocol: Protocol, methods: Sequence[str], dc_tasks: int, device: str
) -> CellResult:
    """Run a cell; task i is the same for every method."""
    results = evaluate([m for m in methods if m != "dc"], features, protocol, device)
    accuracy = {name: results.accuracy(name) for name in results.correct}
    if "dc" in methods:
        some = Protocol(**{**protocol.to_dict(), "tasks": min(dc_tasks, protocol.tasks)})
        accuracy["dc"] = evaluate(["dc"], features, some, device).accuracy("dc")
    return CellResult("", Cell(protocol.way, protocol.shot), accuracy, results.bins["gdc"].error())


def summary(results: Sequence[CellResult]) -> str:
    """Worst difference to the best baseline, mean difference to each, largest calibration error, goals missed."""
    worst = min(results, key=lambda r: r.gap(r.best).mean)
    unsure = max(results, key=lambda r: r.ece)
    lines = [
        f"{len(results)} cells",
        f"worst difference to the best baseline: {worst.gap(worst.best)} ({worst.features} {worst.cell}, {worst.best})",
    ]
    for name in (n for n in (*BASELINES, "bankless") if all(n in r.accuracy for r in results)):
        lines.append(f"mean difference to {name}: {average(r.gap(name) for r in results)}")
    lines.append(f"largest calibration error: {unsure.ece:.3f} ({unsure.features} {unsure.cell})")
    gaps = [(r, r.gap(REFERENCE), r.asked) for r in results if r.asked is not None and REFERENCE in r.accuracy]
    missed = [f"{r.features} {r.cell} by {a - g.mean:.2f}" for r, g, a in gaps if a is not None and g.mean < a]
    if gaps:
        lines.append(f"goals missed: {', '.join(missed) or 'none'} (of {len(gaps)})")
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
    parser.add_argument("--methods", default=",".join(METHODS), help="gdc and baselines, with commas")
    options = parser.parse_args()
    methods = options.methods.split(",")
    if "gdc" not in methods or not set(methods) & set(BASELINES):
        parser.error(f"--methods needs gdc and at least one of {', '.join(BASELINES)}")
    cells, folders = parse_cells(options.cells), feature_folders(*options.features)
    told = f"; dc on at most {options.dc_tasks} of them" if "dc" in methods else ""
    print(f"{options.split} tasks, seed {options.seed}, accuracy %, differences with their 95% half-width{told}\n")
    compared = [f"gdc − {REFERENCE}", "asked"] if REFERENCE in methods else []
    print(table_head("features", "cell", "tasks", *methods, *compared, "gdc − best baseline", "ECE of gdc"))
    found: list[CellResult] = []
    for folder in folders:
        features = FeatureSet.load(folder)
        for cell in (c for c in cells if c.fits(features.split(options.split))):
            protocol = Protocol(
                cell.way, cell.shot, QUERIES, cell.tasks(options.tasks), options.seed, split=options.split
            )
            made = run_cell(features, protocol, methods, options.dc_tasks, options.device)
            found.append(CellResult(folder.name, cell, made.accuracy, made.ece))
            print(found[-1].row(methods), flush=True)
    print("\n" + (summary(found) if found else "no cell fits"))


if __name__ == "__main__":
    main()
