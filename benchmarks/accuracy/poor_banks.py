"""What a poor bank costs: hgdc beside `support-only`, the classifier without base classes, on the same tasks.

    python benchmarks/accuracy/poor_banks.py FEATURES [MORE_FEATURES…] [--cells 5x1,20x1] [--tasks 300] [--split novel]

The base classes of each set are replaced by few of them, by the same rows with shuffled labels, by those of another set
of the same extractor (where FEATURES has one), and by made-up classes. `weight` is that of the base classes in the
answers.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from common import Points, Table, add_record_option, average, difference, feature_folders, parse_cells, run_cells

from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import make_method
from fewcal.methods.hgdc import HGDC

FEW = (5, 20, 40)
MADE_UP_CLASSES, MADE_UP_ROWS = 64, 30
# Extractors that are not trained on the base classes of a set: another set's classes are in the same space.
EXTRACTORS = ("minilm", "wordllama", "efficientnet")


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


def base_weight(base: FeatureSplit) -> float:
    """ω, the weight of the base classes in the answers; 0 where the bank is not used."""
    return HGDC().prepare(BaseBank().fit(base.float32(), base.require_labels())).prior.weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--cells", default="5x1,5x5,20x1")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--split", default="novel")
    parser.add_argument("--seed", type=int, default=0)
    add_record_option(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewcalWarning)  # that a bank is not used is what the table is about
    torch.set_num_threads(1)
    print(f"{options.split} tasks, seed {options.seed}; accuracy %, points with their 95% half-width\n")
    table = Table("features", "bank", "weight", "cell", "tasks", "support-only", "hgdc − support-only", "ECE of both")
    found: dict[str, list[tuple[Points, str]]] = {}
    folders = feature_folders(*options.features)
    for folder in folders:
        features = FeatureSet.load(folder)
        split = features.split(options.split)
        for words, base in banks(features, relative(folder, folders)):
            changed = FeatureSet(base=base, **{options.split: split})
            methods = {name: make_method(name) for name in ("support-only", "hgdc")}
            weight = f"{base_weight(base):.2f}"
            cells = parse_cells(options.cells)
            for cell, out in run_cells(changed, cells, methods, options.tasks, options.seed, options.split):
                plain, ours = out["support-only"], out["hgdc"]
                gap = difference(ours.accuracy, plain.accuracy)
                kind = words.split()[0] if words.startswith(("all", "of")) else words
                found.setdefault(kind, []).append((gap, f"{folder.name} {cell}"))
                table.add(
                    folder.name,
                    words,
                    weight,
                    cell,
                    len(ours.accuracy),
                    f"{100 * plain.accuracy.mean():.2f}",
                    gap,
                    f"{plain.ece:.3f} / {ours.ece:.3f}",
                )
    if not found:
        raise SystemExit("no cell fits: too few classes or rows")
    lines = []
    for kind, gaps in found.items():
        worst, where = min(gaps, key=lambda g: g[0].mean)
        lines.append(f"- {kind}: {average(g for g, _ in gaps)} in {len(gaps)} cells, worst {worst} ({where}).")
    table.keep(options.record, notes="\n".join(lines))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
