"""Ablation of HGDC: every parameter removed or moved, a row each, on the same tasks.

    python benchmarks/accuracy/ablation.py FEATURES SETS --others ODD NEW [--cells 5x1,5x5,20x1] [--tasks 300]

The first folders hold the sets that HGDC was developed on, `--others` those that no constant was fitted to. These are
divided by who saw their base classes: the extractor was trained on them, or not (`extractor_saw_base` of
`source.json`). Differences are mean points against HGDC as it is; intervals are over tasks.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch
from common import Outcome, Table, add_record_option, average, difference, feature_folders, parse_cells, run_cells

from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method

REFERENCE = "HGDC"
# What is changed in each row.
CHANGES: dict[str, dict[str, float]] = {
    REFERENCE: {},
    "ridge 1, not estimated": {"ridge": 1.0},
    "ridge 2, not estimated": {"ridge": 2.0},
    "no power transform": {"kurtosis": float("inf")},
    "kurtosis 5": {"kurtosis": 5.0},
    "kurtosis 10": {"kurtosis": 10.0},
    "no limit of spread": {"spread": float("inf")},
    "spread 2": {"spread": 2.0},
    "spread 8": {"spread": 8.0},
    "floor 0.05": {"floor": 0.05},
    "floor 0.3": {"floor": 0.3},
    "no neighbours (sharpness 0)": {"sharpness": 0.0},
    "sharpness 1": {"sharpness": 1.0},
    "sharpness 3": {"sharpness": 3.0},
    "full weight of base classes (classes 0)": {"classes": 0.0},
    "classes 20": {"classes": 20.0},
    "classes 80": {"classes": 80.0},
    "no scatter of the support": {"scatter": 1e6},
    "scatter 3": {"scatter": 3.0},
    "scatter 30": {"scatter": 30.0},
    "no limit of confidence": {"confidence": 1e6},
    "confidence 2": {"confidence": 2.0},
    "confidence 8": {"confidence": 8.0},
}
DEVELOPED, SEEN, UNSEEN = "developed on", "others, base classes seen", "others, not seen"


def group(folder: Path, developed: bool) -> str:
    """Of which sets a folder is."""
    if developed:
        return DEVELOPED
    source = folder / "source.json"
    saw = json.loads(source.read_text()).get("extractor_saw_base", False) if source.is_file() else False
    return SEEN if saw else UNSEEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+", help="sets that HGDC was developed on")
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="other sets")
    parser.add_argument("--cells", default="5x1,5x5,20x1")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--dim", type=int, default=10**6, help="leave out sets of more features, which take longest")
    parser.add_argument("--split", default="novel")
    parser.add_argument("--seed", type=int, default=0)
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)  # of few base classes: the same for all rows
    torch.set_num_threads(1)
    cells = parse_cells(options.cells)
    folders = [(folder, group(folder, True)) for folder in feature_folders(*options.features)]
    folders += [(folder, group(folder, False)) for folder in feature_folders(*options.others)]
    found: dict[str, list[tuple[str, dict[str, Outcome]]]] = {}
    for folder, which in folders:
        methods: dict[str, Method] = {name: make_method("hgdc", **change) for name, change in CHANGES.items()}
        features = FeatureSet.load(folder)
        if features.base.features.shape[1] > options.dim:
            continue
        for cell, outcomes in run_cells(features, cells, methods, options.tasks, options.seed, options.split):
            found.setdefault(which, []).append((f"{folder.name} {cell}", outcomes))
    groups = [name for name in (DEVELOPED, SEEN, UNSEEN) if name in found]
    sizes = "; ".join(f"{name}: {len(found[name])} cells" for name in groups) + f"; {options.tasks} tasks a cell"
    print(f"{sizes}\n", flush=True)
    table = Table("change", *groups, "worst cell", "ECE")
    every = [one for name in groups for one in found[name]]
    for change in CHANGES:
        gaps = {
            name: [difference(o[change].accuracy, o[REFERENCE].accuracy) for _, o in found[name]] for name in groups
        }
        worst = min(every, key=lambda one: difference(one[1][change].accuracy, one[1][REFERENCE].accuracy).mean)
        lost = difference(worst[1][change].accuracy, worst[1][REFERENCE].accuracy).mean
        error = sum(o[change].ece for _, o in every) / len(every)
        own = change == REFERENCE
        means = ["0" if own else str(average(gaps[name])) for name in groups]
        table.add(change, *means, "" if own else f"{lost:+.1f} ({worst[0]})", f"{error:.3f}")
    table.keep(options.record, notes=sizes)


if __name__ == "__main__":
    main()
