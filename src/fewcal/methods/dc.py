"""DC: free lunch for few-shot learning, distribution calibration.

Yang, Liu, Xu. Free lunch for few-shot learning: distribution calibration. ICLR 2021. Follows the paper and its public
script: support and query are Tukey-transformed while base statistics stay raw; the k nearest base classes by plain
Euclidean distance; mean' = (x̃ + Σμ_i)/(k+1); covariance' = mean of their covariances + α on every entry; 750/K points
for each support point; logistic regression with C = 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.parameters import Parameter, parameters_of
from fewcal._utils.threads import single_thread
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibrator
from fewcal.covariance import CalibratedCovariance, ShrunkCovariance, shares, shrink_covariance
from fewcal.covariance.independent import TALL
from fewcal.heads.calibrated import Calibrated, points_each, sampled_bytes
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.methods.base import Method, TaskBatch, require_raw
from fewcal.methods.registry import register_method
from fewcal.params import GDCParams

# What the penalty adds to the curvature of the loss, in units of the mean variance of the points: about right at one
# shot and at five, where a few points in a hundred are still in doubt at the end.
_RIDGE = 1.0
# Points for each feature from which on iterations are so dear that it pays.
_POINTS_OF_METRIC = 2
_GDC = parameters_of(GDCParams)  # what both have means the same


@register_method
class DC(Method):
    """Distribution calibration with k, α and β as in its paper."""

    name = "dc"
    needs_bank = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        "k": _GDC["k"],
        "alpha": _GDC["constant"],
        "beta": replace(_GDC["beta"], also=()),
        "n": _GDC["n"],
        "C": _GDC["C"],
    }
    k: int
    alpha: float
    beta: float
    n: int
    C: float

    def __init__(self, k: int = 2, alpha: float = 0.21, beta: float = 0.5, n: int = 750, C: float = 1.0) -> None:
        self.set_parameters(k=k, alpha=alpha, beta=beta, n=n, C=C)

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        require_raw(bank, "DC")
        self.bank = bank
        self.set_space(bank.transformed(beta=self.beta, moments=True).transform, bank)
        return self

    def fit(self, batch: TaskBatch) -> LinearHead:
        with torch.no_grad():
            x, labels = self.calibrated(batch).points()
            metric = self._metric() if self._needs_metric(x.shape[1]) else None
            return lbfgs_head(x, labels, batch.n_classes, C=self.C, max_iter=1000, memory=20, metric=metric)

    @property
    def sampling_key(self) -> Hashable:
        return "dc", *self.settings.values()

    def prepare_batches(self, tasks: int, ways: int, shots: int) -> None:
        covariance = CalibratedCovariance.of_batch(self.bank, "independent", (tasks, ways * shots, self.k))
        if covariance is None:
            return
        with torch.no_grad():
            each = int(points_each(np.array(shots), self.n, "class"))
            means = self.bank.means[:1].expand(tasks, ways * shots, -1)
            shrink_covariance(covariance, 0.0, 0.0, constant=self.alpha).prepare_sampling(means, each)
            if self._needs_metric(ways * shots * (1 + each)):
                self._metric()

    def _needs_metric(self, points: int) -> bool:
        return points >= _POINTS_OF_METRIC * self.bank.dim

    @single_thread()
    def _metric(self) -> Tensor:
        """About the inverse curvature of the loss, `(D, D)`: without noise of equal variance, points lie along axes."""

        def make() -> Tensor:
            covariance = self.bank.pooled_covariance()
            ridge = _RIDGE * covariance.diagonal().mean().clamp(min=1e-30)
            eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            return ridge * torch.linalg.inv(covariance + self.alpha + ridge * eye)

        return self.bank.memo.get(("metric of points", self.alpha), make)

    def calibrated(self, batch: TaskBatch) -> Calibrated:
        """The batch after calibration."""
        found = Calibrator(self.bank, self.k, metric="euclidean", equal=True).calibrate(batch.support)

        def shrink() -> ShrunkCovariance:
            covariance = CalibratedCovariance(self.bank, "independent", found.index, shares(found, "average"))
            return shrink_covariance(covariance, 0.0, 0.0, constant=self.alpha)

        key = (self.name, self.space, *self.settings.values())
        return Calibrated(batch, self.bank, found.mean, shrink, self.n, "class", key)

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        stacked = self.k * int(self.bank.counts.max()) <= TALL * dim  # drawn class by class, without copies
        rows = 0 if stacked else dim
        return sampled_bytes(n_support, n_classes, dim, rows, self.n, "class")
