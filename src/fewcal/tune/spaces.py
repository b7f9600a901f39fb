"""Search spaces: which parameters a search may change, and in what range.

`default`            what makes sense on any features; contains the preset `default`
`whitened`           the part of it with whitening: no class covariances, and so faster
`paper/DATASET`      the ranges of the paper's appendix, by dataset
`ablation`           the narrower ranges of its ablation study (Stanford Dogs)

An axis bears the name of the field of `GDCParams` that it sets, so that a trial's parameters are those of a preset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import current_names, parameters_of
from fewcal.errors import InputError
from fewcal.heads import HEADS
from fewcal.params import RENAMED, GDCParams
from fewcal.presets import get_preset

COVARIANCES = ("pooled", "joint", "independent")


@dataclass(frozen=True)
class Axis:
    """One parameter: a range, by steps or on a log scale, or a list of choices.

    >>> Axis("m", 0, 3, 0.25).position(1.5), Axis("alpha1", 1, 100, log=True).position(10)
    (0.5, 0.5)
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()
    integer: bool = False

    def suggest(self, trial: Any) -> Any:
        """A value for an Optuna trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        if self.integer:
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def position(self, value: Any) -> float:
        """Where a value lies in the range, 0 to 1; of choices, its number."""
        if self.choices:
            return float(self.choices.index(value))
        if self.high == self.low:
            return 0.0
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: Any) -> bool:
        """Whether a search along this axis can meet the value."""
        if self.choices:
            return value in self.choices
        if isinstance(value, bool | str) or not self.low <= value <= self.high:
            return False
        return self.step is None or abs((steps := (value - self.low) / self.step) - round(steps)) < 1e-9


def usual_axis(name: str) -> Axis:
    """The axis of a parameter in its usual range, as `GDCParams` declares it.

    >>> usual_axis("m").high
    5.0
    """
    declared = parameters_of(GDCParams)[name]
    found = declared.search
    if found is None:
        raise InputError(f"parameter {name!r} has no usual range to search; write an Axis for it")
    return Axis(name, found.low, found.high, found.step, found.log, integer=declared.integer)


@dataclass(frozen=True)
class Space:
    """Axes on top of parameters that stay fixed.

    `axes(values)` are those in play for the values picked so far: some only have a meaning beside others.
    """

    name: str
    fixed: GDCParams
    axes: Callable[[dict[str, Any]], Sequence[Axis]]

    def suggest(self, trial: Any) -> GDCParams:
        """Parameters for an Optuna trial."""
        return self.build(lambda axis: axis.suggest(trial))

    def build(self, pick: Callable[[Axis], Any]) -> GDCParams:
        """Parameters from a function that picks a value on each axis."""
        picked: dict[str, Any] = {}
        while rest := [axis for axis in self.axes(picked) if axis.name not in picked]:
            picked[rest[0].name] = pick(rest[0])
        return self.fixed.with_changes(**_switched(picked))

    def params(self, values: dict[str, Any]) -> GDCParams:
        """Parameters from the values of a finished trial, whose axes may have had other names."""
        values = current_names(values, RENAMED)
        return self.build(lambda axis: values[axis.name])

    def values(self, params: GDCParams) -> dict[str, Any] | None:
        """The values on the axes that give these parameters; None where the space does not hold them."""
        picked: dict[str, Any] = {}
        while rest := [axis for axis in self.axes(picked) if axis.name not in picked]:
            value = getattr(params, rest[0].name)
            if not rest[0].holds(value):
                return None
            picked[rest[0].name] = value
        return picked

    def distance(self, a: dict[str, Any], b: dict[str, Any]) -> float:
        """How far apart two picks are: the mean over axes of their distance there; 1 where only one has the axis."""
        axes: dict[str, Axis] = {axis.name: axis for v in (a, b) for axis in self.axes(v)}
        total = 0.0
        for name, axis in axes.items():
            if name not in a or name not in b:
                total += 1.0
            else:
                total += min(1.0, abs(axis.position(a[name]) - axis.position(b[name])))
        return total / len(axes)


def _switched(picked: dict[str, Any]) -> dict[str, Any]:
    """What else goes with the picks: whitening is for the pooled covariance, and needs no shrinkage by α."""
    if "whiten" in picked:
        return picked | {"alpha1": 0.0, "alpha2_ratio": 0.0}
    if "cov" in picked:
        return picked | {"whiten": False, "trust": 1.0, "query_strength": 0.0}
    return picked


# ---- the default space ----------------------------------------------------------------------------------------------


def default_space(
    n_classes: int, heads: Sequence[str] = ("closed_form", "lbfgs"), covariances: Sequence[str] = COVARIANCES
) -> Space:
    """β from 0 to 2, centring, L2, the scale of distances, α on log scales, whitening or class covariances.

    `covariances` are the modes to choose from; `pooled` stands for whitening.

    >>> space = default_space(100)
    >>> space.values(get_preset("default").with_changes(whiten=3.0))["k"]
    16
    """
    always = (
        usual_axis("beta"),
        Axis("center", choices=(True, False)),
        Axis("l2", choices=(True, False)),
        Axis("cov", choices=tuple(covariances)),
        Axis("k", 1, n_classes, log=True, integer=True),
        usual_axis("m"),
        Axis("distance_scale_of", choices=("one", "bank")),
        usual_axis("distance_scale"),
        usual_axis("strength"),
        *((Axis("head", choices=tuple(heads)),) if len(heads) > 1 else ()),
    )
    pooled = (usual_axis("whiten"), Axis("trust", choices=("auto", 1.0)), usual_axis("query_strength"))
    by_class = (usual_axis("alpha1"), usual_axis("alpha2_ratio"))
    fixed = get_preset("default").with_changes(cov_weights="bases-only", head=heads[0])

    def axes(picked: dict[str, Any]) -> Sequence[Axis]:
        more: tuple[Axis, ...] = ()
        if "cov" in picked:
            more += pooled if picked["cov"] == "pooled" else by_class
        return always + more + tuple(map(usual_axis, HEADS[picked.get("head", heads[0])].searched))

    return Space("default" if len(covariances) > 1 else "whitened", fixed, axes)


# ---- the paper's ----------------------------------------------------------------------------------------------------

_WIDE = (Axis("alpha1", 0.0, 10_000.0, 1000.0), Axis("alpha2_ratio", choices=(0.0, 0.1, 1.0, 10.0, 100.0)))
_FINE = (Axis("alpha1", 0.0, 1000.0, 100.0), Axis("alpha2_ratio", 0.0, 1000.0, 100.0))
_SHRINKAGE = {"mini": _WIDE, "cub": _WIDE, "dogs": _FINE, "meta-tiered": _FINE, "mini2cub": _FINE}


def paper_space(n_classes: int, dataset: str, head: str = "sgd") -> Space:
    """The paper's ranges (appendix E): β, m, k, n for all, α1 and α2 by dataset; its equations and its head.

    >>> [axis.name for axis in paper_space(64, "mini").axes({})]
    ['beta', 'm', 'k', 'n', 'alpha1', 'alpha2_ratio']
    """
    if dataset not in _SHRINKAGE:
        raise InputError(f"space paper/{dataset} is unknown{nearest_names(dataset, _SHRINKAGE)}")
    if n_classes < 2:
        raise InputError(f"the paper's space begins at k=2, and the bank has {n_classes} class")
    axes = (
        Axis("beta", 0.0, 10.0, 0.25),
        Axis("m", 0.0, 3.0, 0.25),
        Axis("k", 2, n_classes - n_classes % 2, 2, integer=True),
        Axis("n", 100, 1000, 50, integer=True),
        *_SHRINKAGE[dataset],
    )
    return Space(f"paper/{dataset}", get_preset("paper").with_changes(head=head), lambda _: axes)


def ablation_space(n_classes: int, head: str = "sgd") -> Space:
    """The ranges of the paper's ablation study, with n = 750 and β = 1."""
    axes = (
        Axis("m", 0.0, 3.0, 0.25),
        Axis("k", 1, min(20, n_classes), 1, integer=True),
        Axis("alpha1", 0.0, 600.0, 100.0),
        Axis("alpha2_ratio", 0.0, 600.0, 100.0),
    )
    return Space("ablation", get_preset("paper").with_changes(beta=1.0, n=750, head=head), lambda _: axes)


def make_space(name: str, n_classes: int, heads: Sequence[str]) -> Space:
    """A space by its name, for a bank of so many classes."""
    if wrong := [h for h in heads if h not in HEADS]:
        raise InputError(f"head {wrong[0]!r} is unknown; use some of {', '.join(HEADS)}")
    if name in ("default", "whitened"):
        return default_space(n_classes, heads, COVARIANCES if name == "default" else COVARIANCES[:1])
    if len(heads) > 1:
        raise InputError(f"space {name!r} has one head; choose one of {', '.join(heads)}")
    if name == "ablation":
        return ablation_space(n_classes, heads[0])
    family, _, dataset = name.partition("/")
    if family != "paper" or not dataset:
        raise InputError(f"space {name!r} is unknown{nearest_names(name, space_names())}")
    return paper_space(n_classes, dataset, heads[0])


def space_names() -> list[str]:
    """Names of all spaces."""
    return ["default", "whitened", *(f"paper/{d}" for d in _SHRINKAGE), "ablation"]
