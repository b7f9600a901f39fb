"""How true the accuracy is that the studio expects, after every label from the fourth on.

    python benchmarks/accuracy/expected.py glyphs [--bank]            12 letters in 30 drawings each, made on the spot
    python benchmarks/accuracy/expected.py cub-efficientnet [--bank]  of a feature folder

The truth is the share of right answers to all items without a label, those of classes that have no example yet among
them. Labels come as the studio proposes them, at random, or class by class (three each, then as proposed). `before` is
the mean probability of the answers, given from the first answer on.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import Table, add_record_option
from projects import add_project_options, answers, projects

from fewcal.apply.labelling import centre, doubt, expected_accuracy, label_next, similarities
from fewcal.apply.studio.answers import Recipe

FIRST = 4  # label from which on a figure must be true
TOLERANCE = 0.1
ORDERS = ("proposed", "random", "class by class")
EACH = 3  # labels of a class, where they come class by class


def follow(x: np.ndarray, y: np.ndarray, recipe: Recipe, order: str, labels: int, seed: int) -> np.ndarray:
    """Rows (labels, 3) of truth, figure (NaN: none) and mean probability, from label `FIRST` on."""
    rng = np.random.default_rng([seed, 1])
    queue = [int(i) for c in rng.permutation(np.unique(y)) for i in np.flatnonzero(y == c)[:EACH]]
    similar = similarities(centre(x))
    at: list[int] = []
    labelled, doubts = np.zeros(len(x), bool), np.ones(len(x))
    out = []
    for n in range(1, labels + 1):
        if order == "random":
            chosen = int(rng.choice(np.flatnonzero(~labelled)))
        elif order == "class by class" and n <= len(queue):
            chosen = queue[n - 1]
        else:
            covered = similar[labelled].max(axis=0, initial=0.0)
            chosen = label_next(similar, covered, labelled, doubts)[0]
        at.append(chosen)
        labelled[chosen] = True
        if (found := answers(recipe, x, y, at)) is None:
            continue
        p, classes = found
        doubts = doubt(p)
        expected = expected_accuracy(p, y[at].tolist(), labelled)
        assert expected is not None
        figure = np.nan if expected.accuracy is None else expected.accuracy
        truth = (classes[p.argmax(axis=1)] == y)[~labelled].mean()
        out.append((n, truth, figure, p[~labelled].max(axis=1).mean()))
    rows = np.array(out)
    return rows[rows[:, 0] >= FIRST, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_project_options(parser, ways=12, runs=10)
    parser.add_argument("--labels", type=int, default=60)
    add_record_option(parser)
    options = parser.parse_args()
    table = Table(
        *("labels", "runs", "first figure at label", "labels with a figure %", "error, points", "within 10 points %"),
        *("runs always within", "largest error", "largest error before"),
    )
    for order in ORDERS:
        runs = [
            follow(x, y, recipe, order, options.labels, seed) for seed, (x, y, recipe) in enumerate(projects(options))
        ]
        length = max(len(run) for run in runs)
        found = np.stack([np.vstack([np.full((length - len(run), 3), np.nan), run]) for run in runs])
        error, before = found[:, :, 1] - found[:, :, 0], np.abs(found[:, :, 2] - found[:, :, 0])
        shown = ~np.isnan(error)
        wrong = np.abs(np.nan_to_num(error)) > TOLERANCE
        first = [int(np.argmax(one)) + FIRST + options.labels - FIRST + 1 - length for one in shown if one.any()]
        values = 100 * error[shown]
        table.add(
            order,
            len(runs),
            f"{np.median(first):.0f}" if first else "none",
            f"{100 * shown.mean():.0f}",
            f"{values.mean():+.1f} ± {values.std():.1f}" if len(values) else "–",
            f"{100 * (1 - wrong[shown].mean()):.0f}" if len(values) else "–",
            f"{int((~wrong).all(axis=1).sum())} of {len(runs)}",
            f"{np.abs(values).max():.0f}" if len(values) else "–",
            f"{100 * np.nanmax(before):.0f}",
        )
    table.keep(options.record)


if __name__ == "__main__":
    main()
