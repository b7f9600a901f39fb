"""How many of the labels that `fewcal check` marks are wrong, and how many wrong labels it marks.

    python benchmarks/accuracy/wrong_labels.py glyphs [--bank]            letters that are drawn on the spot
    python benchmarks/accuracy/wrong_labels.py cub-efficientnet [--bank]  of a feature folder

Each run draws some classes and gives one label of twenty to another class. An example is marked where its answer, when
it is left out, is more probable than its label by `LIKELY_MARGIN`.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import Table, add_record_option
from projects import add_project_options, projects

from fewcal.apply.check import check_examples

WRONG = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_project_options(parser, ways=10, runs=10)
    add_record_option(parser)
    options = parser.parse_args()
    found = np.zeros((options.runs, 3))  # wrong labels, marked ones, both
    for seed, (x, y, recipe) in enumerate(projects(options)):
        rng = np.random.default_rng([seed, 2])
        classes, labels = np.unique(y), y.copy()
        wrong = rng.choice(len(y), round(WRONG * len(y)), replace=False)
        for i in wrong:
            labels[i] = rng.choice(classes[classes != y[i]])
        check = check_examples(x, labels, recipe.make)
        marked = [one.row for one in check.suspects if one.likely]
        found[seed] = len(wrong), len(marked), len(set(marked) & set(wrong.tolist()))
    wrong_labels, marks, both = found.sum(axis=0)
    table = Table("runs", "examples of a class", "wrong labels", "marked", "precision %", "recall %")
    shares = (f"{100 * both / max(marks, 1):.0f}", f"{100 * both / wrong_labels:.0f}")
    table.add(options.runs, options.items, int(wrong_labels), int(marks), *shares)
    table.keep(options.record)


if __name__ == "__main__":
    main()
