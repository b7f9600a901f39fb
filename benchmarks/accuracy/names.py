"""What names of classes bring: python benchmarks/accuracy/names.py FOLDER... [--tasks 300]

Tasks with 15 queries a class; accuracy of `FewShotClassifier(bank)` in percent, and the mean paired difference with
`class_names=True`, with names of classes that are shuffled, and with names that mean nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import QUERIES, Table, add_record_option, difference, feature_folders, parse_cells

from fewcal import BaseBank, FeatureSet, FewShotClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--cells", default="5x1,20x1,5x5")
    add_record_option(parser)
    options = parser.parse_args()
    table = Table("feature set", "tasks", "without", "names", "shuffled", "meaningless")
    for folder in feature_folders(*options.folders):
        data = FeatureSet.load(folder)
        base, novel = data.split("base"), data.split("novel")
        bank = BaseBank().fit(base.float32(), np.array(base.classes, dtype=object)[base.require_labels()])
        x, y = novel.float32(), novel.require_labels()
        names, other = list(novel.classes), np.random.default_rng(0).permutation(novel.classes)
        kinds = [False, dict(enumerate(names)), dict(enumerate(other)), {i: f"q{i}x" for i in range(len(names))}]
        for cell in parse_cells(options.cells):
            if not cell.fits(novel):
                continue
            found = [[] for _ in kinds]
            for seed in range(cell.tasks(options.tasks)):
                rng = np.random.default_rng(seed)
                drawn = rng.choice(len(names), cell.way, replace=False)
                rows = np.stack([rng.permutation(np.flatnonzero(y == c))[: cell.shot + QUERIES] for c in drawn])
                support, query = rows[:, : cell.shot].ravel(), rows[:, cell.shot :].ravel()
                for accuracy, kind in zip(found, kinds, strict=True):
                    clf = FewShotClassifier(bank).fit(x[support], y[support], class_names=kind)
                    accuracy.append((clf.predict(x[query]) == y[query]).mean())
            gaps = [str(difference(np.array(one), np.array(found[0]))) for one in found[1:]]
            table.add(folder.name, str(cell), f"{100 * np.mean(found[0]):.2f}", *gaps)
    table.keep(options.record)


if __name__ == "__main__":
    main()
