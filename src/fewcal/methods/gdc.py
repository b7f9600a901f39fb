"""GDC: generalized distribution calibration.

Kumar, Zaidi. GDC: generalized distribution calibration for few-shot learning. arXiv:2204.05230, 2022.
The paper's algorithm 1, stage by stage; every choice it leaves open is a field of `GDCParams`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields

import numpy as np
import torch

from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, Calibrator, scatter_dense
from fewcal.covariance import CalibratedCovariance, ShrunkCovariance, shares, shrink_covariance
from fewcal.heads.calibrated import Calibrated, points_each, sampled_bytes
from fewcal.heads.linear import class_means
from fewcal.methods.base import Contributions, Head, Method, TaskBatch, require_raw, typical_distance
from fewcal.methods.registry import register_method
from fewcal.params import GDCParams
from fewcal.presets import get_preset

_CALIBRATOR_FIELDS = tuple(f.name for f in fields(Calibrator) if f.name not in ("bank", "equal"))
# Methods that differ in other fields alone share calibration and covariance.
_CALIBRATION_FIELDS = tuple(f.name for f in fields(GDCParams) if f.name not in ("n", "n_per", "head", "C"))


@register_method
class GDC(Method):
    """GDC with any `GDCParams`.

    With `cap_k` a k larger than the bank is brought down to its number of classes: right for a preset, which knows
    nothing of the bank, and wrong for a k that a person asked for.
    """

    name = "gdc"
    needs_bank = True

    def __init__(self, params: GDCParams, cap_k: bool = False) -> None:
        self.params = params
        self.cap_k = cap_k

    @classmethod
    def make(cls, preset: object, settings: Mapping[str, JSON]) -> Method:
        """GDC with a preset (a name, a file or `GDCParams`; None for `paper`) and `settings` on top of it."""
        params = preset if isinstance(preset, GDCParams) else get_preset("paper" if preset is None else str(preset))
        return cls(params.with_changes(**settings), cap_k="k" not in settings)

    @property
    def settings(self) -> dict[str, JSON]:
        return self.params.in_effect()

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        if self.cap_k:
            self.params = self.params.with_changes(k=min(self.params.k, len(bank)))
        p = self.params
        # Rows in the new space are for class covariances; without transform_base only the transform is taken from it.
        seen = bank.transformed(**p.space, moments=p.cov == "pooled" or not p.transform_base)
        if not p.transform_base:
            require_raw(bank, "transform_base=False")
        self.bank = seen if p.transform_base else bank
        self.calibrator = Calibrator(self.bank, **{f: getattr(p, f) for f in _CALIBRATOR_FIELDS})
        self.set_space(seen.transform, bank)
        # Methods with equal keys have the same calibration, and share it. A bank gives out a space as one object.
        self._key = (id(self.bank), *(getattr(p, f) for f in _CALIBRATION_FIELDS))
        return self

    @property
    def sampling_key(self) -> Hashable | None:
        return (self._key, self.params.n, self.params.n_per) if self.params.trainer.samples else None

    # ---- the stages -------------------------------------------------------------------------------------------------

    def prepare_batches(self, tasks: int, ways: int, shots: int) -> None:
        p, bank = self.params, self.bank
        covariance = CalibratedCovariance.of_batch(bank, p.cov, (tasks, ways * shots, p.k), p.common_size)
        if covariance is None:
            return
        with torch.no_grad():
            shrunk = self._shrink(covariance)
            if p.trainer.samples:
                each = int(points_each(np.array(shots), p.n, p.n_per))
                shrunk.prepare_sampling(bank.means[:1].expand(tasks, ways * shots, -1), each)
            elif p.head == "closed_form":
                bank.pooled_eigen()

    def calibration(self, batch: TaskBatch) -> Calibration:
        """Neighbours, weights and calibrated means of the support points (eq. 4-8)."""
        key = ("calibration", self._key)
        return batch.shared.get(key, lambda: self.calibrator.calibrate(batch.support, self.params.strength))

    def shrunk(self, found: Calibration) -> ShrunkCovariance:
        """Σ'ₛ of each support point (eq. 5, 9)."""
        p = self.params
        return self._shrink(
            CalibratedCovariance(self.bank, p.cov, found.index, shares(found, p.cov_weights), p.common_size)
        )

    def _shrink(self, covariance: CalibratedCovariance) -> ShrunkCovariance:
        p = self.params
        return shrink_covariance(
            covariance, p.alpha1, p.alpha2_ratio, off_diagonal=p.off_diagonal, psd=p.psd, constant=p.constant
        )

    def calibrated(self, batch: TaskBatch) -> Calibrated:
        """The batch after calibration, for a head to train on."""
        p = self.params
        mean = self.calibration(batch).mean
        shrink = lambda: self.shrunk(self.calibration(batch))  # noqa: E731
        return Calibrated(batch, self.bank, mean, shrink, p.n, p.n_per, self._key)

    def fit(self, batch: TaskBatch) -> Head:
        with torch.no_grad():
            return self.params.trainer.train(self.calibrated(batch))

    def contributions(self, batch: TaskBatch) -> Contributions:
        with torch.no_grad():
            found, n, means = self.calibration(batch), batch.n_classes, self.bank.means
            shares = class_means(scatter_dense(found.index, found.normalised, len(means)), batch.labels, n)
            before, after = (class_means(x, batch.labels, n) for x in (batch.support, found.mean))
            moved = (after - before).norm(dim=-1) / typical_distance(means)
            return Contributions(self.bank.classes, shares, before, after, moved, 1.0, before.new_zeros(len(before)))

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        p = self.params
        if not p.trainer.samples:
            size = len(self.bank) * int(self.bank.counts.max())
            return 4 * (2 * n_classes * size + 4 * n_support * dim)
        rows = dim if p.cov == "pooled" else int(self.bank.counts.min())
        rows *= p.k if p.cov == "independent" else 1
        rows = 0 if self.bank.device.type == "cuda" else rows  # there factors are made for some tasks at a time
        return sampled_bytes(n_support, n_classes, dim, rows, p.n, p.n_per)
