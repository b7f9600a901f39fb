"""Ablation of HGDC: every parameter removed or moved, a row each, on the same tasks.

    python benchmarks/accuracy/ablation.py FEATURES [MORE_FEATURES…] [--cells 5x1,5x5,20x1] [--tasks 300] [--split novel]

Sets are grouped by who saw their base classes: the extractor was trained on them, or not (`extractor_saw_base` of
`source.json`; sets of the paper's features were). Differences are mean points against HGDC as it is; the worst is of
one cell. The last rows are other methods.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from common import QUERIES, Table, add_record_option, feature_folders, parse_cells

from fewcal.errors import FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.methods import Method, make_method

# What is changed in each row.
CHANGES: dict[str, dict[str, float]] = {
    "HGDC": {},
    "λ = 1": {"ridge": 1.0},
    "no power": {"kurtosis": float("inf")},
    "kurtosis 5": {"kurtosis": 5.0},
    "kurtosis 10": {"kurtosis": 10.0},
    "floor .05": {"floor": 0.05},
    "floor .3": {"floor": 0.3},
    "τ = 0, no neighbours": {"sharpness": 0.0},
    "τ = 1": {"sharpness": 1.0},
    "τ = 3": {"sharpness": 3.0},
    "no scatter of the support": {"scatter": 1e6},
    "scatter 3": {"scatter": 3.0},
    "scatter 30": {"scatter": 30.0},
    "γ not limited": {"confidence": 1e6},
    "confidence 2": {"confidence": 2.0},
    "confidence 8": {"confidence": 8.0},
    "h = 0": {"classes": 0.0},
    "h = 5": {"classes": 5.0},
    "h = 20": {"classes": 20.0},
    "no domain shift": {"shift": float("inf")},
    "δ₀² = .1": {"shift": 0.1},
    "δ₀² = .4": {"shift": 0.4},
}
BASELINES = ("support-only", "ncm", "simpleshot", "cosine", "lr_l2", "lda")


def group(folder: Path) -> str:
    """Who saw the base classes of a set."""
    source = folder / "source.json"
    saw = json.loads(source.read_text()).get("extractor_saw_base", True) if source.is_file() else True
    return "trained on the base classes" if saw else "not trained on them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--cells", default="5x1,5x5,20x1")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)  # of few base classes: the same for all rows
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for folder in feature_folders(*options.features):
        features = FeatureSet.load(folder)
        for cell in parse_cells(options.cells):
            if not cell.fits(features.split(options.split)):
                continue
            protocol = Protocol(
                cell.way, cell.shot, QUERIES, cell.tasks(options.tasks), options.seed, split=options.split
            )
            methods: dict[str, Method] = {name: make_method("hgdc", **c) for name, c in CHANGES.items()}
            methods |= {name: make_method(name) for name in BASELINES}
            results = evaluate(methods, features, protocol, options.device)
            for name in methods:
                points = 100 * float(results.accuracy(name).mean())
                error = results.bins[name].error() if name in results.bins else float("nan")
                found.setdefault(group(folder), {}).setdefault(name, []).append((points, error))
    groups = sorted(found)
    columns = [f"{what}, {name}" for name in groups for what in ("points", "worst", "ECE")]
    print(
        f"{options.split} tasks, seed {options.seed}, cells {options.cells}; "
        + "; ".join(f"{name}: {len(found[name]['HGDC'])} cells" for name in groups)
        + "\n"
    )
    table = Table("change", *columns)
    for name in (*CHANGES, *BASELINES):
        row: list[str] = []
        for one in groups:
            own, reference = (np.array(found[one][n]) for n in (name, "HGDC"))
            gap = own[:, 0] - reference[:, 0]
            row += [f"{gap.mean():+.2f}", f"{gap.min():+.2f}", f"{np.nanmean(own[:, 1]):.3f}"]
        table.add(name, *row)
    table.keep(options.record)


if __name__ == "__main__":
    main()
