"""GDCParams: every choice of the method in one frozen record; each field says what it accepts and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import (
    SearchRange,
    check_parameters,
    parameter,
    parameters_of,
    same_parameter,
)
from fewcal._utils.types import JSON
from fewcal.calibrate import DISTANCE_SCALES, MAHALANOBIS_RIDGE, METRICS
from fewcal.covariance import COVARIANCES, OFF_DIAGONALS, PSD, SHARES
from fewcal.errors import InputError
from fewcal.gaussianize import KINDS
from fewcal.heads import HEADS, LBFGS, HeadTrainer, SklearnTrainer, make_trainer


@dataclass(frozen=True)
class GDCParams:
    """Parameters of GDC. Defaults are the equations as the paper prints them (preset `paper`).

    Gaussianization (eq. 1-3)
        beta, kind, eps; center, l2: after the power transform; transform_base.
    Neighbours and weights (eq. 6-8)
        metric, delta, mahalanobis_ridge, mahalanobis_shift, k, m, distance_scale, distance_scale_of. The metric
        `mahalanobis` is eq. 13 as printed with ridge 0 and no shift.
    Beyond the paper
        strength multiplies every weight.
    Covariance (eq. 5, 9)
        cov, cov_weights, common_size, alpha1, alpha2_ratio, off_diagonal, psd, constant.
    Sampling (eq. 10) and head (appendix B)
        n, n_per, head, C.

    `describe_params()` lists what each is for and what it accepts.

    Examples
    --------
    >>> GDCParams(m=1.0, k=8).with_changes(m=2.0).m
    2.0
    >>> GDCParams(alpha1=-1)
    Traceback (most recent call last):
    ...
    fewcal.errors.InputError: alpha1=-1 is out of range; use a number ≥ 0
    """

    beta: float = parameter(0.5, "power of the Gaussianization", low=-10, high=10, search=SearchRange(0.0, 2.0, 0.25))
    kind: str = parameter(
        "auto",
        "power transform; auto: Tukey's ladder if all base features are ≥ 0, else Yeo-Johnson",
        choices=KINDS,
    )
    eps: float = parameter(1e-6, "keeps log(x + ε) finite at 0, for β ≤ 0", low=1e-30, high=1.0)
    center: bool = parameter(False, "subtract the mean of the base rows after the power transform")
    l2: bool = parameter(False, "then scale rows to unit length")
    transform_base: bool = parameter(True, "Gaussianize base rows too; the authors' script left them raw")
    metric: str = parameter(
        "sqeuclidean",
        "distance to the base classes (eq. 6, appendix A)",
        choices=METRICS,
    )
    delta: float = parameter(1.0, "δ of metric 'delta'", low=1e-6)
    mahalanobis_ridge: float = parameter(
        MAHALANOBIS_RIDGE,
        "metric 'mahalanobis': added to each class covariance, as a share of its mean variance; 0: eq. 13 as printed",
        low=0,
    )
    mahalanobis_shift: bool = parameter(
        True, "metric 'mahalanobis': ln|Σ| relative to the smallest, so that d ≥ 0; False: eq. 13 as printed"
    )
    k: int = parameter(8, "nearest base classes (eq. 7)", low=1, integer=True)
    m: float = parameter(1.0, "power of the distance in the weights (eq. 8)", low=0, search=SearchRange(0.0, 5.0, 0.25))
    distance_scale: float | bool = parameter(
        False,
        "distances are divided by this; False: taken as they are",
        low=1e-9,
        also=(False,),
        search=SearchRange(0.2, 5.0, log=True),
    )
    distance_scale_of: str = parameter(
        "bank",
        "distance_scale in multiples of the bank's own nearest-class distance (bank), or as it is (one)",
        choices=DISTANCE_SCALES,
    )
    strength: float = parameter(
        1.0,
        "multiplies every weight; 0 turns calibration off",
        low=0,
        search=SearchRange(0.1, 10.0, log=True),
    )
    cov: str = parameter(
        "joint",
        "covariance of the calibrated class (eq. 5)",
        choices=COVARIANCES,
    )
    cov_weights: str = parameter(
        "with-support",
        "shares of the base classes in the covariance",
        choices=SHARES,
    )
    common_size: int = parameter(
        0, "rows of each base class in cov 'joint'; 0: the smallest class", low=0, integer=True
    )
    alpha1: float = parameter(
        3000.0, "shrinkage towards the mean variance (eq. 9)", low=0, search=SearchRange(1.0, 1e4, log=True)
    )
    alpha2_ratio: float = parameter(
        10.0, "α2/α1, shrinkage towards the mean covariance (eq. 9)", low=0, search=SearchRange(0.01, 1e3, log=True)
    )
    off_diagonal: str = parameter("pairs", "entries that σ2 averages: D(D−1) pairs, or all D²", choices=OFF_DIAGONALS)
    psd: str = parameter(
        "clip",
        "what keeps the covariance positive semi-definite: a clip of α2, or eigenvalues",
        choices=PSD,
    )
    constant: float = parameter(0.0, "a number added to every entry of the covariance: the α of DC", low=0)
    n: int = parameter(750, "points to draw (eq. 10)", low=1, integer=True, search=SearchRange(50, 500, 50))
    n_per: str = parameter("point", "n for each support point, or for each class", choices=("point", "class"))
    head: object = parameter(
        "sgd", "the classifier: a name, a mapping of its name and parameters, or a scikit-learn classifier"
    )
    C: float = same_parameter(LBFGS, "C")

    def __post_init__(self) -> None:
        check_parameters(self)
        if isinstance(self.head, Mapping):
            object.__setattr__(self, "head", self.trainer)
        _ = self.trainer  # refuses a head that is none

    @cached_property
    def trainer(self) -> HeadTrainer:
        """What trains the head; a head given by name takes parameters that GDC has too (C) from here."""
        found = make_trainer(self.head, {"C": self.C})
        if found is not None:
            return found
        if not (hasattr(self.head, "fit") and hasattr(self.head, "predict")):
            raise InputError(f"head={self.head!r} is neither a name nor a classifier with fit and predict")
        return SklearnTrainer(self.head)

    @property
    def space(self) -> dict[str, Any]:
        """What `BaseBank.transformed` and `fit_gaussianization` take of the parameters."""
        return {name: getattr(self, name) for name in ("beta", "kind", "eps", "center", "l2")}

    def with_changes(self, **changes: Any) -> GDCParams:
        """A copy with some fields replaced; unknown names are refused with the nearest known ones."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(f"GDC has no parameter {name!r}{nearest_names(name, known)}")
        return replace(self, **changes)

    def in_effect(self) -> dict[str, JSON]:
        """The fields that have an effect beside the others, as plain values.

        >>> GDCParams(head="closed_form", alpha1=0.0).in_effect().keys() & {"n", "C", "delta", "alpha2_ratio", "psd"}
        set()
        """
        dead = set() if self.metric == "delta" else {"delta"}
        dead |= set() if self.metric == "mahalanobis" else {"mahalanobis_ridge", "mahalanobis_shift"}
        dead |= {"beta"} if self.kind == "none" else set()
        dead |= {"eps"} if self.beta > 0 or self.kind not in ("auto", "tukey") else set()
        dead |= {"distance_scale_of"} if self.distance_scale is False else set()
        dead |= {"cov_weights"} if self.cov == "pooled" else set()
        dead |= {"common_size"} if self.cov != "joint" else set()
        dead |= {"alpha2_ratio"} if self.alpha1 == 0 else set()
        dead |= {"off_diagonal", "psd"} if self.alpha1 * self.alpha2_ratio == 0 else set()
        dead |= {"n", "n_per"} if not self.trainer.samples else set()
        dead |= {"C"} if not isinstance(self.trainer, LBFGS) else set()
        return {name: value for name, value in self.as_dict().items() if name not in dead}

    def as_dict(self) -> dict[str, JSON]:
        """All fields as plain values; a scikit-learn classifier is named by its repr."""
        if isinstance(self.head, str):
            return asdict(self)
        head = self.head.as_value() if isinstance(self.head, HeadTrainer) else repr(self.head)
        return asdict(replace(self, head="sgd")) | {"head": head}


def describe_params() -> list[tuple[str, object, str, str]]:
    """Each parameter of GDC: its name, its value in the preset `paper`, what it is for and what it accepts.

    >>> next(row for row in describe_params() if row[0] == "k")
    ('k', 8, 'nearest base classes (eq. 7)', 'a number ≥ 1')
    """
    accepted = parameters_of(GDCParams)
    rows = [(f.name, f.default, accepted[f.name].help, accepted[f.name].accepts) for f in fields(GDCParams)]
    return [(*row[:3], f"one of {', '.join(HEADS)}" if row[0] == "head" else row[3]) for row in rows]
