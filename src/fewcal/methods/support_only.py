"""Support-only: the classifier without base classes (`fewcal.hgdc.mixture`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

from torch import Tensor

from fewcal._utils.parameters import Parameter
from fewcal.gaussianize import Gaussianization
from fewcal.heads.linear import LinearHead
from fewcal.hgdc.mixture import fit_support_only
from fewcal.methods.base import Method, RowMap, TaskBatch
from fewcal.methods.hgdc import HGDC
from fewcal.methods.registry import register_method


@register_method
class SupportOnly(Method):
    """No base classes: rows of unit length and a discriminant with the scatter of the support."""

    name = "support-only"
    accepts: ClassVar[Mapping[str, Parameter]] = {"scatter": HGDC.accepts["scatter"]}
    scatter: float
    # Subtracted from features that single precision does not hold.
    shift: Tensor | None = None

    def __init__(self, scatter: float = 10.0) -> None:
        self.set_parameters(scatter=scatter)

    @property
    def space(self) -> Hashable:
        return "unit"

    @property
    def row_map(self) -> RowMap:
        return Gaussianization("none", l2=True, shift=self.shift)

    def fit(self, batch: TaskBatch) -> LinearHead:
        return fit_support_only(batch.support, batch.labels, batch.n_classes, self.scatter)
