"""A feature set small enough to evaluate in milliseconds, and methods as test doubles."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal.features import FeatureSet, FeatureSplit
from fewcal.heads.base import TaskBatch
from fewcal.heads.linear import class_means, membership
from fewcal.methods.ncm import NearestCentroid


def split(prefix: str, classes: int, rows: int, seed: int, dim: int = 12) -> FeatureSplit:
    """Overlapping clouds, so that no method is always right and a changed task or sample shows in the accuracy."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rows)
    x = rng.random((classes, dim))[labels] + 0.4 * rng.normal(size=(len(labels), dim))
    names = [f"{prefix}{i}" for i in range(classes)]
    return FeatureSplit.from_arrays(np.maximum(x, 0).astype(np.float32), labels, names)


def feature_set(dim: int = 12) -> FeatureSet:
    return FeatureSet(split("b", 8, 20, 0, dim), split("v", 6, 20, 1, dim), split("n", 7, 20, 2, dim))


def save_features(folder: Path, **splits: FeatureSplit) -> Path:
    """A folder with these splits, whatever is wrong between them."""
    for name, part in splits.items():
        part.save(folder / f"{name}.npz")
    return folder


class Slow(NearestCentroid):
    """Nearest centroid that takes its time, and notes each preparation in a file of its process."""

    name = "slow"

    def __init__(self, pause: float = 0.05, notes: str | None = None) -> None:
        self.pause, self.notes = pause, notes

    def prepare(self, bank: Any) -> Any:
        if self.notes is not None:
            with (Path(self.notes) / str(os.getpid())).open("a") as file:
                file.write("prepared\n")
        return super().prepare(bank)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.pause)
        return super().fit(*args, **kwargs)


class Together(NearestCentroid):
    """A transductive method: class means that the queries pull towards them, and a constant score for none of them."""

    name = "together"
    transductive = True
    probabilistic = True

    def fit_predict(self, batch: TaskBatch, query: torch.Tensor) -> torch.Tensor:
        member = membership(batch.labels, batch.n_classes, query.dtype)
        means = class_means(batch.support, batch.labels, batch.n_classes)
        weight = torch.cat([member, torch.softmax(-(torch.cdist(query, means) ** 2), dim=-1)], dim=1)
        means = (weight.mT @ torch.cat([batch.support, query], dim=1)) / weight.sum(dim=1)[..., None]
        scores = -(torch.cdist(query, means) ** 2)
        return torch.cat([scores, torch.full_like(scores[..., :1], -1.0)], dim=-1)


class Broken(NearestCentroid):
    """Fails on every batch, as a bug would."""

    name = "broken"

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug in a method")
