"""GDC: generalized distribution calibration.

Kumar, Zaidi. GDC: generalized distribution calibration for few-shot learning. arXiv:2204.05230, 2022.
The paper's algorithm 1, stage by stage; every choice it leaves open is a field of `GDCParams`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.calibrate import Calibration, Calibrator, uses_gather
from fewcal.covariance import CalibratedCovariance, ShrunkCovariance, shares, shrink_covariance
from fewcal.domain_match import (
    Trust,
    domain_match,
    domain_match_of,
    nearest_base_cosine,
    task_trust,
    unwhitening,
    whitening_shrinkage,
)
from fewcal.heads.calibrated import Calibrated, points_each, sampled_bytes
from fewcal.heads.composite import QueryCalibratedHead, with_fallback
from fewcal.heads.linear import class_sizes
from fewcal.methods.base import Head, Method, TaskBatch, require_raw
from fewcal.methods.hierarchical import HierarchicalGDC
from fewcal.methods.registry import register_method
from fewcal.params import GDCParams
from fewcal.presets import get_preset, with_settings

# Rows looked at together; fixed, so that what is precomputed of a row depends on the split alone.
_PRECOMPUTED_ROWS = 2048
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
    # A bank that it is given is always used, and all of it.
    unused: str | None = None
    partly_used: str | None = None

    def __init__(self, params: GDCParams, cap_k: bool = False) -> None:
        self.params = params
        self.cap_k = cap_k

    def say_at(self, shots: float) -> float:
        """The say of the base classes, were the task in their domain."""
        return 1.0

    @classmethod
    def make(cls, preset: object, settings: Mapping[str, JSON]) -> Method:
        """GDC with a preset (a name, a file or `GDCParams`; None for the default) and `settings` on top of it."""
        params = preset if isinstance(preset, GDCParams) else get_preset("default" if preset is None else str(preset))
        return gdc_method(with_settings(params, settings), cap_k="k" not in settings)

    @property
    def settings(self) -> dict[str, JSON]:
        return self.params.as_dict()

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        bank.check()
        if self.cap_k:
            self.params = self.params.with_changes(k=min(self.params.k, len(bank)))
        self.params = p = self.params.for_bank(bank)
        space = p.space
        # Rows in the new space are for class covariances; without transform_base only the transform is taken from it.
        space["moments"] = p.cov == "pooled" or not p.transform_base
        seen = bank.transformed(**space)
        whiten = whitening_shrinkage(seen, p.k) if p.whiten == "auto" else p.whiten
        if whiten is not False:
            seen = bank.transformed(**space, whiten=float(whiten))
        if not p.transform_base:
            require_raw(bank, "transform_base=False")
        self.bank = seen if p.transform_base else bank
        self.calibrator = Calibrator(self.bank, **{f: getattr(p, f) for f in _CALIBRATOR_FIELDS})
        self.set_space(seen.transform, bank, whiten)
        # Methods with equal keys have the same calibration, and share it. A bank gives out a space as one object.
        self._key = (id(self.bank), *(getattr(p, f) for f in _CALIBRATION_FIELDS))
        return self

    @property
    def sampling_key(self) -> Hashable | None:
        return (self._key, self.params.n, self.params.n_per) if self.params.trainer.samples else None

    def in_bank(self, x: Tensor) -> Tensor:
        """Rows in the space of the bank, which is that of the method."""
        return x

    # ---- how much the base classes may say --------------------------------------------------------------------------

    def trust(self, batch: TaskBatch) -> Trust:
        """How far the base classes are trusted in each task."""
        return batch.shared.get(("trust", self._key), lambda: self._trust(batch))

    def _trust(self, batch: TaskBatch) -> Trust:
        p, bank = self.params, self.bank
        if p.trust != "auto":
            return Trust(batch.support.new_full((len(batch.support),), float(p.trust)), None)
        if batch.precomputed is None:
            match = domain_match(batch.support, bank)
        else:
            match = domain_match_of(batch.precomputed[..., -1], bank)
        return Trust(task_trust(batch.support, bank, p.k, match), None if p.trainer.samples else match <= 0)

    def _strength(self, batch: TaskBatch) -> Tensor:
        """How much the weights of each support point are multiplied by, `(T, S)`."""
        p = self.params
        strength = p.strength * self.trust(batch).share[:, None].expand(batch.support.shape[:2])
        if p.shot_decay:
            strength = strength / class_sizes(batch.labels).to(batch.support.dtype) ** p.shot_decay
        return strength

    # ---- the stages -------------------------------------------------------------------------------------------------

    def precompute(self, z: Tensor) -> Tensor | None:
        """w of every row and base class (eq. 8), 0 for all but its k neighbours, and its cosine to them: `(R, C+1)`.

        Only for the discriminant in a whitened space, which needs no more than these.
        """
        bank = self.bank
        if self.params.trainer.samples or not bank.is_whitened or uses_gather(bank, self.params.k):
            return None
        with torch.no_grad():
            parts = [
                torch.cat([self.calibrator.dense_weights(part), nearest_base_cosine(part, bank)[:, None]], dim=1)
                for part in z.split(_PRECOMPUTED_ROWS)
            ]
        return torch.cat(parts)

    def prepare_batches(self, tasks: int, ways: int, shots: int) -> None:
        p, bank = self.params, self.bank
        if bank.is_whitened:
            return
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
        return batch.shared.get(key, lambda: self.calibrator.calibrate(batch.support, self._strength(batch)))

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
        if batch.precomputed is None:
            mean = self.calibration(batch).mean
        else:
            mean = self.calibrator.mean(batch.support, batch.precomputed[..., :-1] * self._strength(batch)[..., None])
        shrink = lambda: self.shrunk(self.calibration(batch))  # noqa: E731
        return Calibrated(batch, self.bank, mean, shrink, p.n, p.n_per, self._key)

    def fit(self, batch: TaskBatch) -> Head:
        with torch.no_grad():
            head = self.params.trainer.train(self.calibrated(batch))
            trust = self.trust(batch)
            if self.params.query_strength:
                head = QueryCalibratedHead(head, self.calibrator, self.params.query_strength * trust.share)
            if trust.out_of_domain is None or not bool(trust.out_of_domain.any()):
                return head
            return with_fallback(head, batch, unwhitening(self.bank), trust.out_of_domain)

    def task_bytes(self, n_support: int, n_classes: int, dim: int) -> int:
        p = self.params
        if not p.trainer.samples:
            if self.bank.is_whitened:
                return 16 * n_support * max(dim, len(self.bank)) * 4
            size = len(self.bank) * int(self.bank.counts.max())
            return 4 * (2 * n_classes * size + 4 * n_support * dim)
        rows = dim if p.cov == "pooled" else int(self.bank.counts.min())
        rows *= p.k if p.cov == "independent" else 1
        rows = 0 if self.bank.device.type == "cuda" else rows  # there factors are made for some tasks at a time
        return sampled_bytes(n_support, n_classes, dim, rows, p.n, p.n_per)


# Methods that can say which base classes did what.
Explainable = GDC | HierarchicalGDC


def gdc_method(params: GDCParams, cap_k: bool = False) -> Explainable:
    """The method of the model that the parameters name; `cap_k` is for the weighted one."""
    return HierarchicalGDC(params) if params.model == "hierarchical" else GDC(params, cap_k)
