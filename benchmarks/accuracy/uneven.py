"""Classes with different numbers of examples and no bank: python benchmarks/accuracy/uneven.py FEATURES [--split val]

Tasks of five classes with 15 queries each; accuracy of `FewShotClassifier()` and of the nearest class mean on rows of
unit length, and the share of answers that go to the class with most examples (0.2 would be even).
"""

from __future__ import annotations

import argparse

import numpy as np
from common import Table, add_record_option

from fewcal import FeatureSet, FewShotClassifier

SHOTS = ((1, 1, 1, 1, 1), (1, 1, 5, 1, 1), (2, 2, 3, 1, 2), (1, 2, 3, 4, 5), (3, 3, 3, 3, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--split", default="val")
    parser.add_argument("--tasks", type=int, default=100)
    add_record_option(parser)
    options = parser.parse_args()
    split = FeatureSet.load(options.features, [options.split]).split(options.split)
    x, y = split.float32(), split.require_labels()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    print(f"{options.features}, {options.split}, {options.tasks} tasks")
    table = Table("examples of the classes", "accuracy", "share of the largest class", "nearest mean")
    for shots in SHOTS:
        rng, found = np.random.default_rng(0), []
        for _ in range(options.tasks):
            classes = rng.choice(np.unique(y), 5, replace=False)
            rows = [rng.permutation(np.flatnonzero(y == c))[: k + 15] for c, k in zip(classes, shots, strict=True)]
            few = np.concatenate([r[:k] for r, k in zip(rows, shots, strict=True)])
            queries = np.concatenate([r[k:] for r, k in zip(rows, shots, strict=True)])
            answers = FewShotClassifier().fit(x[few], y[few]).predict(x[queries])
            means = np.stack([unit[few][y[few] == c].mean(axis=0) for c in classes])
            distance = ((unit[queries][:, None] - means) ** 2).sum(axis=2)
            nearest = classes[distance.argmin(axis=1)]
            most = classes[int(np.argmax(shots))]
            found.append([(answers == y[queries]).mean(), (answers == most).mean(), (nearest == y[queries]).mean()])
        ours, share, plain = np.mean(found, axis=0)
        table.add(", ".join(map(str, shots)), f"{ours:.3f}", f"{share:.2f}", f"{plain:.3f}")
    table.keep(options.record)


if __name__ == "__main__":
    main()
