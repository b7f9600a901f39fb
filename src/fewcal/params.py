"""GDCParams: every choice of the method in one frozen record, with its range checked on entry."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError


@dataclass(frozen=True)
class GDCParams:
    """Parameters of GDC. Defaults are the equations as the paper prints them (preset `paper`).

    Gaussianization (eq. 1-3)
        beta, kind ("auto", "tukey", "yeo-johnson", "none"), eps; center, l2: after the power transform;
        whiten: shrinkage λ of the pooled covariance to whiten with, "auto" or False; transform_base: False leaves base
        rows raw, as the authors' script did.
    Neighbours and weights (eq. 6-8)
        metric ("sqeuclidean", "euclidean", "mahalanobis", "delta"), delta, k, m, unit (False, or what distances are
        divided by), unit_of ("bank": in multiples of the bank's own nearest-class distance, "one").
    Beyond the paper: how much the base classes may say
        strength multiplies every weight, shot_decay divides it by K^shot_decay; trust: a number from 0 to 1, or "auto"
        to judge it from bank and support (`fewcal.domain_match`); query_pull: queries are calibrated too, this much.
    Covariance (eq. 5, 9)
        cov ("joint", "independent", "pooled"), cov_weights ("with-support", "bases-only", "average"), common_size
        (rows per class in joint; 0: the smallest class), alpha1, alpha2_ratio (α2/α1), off_diagonal ("pairs": D(D−1)
        entries, "all": D²), psd ("clip", "eigen").
    Sampling (eq. 10) and head (appendix B)
        n, n_per ("point", "class"), head ("closed_form", "lbfgs", "sgd", or a scikit-learn classifier), C (for lbfgs).

    Examples
    --------
    >>> GDCParams(m=1.0, k=8).with_changes(m=2.0).m
    2.0
    >>> GDCParams(alpha1=-1)
    Traceback (most recent call last):
    ...
    fewcal.errors.InputError: alpha1=-1 is out of range; use a number ≥ 0
    """

    beta: float = 0.5
    kind: str = "auto"
    eps: float = 1e-6
    center: bool = False
    l2: bool = False
    whiten: float | bool | str = False
    transform_base: bool = True
    metric: str = "sqeuclidean"
    delta: float = 1.0
    k: int = 8
    m: float = 1.0
    unit: float | bool = False
    unit_of: str = "bank"
    strength: float = 1.0
    shot_decay: float = 0.0
    trust: float | str = 1.0
    query_pull: float = 0.0
    cov: str = "joint"
    cov_weights: str = "with-support"
    common_size: int = 0
    alpha1: float = 3000.0
    alpha2_ratio: float = 10.0
    off_diagonal: str = "pairs"
    psd: str = "clip"
    n: int = 750
    n_per: str = "point"
    head: Any = "sgd"
    C: float = 1.0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(f"{name}={value!r} is unknown; use one of {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if (value is False and name in _SWITCHES) or (value == "auto" and name in _AUTOMATIC):
                continue
            if isinstance(value, np.generic):  # as a grid search hands them over
                value = value.item()
                object.__setattr__(self, name, value)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                bound = f"a number ≥ {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
                words = [w for w, names in (("False", _SWITCHES), ("'auto'", _AUTOMATIC)) if name in names]
                off = f" (or {' or '.join(words)})" if words else ""
                raise InputError(f"{name}={value!r} is out of range; use {bound}{off}")
            if math.isinf(value) and name != "C":
                raise InputError(f"{name}={value!r} must be finite")
            if name in _INTEGERS and int(value) != value:
                raise InputError(f"{name}={value!r} must be a whole number")
        if isinstance(self.head, str):
            from fewcal.heads import HEADS

            if self.head not in HEADS or self.head == "sklearn":
                names = ", ".join(h for h in HEADS if h != "sklearn")
                raise InputError(f"head={self.head!r} is unknown; use one of {names}, or a scikit-learn classifier")
        elif not (hasattr(self.head, "fit") and hasattr(self.head, "predict")):
            raise InputError(f"head={self.head!r} is neither a name nor a classifier with fit and predict")
        if self.whiten is not False and self.cov != "pooled":
            raise InputError(f"whiten={self.whiten!r} goes with cov='pooled', not cov={self.cov!r}")
        if self.trust == "auto" and self.whiten is False:
            raise InputError("trust='auto' is judged in the whitened space; set whiten='auto' or a number")
        if self.query_pull and self.whiten is False:
            raise InputError(f"query_pull={self.query_pull!r} goes with whitening; set whiten='auto' or a number")
        if not self.transform_base and self.whiten is not False:
            raise InputError(
                "transform_base=False goes with whiten=False: whitening puts the base classes in the same space"
            )

    def with_changes(self, **changes: Any) -> GDCParams:
        """A copy with some fields replaced; unknown names are refused with the nearest known ones."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(f"GDC has no parameter {name!r}{nearest_names(name, known)}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """All fields; a head object is named by its repr."""
        if isinstance(self.head, str):
            return asdict(self)
        return asdict(replace(self, head="sgd")) | {"head": repr(self.head)}


_CHOICES = {
    "kind": ("auto", "tukey", "yeo-johnson", "none"),
    "metric": ("sqeuclidean", "euclidean", "mahalanobis", "delta"),
    "cov": ("joint", "independent", "pooled"),
    "cov_weights": ("with-support", "bases-only", "average"),
    "off_diagonal": ("pairs", "all"),
    "psd": ("clip", "eigen"),
    "n_per": ("point", "class"),
    "unit_of": ("bank", "one"),
}
_RANGES: dict[str, tuple[float, float]] = {
    "beta": (-10, 10),
    "eps": (1e-30, 1.0),
    "whiten": (0, math.inf),
    "delta": (1e-6, math.inf),
    "k": (1, math.inf),
    "m": (0, math.inf),
    "unit": (1e-9, math.inf),
    "strength": (0, math.inf),
    "shot_decay": (0, 1),
    "trust": (0, 1),
    "query_pull": (0, math.inf),
    "common_size": (0, math.inf),
    "alpha1": (0, math.inf),
    "alpha2_ratio": (0, math.inf),
    "n": (1, math.inf),
    "C": (1e-30, math.inf),
}
_SWITCHES = ("whiten", "unit")
_AUTOMATIC = ("whiten", "trust")
_INTEGERS = ("k", "n", "common_size")
