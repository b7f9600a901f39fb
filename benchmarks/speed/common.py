"""What the speed benchmarks share: the features, the bank, the clock, the memory."""

from __future__ import annotations

import resource
import time

import torch

from fewcal import BaseBank, FeatureSet
from fewcal.features.synthetic import make_features


def features_or_synthetic(folder: str | None) -> FeatureSet:
    """A feature folder, or without one the synthetic features of RESULTS.md: D=640, 64 × 600 base rows."""
    return FeatureSet.load(folder) if folder else make_features(rows=600, dim=640, spread=1.5)


def base_bank(features: FeatureSet, device: torch.device | str | None = None) -> BaseBank:
    """The bank of all base classes."""
    base = features.split("base")
    return BaseBank().fit(base.features, base.require_labels(), device=device)


def now(device: torch.device | str = "cpu") -> float:
    """Seconds, after all that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_gib() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
