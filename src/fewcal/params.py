"""GDCParams: every choice of the method in one frozen record; each field says what it accepts and what it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import (
    SearchRange,
    check_parameters,
    current_names,
    parameter,
    parameters_of,
    same_parameter,
    warn_renamed,
)
from fewcal._utils.types import JSON
from fewcal.bank import BaseBank
from fewcal.calibrate import DISTANCE_SCALES, MAHALANOBIS_RIDGE, METRICS
from fewcal.covariance import COVARIANCES, OFF_DIAGONALS, PSD, SHARES
from fewcal.errors import InputError
from fewcal.gaussianize import KINDS
from fewcal.heads import HEADS, LBFGS, HeadTrainer, SklearnTrainer, make_trainer
from fewcal.power_choice import PowerChoice

# Parameters of the hierarchical model; all others belong to the weighted one.
HIERARCHICAL = (
    *("model", "beta", "kind", "eps", "max_spread", "whiten", "strength", "trust", "sharpness", "floor", "scatter"),
)
# Old names of fields, accepted for one release wherever parameters are given: in Python, on the command line, in files.
RENAMED = {"unit": "distance_scale", "unit_of": "distance_scale_of", "query_pull": "query_strength"}
# Fields that came later: files written before lack them.
_ADDED = ("model", "sharpness", "floor", "scatter", "mahalanobis_ridge", "mahalanobis_shift", "constant", "max_spread")


@dataclass(frozen=True)
class GDCParams:
    """Parameters of GDC. Defaults are the equations as the paper prints them (preset `paper`).

    model
        "weighted" is the paper's calibration; "hierarchical" is that of the preset `default`, in which base classes are
        the prior of a class mean (`fewcal.class_prior`). It has the parameters of `HIERARCHICAL`, the other has all but
        sharpness, floor and scatter.
    Gaussianization (eq. 1-3)
        beta, kind, eps; center, max_spread, l2, whiten: after the power transform; transform_base.
    Neighbours and weights (eq. 6-8)
        metric, delta, mahalanobis_ridge, mahalanobis_shift, k, m, distance_scale, distance_scale_of. The metric
        `mahalanobis` is eq. 13 as printed with ridge 0 and no shift.
    Beyond the paper: how much the base classes may say
        strength, shot_decay, trust, query_strength.
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

    model: str = parameter(
        "weighted",
        "how base classes calibrate: as weighted neighbours (the paper), or as the prior of a hierarchical model",
        choices=("weighted", "hierarchical"),
    )
    beta: float | str = parameter(
        0.5,
        "power of the Gaussianization; auto: the gentlest that makes base classes Gaussian",
        low=-10,
        high=10,
        also=("auto",),
        search=SearchRange(0.0, 2.0, 0.25),
    )
    kind: str = parameter(
        "auto",
        "power transform; auto: Tukey's ladder if all base features are ≥ 0, else Yeo-Johnson, or powers of both signs "
        "where β is auto and these are better",
        choices=KINDS,
    )
    eps: float = parameter(1e-6, "keeps log(x + ε) finite at 0, for β ≤ 0", low=1e-30, high=1.0)
    center: bool = parameter(False, "subtract the mean of the base rows after the power transform")
    max_spread: float | bool = parameter(
        False,
        "then bring down features whose standard deviation is more than this many times the median one",
        low=1,
        also=(False,),
    )
    l2: bool = parameter(False, "then scale rows to unit length")
    whiten: float | bool | str = parameter(
        False,
        "whiten with the pooled covariance, shrunk by this λ; auto: λ from the bank",
        low=0,
        also=(False, "auto"),
        search=SearchRange(0.05, 1000.0, log=True),
    )
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
        "multiplies every weight, 0 turns calibration off; hierarchical: examples that the neighbours are worth",
        low=0,
        search=SearchRange(0.1, 10.0, log=True),
    )
    sharpness: float = parameter(
        2.0, "hierarchical: how fast weights fall with distance", low=0, search=SearchRange(0.5, 8.0, log=True)
    )
    floor: float = parameter(
        1.0,
        "hierarchical: variance of class means where base classes do not differ, in units of their mean variance",
        low=1e-6,
        search=SearchRange(0.1, 10.0, log=True),
    )
    scatter: float = parameter(
        10.0,
        "hierarchical: ridge of the support's own scatter, in OAS ridges; large: it does not count",
        low=1e-3,
        search=SearchRange(1.0, 100.0, log=True),
    )
    shot_decay: float = parameter(0.0, "weights are divided by K^shot_decay, K shots", low=0, high=1)
    trust: float | str = parameter(
        1.0,
        "share of the weights that base classes keep; auto: judged from bank and support",
        low=0,
        high=1,
        also=("auto",),
    )
    query_strength: float = parameter(
        0.0, "queries are calibrated too, with weights times this", low=0, search=SearchRange(0.0, 1.0)
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
        if self.model == "hierarchical" and (isinstance(self.whiten, bool | str) or self.cov != "pooled"):
            raise InputError(
                f"model='hierarchical' goes with cov='pooled' and whiten a number, not {self.cov!r} and {self.whiten!r}"
            )
        if self.whiten is not False and self.cov != "pooled":
            raise InputError(f"whiten={self.whiten!r} goes with cov='pooled', not cov={self.cov!r}")
        if self.trust == "auto" and self.whiten is False:
            raise InputError("trust='auto' is judged in the whitened space; set whiten='auto' or a number")
        if self.query_strength and self.whiten is False:
            raise InputError(
                f"query_strength={self.query_strength!r} goes with whitening; set whiten='auto' or a number"
            )
        if not self.transform_base and self.whiten is not False:
            raise InputError(
                "transform_base=False goes with whiten=False: whitening puts the base classes in the same space"
            )

    @cached_property
    def trainer(self) -> HeadTrainer:
        """What trains the head; a head given by name takes parameters that GDC has too (C) from here."""
        found = make_trainer(self.head, {"C": self.C})
        if found is not None:
            return found
        if not (hasattr(self.head, "fit") and hasattr(self.head, "predict")):
            raise InputError(f"head={self.head!r} is neither a name nor a classifier with fit and predict")
        return SklearnTrainer(self.head)

    def for_bank(self, bank: BaseBank) -> GDCParams:
        """The same, with the power that the base classes choose where β is "auto"."""
        return self if self.beta != "auto" else self.with_power(bank.power_choice(self.kind, self.eps))

    def with_power(self, found: PowerChoice) -> GDCParams:
        """The same with a power that was chosen; a kind of power that was asked for stays."""
        choice = (found.beta, found.kind if self.kind == "auto" else self.kind)
        if choice not in self._with_power:  # presets are one object each, and a check of all fields takes a while
            self._with_power[choice] = self.with_changes(beta=choice[0], kind=choice[1])
        return self._with_power[choice]

    @cached_property
    def _with_power(self) -> dict[tuple[float, str], GDCParams]:
        return {}

    @property
    def space(self) -> dict[str, Any]:
        """What `BaseBank.transformed` and `fit_gaussianization` take of the parameters, β chosen (`for_bank`)."""
        return {name: getattr(self, name) for name in ("beta", "kind", "eps", "center", "max_spread", "l2")}

    def with_changes(self, **changes: Any) -> GDCParams:
        """A copy with some fields replaced; unknown names are refused with the nearest known ones."""
        changes = current_names(changes, RENAMED)
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(f"GDC has no parameter {name!r}{nearest_names(name, known)}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, JSON]:
        """All fields as plain values; a scikit-learn classifier is named by its repr."""
        if isinstance(self.head, str):
            return asdict(self)
        head = self.head.as_value() if isinstance(self.head, HeadTrainer) else repr(self.head)
        return asdict(replace(self, head="sgd")) | {"head": head}

    if not TYPE_CHECKING:  # old names are for old code: a type checker knows today's alone

        def __getattr__(self, name: str) -> object:
            if name not in RENAMED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warn_renamed(name, RENAMED[name])
            return getattr(self, RENAMED[name])


def _accepting_old_names(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def renamed(self: GDCParams, *args: Any, **values: Any) -> None:
        init(self, *args, **current_names(values, RENAMED))

    return renamed


GDCParams.__init__ = _accepting_old_names(GDCParams.__init__)  # type: ignore[method-assign]


def current_values(values: Mapping[str, JSON]) -> dict[str, JSON]:
    """Parameters of GDC as a file has them, under today's names; fields that came later have their default.

    Flags may be 0 or 1 in files that were written before these were refused.

    >>> found = current_values({"alpha1": 1.0, "l2": 1})
    >>> found["mahalanobis_ridge"], found["l2"]
    (0.1, True)
    """
    defaults, accepted = GDCParams().as_dict(), parameters_of(GDCParams)
    values = {name: defaults[name] for name in _ADDED} | current_names(values, RENAMED)
    flags = [name for name, value in values.items() if name in accepted and accepted[name].flag and value in (0, 1)]
    return values | {name: bool(values[name]) for name in flags}


def describe_params() -> list[tuple[str, object, str, str]]:
    """Each parameter of GDC: its name, its default, what it is for and what it accepts.

    >>> next(row for row in describe_params() if row[0] == "k")
    ('k', 8, 'nearest base classes (eq. 7)', 'a number ≥ 1')
    """
    accepted = parameters_of(GDCParams)
    rows = [(f.name, f.default, accepted[f.name].help, accepted[f.name].accepts) for f in fields(GDCParams)]
    return [(*row[:3], f"one of {', '.join(HEADS)}" if row[0] == "head" else row[3]) for row in rows]
