"""Transductive methods against HGDC, in five kinds of pools: python benchmarks/accuracy/unlabelled.py FOLDER...

Rows are kinds of tasks: ways x shots, 15 queries a class, their shares equal or Dirichlet(2), two of the classes
present, or a quarter of other classes. Mean difference to `hgdc` in points over feature sets, the worst set, and the
calibration error.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import Table, add_record_option, feature_folders

from fewcal import FeatureSet
from fewcal.errors import InputError
from fewcal.evaluation import Protocol, evaluate

POOLS = {
    "5x1 balanced": Protocol(shot=1),
    "5x1 Dirichlet(2)": Protocol(shot=1, queries=75, dirichlet=2.0),
    "5x1 two present": Protocol(shot=1, queries=70, present=2),
    "5x1 quarter of others": Protocol(shot=1, queries=75, outliers=0.25),
    "20x1 Dirichlet(2)": Protocol(way=20, shot=1, queries=300, dirichlet=2.0),
    "5x5 balanced": Protocol(shot=5),
}
REFERENCE = "hgdc"


def measure(folder: Path, methods: list[str], tasks: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Accuracy in percent and calibration error by pool and method; pools for which rows are missing are left out."""
    features, found = FeatureSet.load(folder), {}
    for pool, protocol in POOLS.items():
        count = max(tasks // 4, 1) if protocol.way > 5 else tasks
        try:
            results = evaluate(methods, features, replace(protocol, tasks=count))
        except InputError as error:
            print(f"{folder.name}, {pool}: {error}")
            continue
        summary = results.summary(class_intervals=False)
        found[pool] = {m: (100 * float(results.accuracy(m).mean()), summary.methods[m].ece or np.nan) for m in methods}
    return found


def mean_error(errors: list[float]) -> str:
    """The mean calibration error of sets; nothing for a method without probabilities."""
    return "" if np.isnan(errors).all() else f"{np.nanmean(errors):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--methods", default="hgdc-transductive")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="JSON with the figures of each set; sets that are in it are not run")
    add_record_option(parser)
    options = parser.parse_args()
    methods = [REFERENCE, *options.methods.split(",")]
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.is_file() else {}
    for folder in feature_folders(*options.folders):
        if folder.name not in kept:
            kept[folder.name] = measure(folder, methods, options.tasks)
            if options.keep:
                options.keep.write_text(json.dumps(kept))
    print(f"{len(kept)} feature sets, {options.tasks} tasks (a quarter of them at 20 ways)")
    table = Table("tasks", "method", "sets", "mean difference", "worst set", "ECE", f"ECE of {REFERENCE}")
    for pool in POOLS:
        cells = {name: values[pool] for name, values in kept.items() if pool in values}
        for method in methods[1:]:
            gaps = {name: cell[method][0] - cell[REFERENCE][0] for name, cell in cells.items()}
            worst = min(gaps, key=lambda name: gaps[name])
            table.add(
                pool,
                method,
                str(len(gaps)),
                f"{np.mean(list(gaps.values())):+.2f}",
                f"{gaps[worst]:+.2f} ({worst})",
                *(mean_error([cell[m][1] for cell in cells.values()]) for m in (method, REFERENCE)),
            )
    table.keep(options.record)


if __name__ == "__main__":
    main()
