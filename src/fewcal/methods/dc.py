"""DC: free lunch for few-shot learning, distribution calibration.

Yang, Liu, Xu. Free lunch for few-shot learning: distribution calibration. ICLR 2021. Follows the paper and its public
script: support and query are Tukey-transformed while base statistics stay raw; the k nearest base classes by plain
Euclidean distance; mean' = (x̃ + Σμ_i)/(k+1); covariance' = mean of their covariances + α on every entry; 750/K points
for each support point; logistic regression with C = 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.calibrate import calibrate
from fewcal.covariance import CalibratedCovariance, shares, shrink_covariance
from fewcal.errors import InputError
from fewcal.heads.lbfgs import lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.methods.base import Method, require_raw, space_key
from fewcal.methods.gdc import augment, sampled_bytes


class DC(Method):
    """Distribution calibration with k, α and β as in its paper."""

    name = "dc"
    needs_bank = True

    def __init__(self, k: int = 2, alpha: float = 0.21, beta: float = 0.5, n: int = 750, C: float = 1.0) -> None:
        if not n >= 1:
            raise InputError(f"n={n!r} must be at least 1; DC draws n points for each class")
        self.k, self.alpha, self.beta, self.n, self.C = k, alpha, beta, n, C

    @property
    def settings(self) -> dict[str, Any]:
        return {"k": self.k, "alpha": self.alpha, "beta": self.beta, "n": self.n, "C": self.C}

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        require_raw(bank, "DC")
        transform = bank.transformed(beta=self.beta, moments=True).transform
        assert transform is not None
        self.bank, self._transform, self._space = bank, transform, space_key(transform, bank)
        return self

    def fit(
        self,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        random: TaskRandom,
        shared: dict[Hashable, Any] | None = None,
    ) -> LinearHead:
        with torch.no_grad():
            x, y = self.augmented(support, labels, random)
            return lbfgs_head(x, y, n_classes, C=self.C, max_iter=1000)

    def augmented(self, support: Tensor, labels: Tensor, random: TaskRandom) -> tuple[Tensor, Tensor]:
        """Support ∪ samples: points `(T, M, D)` and labels `(T, M)`, the support first."""
        found = calibrate(support, self.bank, k=self.k, metric="euclidean", equal=True)
        covariance = CalibratedCovariance(self.bank, "independent", found.index, shares(found, "average"))
        shrunk = shrink_covariance(covariance, 0.0, 0.0, constant=self.alpha)
        return augment(support, labels, found.mean, shrunk, self.n, "class", random)

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        rows = self.k * int(self.bank.counts.max())
        return sampled_bytes(n_support, n_classes, dim, rows, self.n, "class")
