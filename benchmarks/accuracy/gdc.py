"""GDC as printed, GDC tuned, HGDC, DC and the best plain baseline on the same novel tasks.

    python benchmarks/accuracy/gdc.py FEATURES --out STUDIES [--trials 40] [--tasks 300]

FEATURES is a folder with the feature sets below. As printed is the preset `paper/<dataset>/<shots>` with its SGD head.
Tuned is the best of `--trials` trials on validation classes, with the closed-form head; novel classes are opened after
that choice. The studies stay in STUDIES, and a second call resumes them. HGDC has no tuned parameter.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from common import Cell, Table, add_record_option, difference, run_cells

from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSet
from fewcal.methods import make_method
from fewcal.tuning import Search, tune

# The published settings that belong to each feature set.
SETS = {
    "cub-resnet12": "cub",
    "cub-resnet12s": "cub",
    "dogs-resnet12p64": "dogs",
    "mini-resnet12": "mini",
    "mini-resnet12s": "mini",
    "mini2cub-conv4": "mini2cub",
}
PLAIN = ("ncm", "simpleshot", "cosine", "lr_l2", "lda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where the studies are kept")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="some of the feature sets")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--trial-tasks", type=int, default=100, help="validation tasks of a trial")
    parser.add_argument("--tasks", type=int, default=300, help="novel tasks")
    parser.add_argument("--slow-tasks", type=int, default=300, help="novel tasks of DC and of GDC as printed")
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)
    torch.set_num_threads(1)
    there = [name for name in options.sets if (options.features / name).is_dir()]
    if not there:
        parser.error(f"{options.features} has none of {', '.join(options.sets)}")
    columns = ("best plain baseline", "DC", "GDC as printed", "GDC tuned", "HGDC")
    table = Table("features", "shots", *columns, "HGDC − best plain baseline", "HGDC − GDC tuned")
    for name in there:
        features = FeatureSet.load(options.features / name)
        for shot in (1, 5):
            search = Search(
                space="gdc",
                head="closed_form",
                shot=shot,
                trials=options.trials,
                tasks=options.trial_tasks,
                final_tasks=options.trial_tasks,
            )
            tuned = tune(features, search, out=options.out / f"{name}-{shot}", resume=True, plots=False).best.method
            methods = {plain: make_method(plain) for plain in PLAIN}
            methods |= {
                "DC": make_method("dc"),
                "GDC as printed": make_method("gdc", f"paper/{SETS[name]}/{shot}shot"),
                "GDC tuned": tuned,
                "HGDC": make_method("hgdc"),
            }
            limits = {"DC": options.slow_tasks, "GDC as printed": options.slow_tasks}
            [(_, found)] = run_cells(features, [Cell(5, shot)], methods, options.tasks, 0, "novel", limits)
            means = {key: 100 * float(outcome.accuracy.mean()) for key, outcome in found.items()}
            best = max(PLAIN, key=means.__getitem__)
            table.add(
                name,
                shot,
                f"{means[best]:.2f} ({best})",
                *(f"{means[column]:.2f}" for column in columns[1:]),
                difference(found["HGDC"].accuracy, found[best].accuracy),
                difference(found["HGDC"].accuracy, found["GDC tuned"].accuracy),
            )
    table.keep(options.record)


if __name__ == "__main__":
    main()
