"""Logistic regression on the support set alone: raw, Gaussianized, or on centred unit-length rows.

The "no method" baseline of Yang, Liu, Xu (ICLR 2021) and of the GDC paper's ablation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from fewcal._utils.parameters import Parameter, parameters_of
from fewcal.bank import BaseBank
from fewcal.heads.lbfgs import LBFGS, lbfgs_head
from fewcal.heads.linear import LinearHead
from fewcal.methods.base import Method, TaskBatch, UnitRows
from fewcal.methods.registry import register_method
from fewcal.params import GDCParams


@register_method
class LogisticRegression(Method):
    """L2-regularised multinomial logistic regression (scikit-learn's objective) on raw features."""

    name = "lr"
    accepts: ClassVar[Mapping[str, Parameter]] = {"C": parameters_of(LBFGS)["C"]}
    C: float

    def __init__(self, C: float = 1.0) -> None:
        self.set_parameters(C=C)

    def fit(self, batch: TaskBatch) -> LinearHead:
        return lbfgs_head(batch.support, batch.labels, batch.n_classes, C=self.C, max_iter=1000)


@register_method
class GaussianizedLogisticRegression(LogisticRegression):
    """The same on Gaussianized features (eq. 1-3): Tukey or Yeo-Johnson as the base features decide."""

    name = "lr-gauss"
    needs_bank = True
    accepts: ClassVar[Mapping[str, Parameter]] = {
        **LogisticRegression.accepts,
        "beta": replace(parameters_of(GDCParams)["beta"], also=()),
    }
    beta: float

    def __init__(self, C: float = 1.0, beta: float = 0.5) -> None:
        self.set_parameters(C=C, beta=beta)

    def prepare(self, bank: BaseBank | None) -> Method:
        super().prepare(bank)
        assert bank is not None
        self.set_space(bank.transformed(beta=self.beta, moments=True).transform, bank)
        return self


@register_method
class UnitLogisticRegression(UnitRows, LogisticRegression):
    """The same on rows centred on the base mean and scaled to unit length; without base classes on unit-length rows."""

    name = "lr_l2"
