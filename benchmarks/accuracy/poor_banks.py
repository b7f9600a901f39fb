"""What a poor bank costs: gdc beside `bankless`, the classifier without base classes, on the same tasks.

    python benchmarks/accuracy/poor_banks.py FEATURES [MORE_FEATURES…] [--cells 5x1,20x1] [--tasks 300] [--split novel]

The base classes of each set are replaced by few of them, by the same rows with shuffled labels, by those of another set
of the same extractor (where FEATURES has one), and by made-up classes. `trust` is the mean say of the base classes.
A bank that does not help must not cost more than 0.3 points.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from common import QUERIES, Points, Table, add_record_option, difference, feature_folders, parse_cells
from fewcal.methods.hierarchical import HierarchicalGDC

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.episodes import sample_episodes
from fewcal.errors import FewcalWarning
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import TaskBatch, make_method

FEW = (5, 20, 40)
MADE_UP_CLASSES, MADE_UP_ROWS = 64, 30
# Extractors that are not trained on the base classes of a set: another set's classes are in the same space.
EXTRACTORS = ("minilm", "wordllama", "efficientnet")
_TRUST_TASKS = 100


def few_classes(base: FeatureSplit, count: int, seed: int = 0) -> FeatureSplit:
    """`count` of the base classes, drawn at random."""
    labels = base.require_labels()
    kept = np.sort(np.random.default_rng(seed).permutation(len(base.classes))[:count])
    rows = np.isin(labels, kept)
    return FeatureSplit.from_arrays(
        base.float32()[rows], np.searchsorted(kept, labels[rows]), [base.classes[c] for c in kept]
    )


def shuffled_labels(base: FeatureSplit, seed: int = 0) -> FeatureSplit:
    """The same rows, labels that mean nothing."""
    labels = np.random.default_rng(seed).permutation(base.require_labels())
    return FeatureSplit.from_arrays(base.float32(), labels, list(base.classes))


def made_up(base: FeatureSplit, seed: int = 0) -> FeatureSplit:
    """Classes of normal noise with the means and variances of the features, half of the variance between classes."""
    rng, x = np.random.default_rng(seed), base.float32()
    centres = rng.standard_normal((MADE_UP_CLASSES, x.shape[1])).repeat(MADE_UP_ROWS, axis=0)
    noise = (centres + rng.standard_normal(centres.shape)) / np.sqrt(2)
    rows = x.mean(axis=0) + x.std(axis=0) * noise
    if x.min() >= 0:
        rows = rows.clip(0)
    labels = np.arange(MADE_UP_CLASSES).repeat(MADE_UP_ROWS)
    return FeatureSplit.from_arrays(rows.astype(np.float32), labels, [f"made up {i}" for i in range(MADE_UP_CLASSES)])


def relative(folder: Path, folders: list[Path]) -> Path | None:
    """Another set of the same extractor among `folders`."""
    name = folder.name.split("-")[1]
    others = [f for f in folders if f.name.split("-")[1] == name and f.name.split("-")[0] != folder.name.split("-")[0]]
    return others[0] if others and name in EXTRACTORS else None


def banks(features: FeatureSet, other: Path | None) -> Iterator[tuple[str, FeatureSplit]]:
    """Base classes by a few words on them, the full set first."""
    base = features.split("base")
    yield f"all {len(base.classes)}", base
    for count in FEW:
        if count < len(base.classes):
            yield f"{count} classes", few_classes(base, count)
    yield "shuffled labels", shuffled_labels(base)
    if other is not None:
        yield f"of {other.name}", FeatureSet.load(other).split("base")
    yield "made up", made_up(base)


def mean_trust(base: FeatureSplit, split: FeatureSplit, protocol: Protocol) -> float:
    """The mean say of the base classes over the first tasks; 0 where the bank is not used."""
    bank = BaseBank().fit(base.float32(), base.require_labels())
    method = make_method("gdc").prepare(bank)
    if not isinstance(method, HierarchicalGDC) or method.unused is not None:
        return 0.0
    tasks = range(min(protocol.tasks, _TRUST_TASKS))
    drawn = sample_episodes(split.require_labels(), protocol.spec, tasks, split.classes)
    rows = method.row_map(torch.from_numpy(split.float32()[drawn.support.ravel()]))
    labels = torch.arange(protocol.way).repeat_interleave(protocol.shot).expand(len(tasks), -1)
    batch = TaskBatch(rows.reshape(*labels.shape, -1), labels, protocol.way, TaskRandom(protocol.seed, tasks))
    return float(method.trust(batch).share.mean())


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
    warnings.simplefilter("ignore", FewcalWarning)  # that a bank is not used is what the table is about
    print(f"{options.split} tasks, seed {options.seed}; accuracy %, points with their 95% half-width\n")
    table = Table("features", "cell", "tasks", "bank", "bankless", "gdc − bankless", "ECE of both", "trust")
    found: list[tuple[Points, str]] = []
    folders = feature_folders(*options.features)
    for folder in folders:
        features = FeatureSet.load(folder)
        split = features.split(options.split)
        for cell in (c for c in parse_cells(options.cells) if c.fits(split)):
            protocol = Protocol(cell.way, cell.shot, QUERIES, cell.tasks(options.tasks), options.seed)
            for words, base in banks(features, relative(folder, folders)):
                changed = FeatureSet(base=base, novel=split)
                results = evaluate(["bankless", "gdc"], changed, protocol, options.device)
                gap = difference(results.accuracy("gdc"), results.accuracy("bankless"))
                found.append((gap, f"{folder.name} {cell}, {words}"))
                errors = " / ".join(f"{results.bins[m].error():.3f}" for m in ("bankless", "gdc"))
                plain = f"{100 * results.accuracy('bankless').mean():.2f}"
                trust = f"{mean_trust(base, split, protocol):.2f}"
                table.add(folder.name, cell, protocol.tasks, words, plain, gap, errors, trust)
    if not found:
        raise SystemExit("no cell fits: too few classes or rows")
    table.keep(options.record)
    worst = min(found, key=lambda f: f[0].mean)
    print(f"\nworst difference to bankless: {worst[0]} ({worst[1]})")


if __name__ == "__main__":
    main()
