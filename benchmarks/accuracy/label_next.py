"""How many labels *label this next* of the studio saves: accuracy against the number of labels, three ways to choose.

    fewcal extract IMAGES --out cub-efficientnet
    python benchmarks/accuracy/label_next.py cub-efficientnet [--split novel] [--runs 30] [--plot label_next.png]

Each run draws ten classes. Half of their items are a pool without labels, the other half is the test. Labels are bought
one by one, from none at all, and the studio's classifier is fitted anew after every one; a class without a label yet is
always answered wrongly. Ways to choose: `random`; `uncertain`, the largest doubt (at random before there are two
classes); `next`, what the studio proposes. All three see the same runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import Table, add_record_option

from fewcal.apply.labelling import centre, doubt, label_next, similarities
from fewcal.apply.studio.answers import Recipe
from fewcal.features import FeatureSet

# Where a table shows the curve; the first label count that reaches an accuracy is taken from the whole of it.
SHOWN = (5, 10, 15, 20, 30, 40, 50)
Choice = Callable[[np.ndarray, np.ndarray, np.random.Generator], int]


def choose_random(labelled: np.ndarray, doubts: np.ndarray, rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(~labelled)))


def choose_uncertain(labelled: np.ndarray, doubts: np.ndarray, rng: np.random.Generator) -> int:
    free = np.flatnonzero(~labelled)
    return int(rng.choice(free[doubts[free] == doubts[free].max()]))


def curve(
    choose: Choice,
    pool: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    labels: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Accuracy on the test after 1, 2, …, `labels` labels."""
    x, y = pool
    labelled, doubts = np.zeros(len(x), bool), np.ones(len(x))
    out = []
    for _ in range(labels):
        labelled[choose(labelled, doubts, rng)] = True
        if len(np.unique(y[labelled])) < 2:
            out.append(float((test[1] == y[labelled][0]).mean()))
            continue
        classifier = Recipe().make().fit(x[labelled], y[labelled])
        doubts = doubt(classifier.predict_proba(x))
        answers = classifier.classes_[classifier.predict_proba(test[0]).argmax(axis=1)]
        out.append(float((answers == test[1]).mean()))
    return np.array(out)


def runs(folder: Path, split: str, count: int, ways: int, labels: int) -> dict[str, np.ndarray]:
    """Curves `(runs, labels)` of each way to choose."""
    data = FeatureSet.load(folder).split(split)
    x, y = data.float32(), data.require_labels()
    out: dict[str, list[np.ndarray]] = {"random": [], "uncertain": [], "next": []}
    for seed in range(count):
        rng = np.random.default_rng(seed)
        classes = rng.choice(np.unique(y), ways, replace=False)
        rows = rng.permutation(np.flatnonzero(np.isin(y, classes)))
        pool, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        similar = similarities(centre(x[pool]))

        def choose_next(labelled: np.ndarray, doubts: np.ndarray, _: object, similar: np.ndarray = similar) -> int:
            return label_next(similar, similar[labelled].max(axis=0, initial=0.0), labelled, doubts)[0]

        ways_to_choose: dict[str, Choice] = {
            "random": choose_random,
            "uncertain": choose_uncertain,
            "next": choose_next,
        }
        for name, choose in ways_to_choose.items():
            sets = (x[pool], y[pool]), (x[test], y[test])
            out[name].append(curve(choose, *sets, labels, np.random.default_rng([seed, 1])))
        print(f"run {seed + 1} of {count}", end="\r", flush=True)
    return {name: np.stack(curves) for name, curves in out.items()}


def half_width(values: np.ndarray) -> float:
    """Half of the 95% interval of a mean over runs."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def tables(found: dict[str, np.ndarray], record: str | None) -> None:
    """Accuracy after some labels; the first number of labels that reaches an accuracy, which is recorded."""
    table = Table("labels", "random", "uncertain", "next", "next − random", "next − uncertain")
    for n in (n for n in SHOWN if n <= found["next"].shape[1]):
        at = {name: 100 * curves[:, n - 1] for name, curves in found.items()}
        gains = [at["next"] - at[other] for other in ("random", "uncertain")]
        table.add(
            n,
            *(f"{v.mean():.1f} ± {half_width(v):.1f}" for v in at.values()),
            *(f"{d.mean():+.1f} ± {half_width(d):.1f}" for d in gains),
        )
    mean = {name: curves.mean(axis=0) for name, curves in found.items()}
    print()
    table = Table("accuracy %", "labels, random", "labels, uncertain", "labels, next")
    for goal in (50, 60, 70, 75, 80, 85):
        first = {name: np.flatnonzero(100 * curve >= goal) for name, curve in mean.items()}
        if any(len(f) for f in first.values()):
            table.add(goal, *(f[0] + 1 if len(f) else f"> {len(mean[n])}" for n, f in first.items()))
    table.keep(record)


def plot(found: dict[str, np.ndarray], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, curves), colour in zip(found.items(), ("#525b65", "#a33b00", "#0a58a8"), strict=True):
        n, mean = np.arange(1, curves.shape[1] + 1), 100 * curves.mean(axis=0)
        width = 196 * curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
        axes.plot(n, mean, color=colour, label={"next": "label this next"}.get(name, name))
        axes.fill_between(n, mean - width, mean + width, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="labels", ylabel="accuracy %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--ways", type=int, default=10)
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--plot", type=Path)
    add_record_option(parser)
    options = parser.parse_args()
    found = runs(options.features, options.split, options.runs, options.ways, options.labels)
    print(f"{options.features.name}, {options.split}: {options.runs} runs, {options.ways} classes, accuracy %\n")
    tables(found, options.record)
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
