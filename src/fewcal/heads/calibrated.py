"""A batch of tasks after calibration, as heads are trained on it; parts are computed when they are used."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewcal.bank import BaseBank
from fewcal.covariance import ShrunkCovariance
from fewcal.heads.base import TaskBatch
from fewcal.heads.linear import class_sizes


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a head may learn from.

    Attributes
    ----------
    batch : TaskBatch
    bank : BaseBank
        In the space of the batch.
    mean : Tensor (T, S, D)
        The calibrated mean of each support point (eq. 5).
    shrink : callable
        Computes Σ'ₛ (eq. 9); ask for `covariance`, which does so once.
    n, n_per
        Points to draw for each support point, or for each class.
    key : hashable
        Equal for methods whose calibration is the same: they share what is computed.
    """

    batch: TaskBatch
    bank: BaseBank
    mean: Tensor
    shrink: Callable[[], ShrunkCovariance]
    n: int
    n_per: str
    key: Hashable

    @property
    def covariance(self) -> ShrunkCovariance:
        """Σ'ₛ of each support point (eq. 5, 9)."""
        return self.batch.shared.get(("covariance", self.key), self.shrink)

    def points(self) -> tuple[Tensor, Tensor]:
        """Support ∪ samples (eq. 10-11): points `(T, M, D)` and labels `(T, M)`, the support first.

        Heads that train on the same points get the same points.
        """
        key = ("points", self.key, self.n, self.n_per)
        return self.batch.shared.get(key, lambda: augment(self.batch, self.mean, self.covariance, self.n, self.n_per))


def sampled_bytes(n_support: int, n_classes: int, dim: int, factor_rows: int, n: int, n_per: str) -> int:
    """Memory of one task that draws samples: factors, points, and what the head needs beside them."""
    points = (n_support if n_per == "point" else n_classes) * n
    return 4 * dim * (n_support * factor_rows + 2 * points)


def points_per_support(labels: Tensor, n: int, n_per: str) -> np.ndarray:
    """How many points each support point contributes, `(T, S)`: n each, or n for each class shared among its shots.

    >>> points_per_support(torch.tensor([[0, 0, 1]]), 750, "class")
    array([[375, 375, 750]])
    """
    return points_each(class_sizes(labels).cpu().numpy(), n, n_per)


def points_each(shots: np.ndarray, n: int, n_per: str) -> np.ndarray:
    """The same for support points whose classes have so many, in an array of any shape.

    >>> points_each(np.array([1, 5]), 750, "class"), points_each(np.array([1, 5]), 750, "point")
    (array([750, 150]), array([750, 750]))
    """
    return np.full_like(shots, n) if n_per == "point" else np.maximum(n // shots, 1)


def augment(batch: TaskBatch, mean: Tensor, covariance: ShrunkCovariance, n: int, n_per: str) -> tuple[Tensor, Tensor]:
    """Support ∪ samples (eq. 10-11) for calibrated means `(T, S, D)`: points `(T, M, D)` and labels `(T, M)`.

    With unequal shots tasks are handled one by one; all tasks of a batch must then end with the same M.
    """
    support, labels = batch.support, batch.labels
    t, s, d = support.shape
    counts = points_per_support(labels, n, n_per)
    if (counts == counts[0, 0]).all():
        each = int(counts[0, 0])
        x = torch.empty(t, s + s * each, d, dtype=support.dtype, device=support.device)
        x[:, :s] = support
        covariance.sample(mean, each, batch.random, x[:, s:].view(t, s, each, d))
        return x, torch.cat([labels, labels.repeat_interleave(each, dim=1)], dim=1)
    if t > 1:
        raise ValueError("unequal shots are for one task at a time")
    gaussian, begin = covariance.gaussian(mean), s
    x = torch.empty(1, s + int(counts.sum()), d, dtype=support.dtype, device=support.device)
    x[:, :s] = support
    for i, each in enumerate(counts[0].tolist()):
        points = x[:, None, begin : begin + each]
        gaussian[:, i : i + 1].sample(each, batch.random, points)
        begin += each
    repeats = torch.from_numpy(counts[0]).to(labels.device)
    return x, torch.cat([labels, labels[0].repeat_interleave(repeats)[None]], dim=1)
