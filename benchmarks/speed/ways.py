"""Many ways: seconds and memory of 100-way and 1000-way problems, through `evaluate` and through the classifiers.

python benchmarks/speed/ways.py [--device cuda] [--ways 5 100 1000]
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch
from common import base_bank, peak_gib

from fewcal import BaseBank, FewShotClassifier, GDCClassifier
from fewcal.estimators.base import TaskClassifier
from fewcal.evaluation import Protocol, evaluate
from fewcal.features import FeatureSet
from fewcal.features.synthetic import make_features
from fewcal.methods import Method, make_method

KINDS = {
    "HGDC": None,
    "closed form": {"head": "closed_form"},
    # 20 points a class: sampled heads are for few classes, and 1000 ways still give them 20,000 points to fit.
    "sampled + L-BFGS, n=20": {"head": "lbfgs", "n": 20, "n_per": "class", "l2": True},
}


def kind(settings: dict | None) -> Method:
    return make_method("hgdc") if settings is None else make_method("gdc", "paper", **settings)


def classifier(bank: BaseBank, device: str, settings: dict | None) -> TaskClassifier:
    if settings is None:
        return FewShotClassifier(bank, device=device)
    return GDCClassifier(bank, "paper", device=device, **settings)


def classifier_seconds(
    features: FeatureSet, bank: BaseBank, way: int, shot: int, settings: dict | None, device: str
) -> float:
    """fit + predict of 15 queries a class by the scikit-learn estimator, after a warm-up."""
    novel = features.split("novel")
    labels = novel.require_labels()
    rows = np.stack([np.flatnonzero(labels == c)[: shot + 15] for c in range(way)])
    support, query = rows[:, :shot].ravel(), rows[:, shot:].ravel()
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        model = classifier(bank, device, settings).fit(novel.features[support], labels[support])
        model.predict(novel.features[query])
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", type=int, nargs="+", default=[5, 100, 1000])
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    most = max(options.ways)
    features = make_features(base=64, val=0, novel=most, rows=40, dim=options.dim, spread=1.0)
    bank = base_bank(features)
    print(f"D={options.dim}, 64 × 40 base rows, {options.device}, {torch.get_num_threads()} threads")
    print(
        f"{'':26s} {'way':>5s} {'shot':>4s} {'tasks':>5s} {'s a task':>9s} {'accuracy':>8s} {'fit+predict':>11s} peak"
    )
    for name, settings in KINDS.items():
        for way in options.ways:
            for shot in (1, 5):
                tasks = max(2, min(200, 400 // way))
                protocol = Protocol(way=way, shot=shot, query=15, tasks=tasks)
                # Twice, as the classifier: the first time a device takes memory and loads what it computes with.
                runs = [evaluate({name: kind(settings)}, features, protocol, options.device) for _ in range(2)]
                seconds, results = min(run.seconds[name] for run in runs), runs[0]
                alone = classifier_seconds(features, bank, way, shot, settings, options.device)
                print(
                    f"{name:26s} {way:5d} {shot:4d} {tasks:5d} {seconds / tasks:9.4f} "
                    f"{100 * results.accuracy(name).mean():7.2f}% {alone:10.3f}s {peak_gib():.2f} GiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
