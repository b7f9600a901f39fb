"""What the speed benchmarks share: the features, the bank, the clock, the memory, recorded tables."""

from __future__ import annotations

import io
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fewcal import BaseBank, FeatureSet
from fewcal.features.synthetic import make_features

sys.path.insert(0, str(Path(__file__).parent.parent))
from record import Table, add_record_option  # noqa: F401


def features_or_synthetic(folder: str | None) -> FeatureSet:
    """A feature folder, or without one synthetic features: D=640, 64 × 600 base rows."""
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


def photographs(count: int) -> list[bytes]:
    """Pictures of 500 × 375 pixels with structure at all scales, about 60 kB each, as photographs have it."""
    from PIL import Image

    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        picture = np.zeros((375, 500, 3))
        for cells in (4, 16, 64):
            coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
            picture += np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)) / 3
        file = io.BytesIO()
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        out.append(file.getvalue())
    return out
