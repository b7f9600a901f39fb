"""Search spaces: which parameters a search may change, and in what range.

An axis bears the name of the field of `GDCParams` that it sets, so that a trial's parameters are those of a preset.
A space is a function of the bank's number of classes and the heads, registered with `@search_space`; its name and
summary are what `fewcal tune --help` shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError

# Parameters and presets load torch, and the names of spaces must be there without: they are imported on use.
if TYPE_CHECKING:
    import optuna

    from fewcal.params import GDCParams

COVARIANCES = ("pooled", "joint", "independent")
# The value of a parameter, and the values that a trial picked, by axis.
Value: TypeAlias = float | int | str | bool
Picks: TypeAlias = dict[str, Value]


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
    choices: tuple[Value, ...] = ()
    integer: bool = False

    def suggest(self, trial: optuna.Trial) -> Value:
        """A value for an Optuna trial."""
        if self.choices:
            picked = trial.suggest_categorical(self.name, list(self.choices))
            assert picked is not None
            return picked
        if self.integer:
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def position(self, value: Value) -> float:
        """Where a value lies in the range, 0 to 1; of choices, its number."""
        if self.choices or isinstance(value, str):
            return float(self.choices.index(value))
        if self.high == self.low:
            return 0.0
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: Value) -> bool:
        """Whether a search along this axis can meet the value."""
        if self.choices:
            return value in self.choices
        if isinstance(value, bool | str) or not self.low <= value <= self.high:
            return False
        return self.step is None or abs((steps := (value - self.low) / self.step) - round(steps)) < 1e-9


@dataclass(frozen=True)
class Space:
    """Axes on top of parameters that stay fixed.

    `axes(values)` are those in play for the values picked so far: some only have a meaning beside others.
    `implied(values)` are parameters that follow from them. With `prefer_default` the preset `default` is the simplest
    point of the space, and is taken where nothing is clearly better.
    """

    name: str
    fixed: GDCParams
    axes: Callable[[Picks], Sequence[Axis]]
    implied: Callable[[Picks], Picks] = lambda picked: {}
    prefer_default: bool = False

    def suggest(self, trial: optuna.Trial) -> GDCParams:
        """Parameters for an Optuna trial."""
        return self.build(lambda axis: axis.suggest(trial))

    def build(self, pick: Callable[[Axis], Value]) -> GDCParams:
        """Parameters from a function that picks a value on each axis."""
        picked: Picks = {}
        while rest := [axis for axis in self.axes(picked) if axis.name not in picked]:
            picked[rest[0].name] = pick(rest[0])
        return self.fixed.with_changes(**picked, **self.implied(picked))

    def params(self, values: Mapping[str, Value]) -> GDCParams:
        """Parameters from the values of a finished trial."""
        return self.build(lambda axis: values[axis.name])

    def values(self, params: GDCParams) -> Picks | None:
        """The values on the axes that give these parameters; None where the space does not hold them."""
        picked: Picks = {}
        while rest := [axis for axis in self.axes(picked) if axis.name not in picked]:
            value = getattr(params, rest[0].name)
            if not rest[0].holds(value):
                return None
            picked[rest[0].name] = value
        return picked

    def distance(self, a: Picks, b: Picks) -> float:
        """How far apart two picks are: the mean over axes of their distance there; 1 where only one has the axis."""
        axes: dict[str, Axis] = {axis.name: axis for v in (a, b) for axis in self.axes(v)}
        total = 0.0
        for name, axis in axes.items():
            if name not in a or name not in b:
                total += 1.0
            else:
                total += min(1.0, abs(axis.position(a[name]) - axis.position(b[name])))
        return total / len(axes)


# ---- the registry ---------------------------------------------------------------------------------------------------

SpaceMaker: TypeAlias = Callable[[int, Sequence[str]], Space]


@dataclass(frozen=True)
class SpaceEntry:
    """A registered space.

    Attributes
    ----------
    name, summary : str
    make : callable(number of base classes, heads) -> Space
    heads : tuple of str
        The heads that it searches where none are asked for.
    one_head : bool
        Whether it has the head as given, and no axis for it.
    """

    name: str
    summary: str
    make: SpaceMaker
    heads: tuple[str, ...]
    one_head: bool


SPACES: dict[str, SpaceEntry] = {}


def search_space(
    name: str, summary: str, heads: Sequence[str], *, one_head: bool = True
) -> Callable[[SpaceMaker], SpaceMaker]:
    """Register a function of (number of base classes, heads) that makes a space."""

    def register(make: SpaceMaker) -> SpaceMaker:
        SPACES[name] = SpaceEntry(name, summary, make, tuple(heads), one_head)
        return make

    return register


def find_space(name: str) -> SpaceEntry:
    """A registered space by its name."""
    if name not in SPACES:
        raise InputError(f"space {name!r} is unknown{nearest_names(name, SPACES)}")
    return SPACES[name]


def make_space(name: str, n_classes: int, heads: Sequence[str]) -> Space:
    """A space by its name, for a bank of so many classes."""
    from fewcal.heads import HEADS

    if wrong := [h for h in heads if h not in HEADS]:
        raise InputError(f"head {wrong[0]!r} is unknown; use some of {', '.join(HEADS)}")
    entry = find_space(name)
    if entry.one_head and len(heads) > 1:
        raise InputError(f"space {name!r} has one head; choose one of {', '.join(heads)}")
    return entry.make(n_classes, heads)


def space_names() -> list[str]:
    """Names of all spaces."""
    return list(SPACES)


# ---- for any features -----------------------------------------------------------------------------------------------


def field_axes(*names: str) -> tuple[Axis, ...]:
    """Axes of fields of `GDCParams` with the range that they declare for a search on any features.

    >>> [axis.high for axis in field_axes("m", "beta")]
    [5.0, 2.0]
    """
    from fewcal._utils.parameters import parameters_of
    from fewcal.params import GDCParams

    declared = parameters_of(GDCParams)
    axes = []
    for name in names:
        found = declared[name].search
        if found is None:
            raise InputError(f"parameter {name!r} has no usual range to search; write an Axis for it")
        axes.append(Axis(name, found.low, found.high, found.step, found.log, integer=declared[name].integer))
    return tuple(axes)


def default_space(
    n_classes: int, heads: Sequence[str] = ("closed_form", "lbfgs"), covariances: Sequence[str] = COVARIANCES
) -> Space:
    """β from 0 to 2, centring, L2, the scale of distances, α on log scales, covariances to choose from.

    >>> [axis.name for axis in default_space(100).axes({})][:3]
    ['beta', 'center', 'l2']
    """
    from fewcal.heads import HEADS
    from fewcal.presets import get_preset

    always = (
        *field_axes("beta"),
        Axis("center", choices=(True, False)),
        Axis("l2", choices=(True, False)),
        Axis("cov", choices=tuple(covariances)),
        Axis("k", 1, n_classes, log=True, integer=True),
        *field_axes("m"),
        Axis("distance_scale_of", choices=("one", "bank")),
        *field_axes("distance_scale", "strength"),
        *((Axis("head", choices=tuple(heads)),) if len(heads) > 1 else ()),
    )
    shrinkage = field_axes("alpha1", "alpha2_ratio")
    fixed = get_preset("paper").with_changes(cov_weights="bases-only", head=heads[0])

    def axes(picked: Picks) -> Sequence[Axis]:
        head = str(picked.get("head", heads[0]))
        return always + shrinkage + field_axes(*HEADS[head].searched)

    return Space("default", fixed, axes)


search_space("default", "what makes sense on any features", ("closed_form", "lbfgs"), one_head=False)(default_space)


# ---- the paper's ----------------------------------------------------------------------------------------------------

_WIDE = (Axis("alpha1", 0.0, 10_000.0, 1000.0), Axis("alpha2_ratio", choices=(0.0, 0.1, 1.0, 10.0, 100.0)))
_FINE = (Axis("alpha1", 0.0, 1000.0, 100.0), Axis("alpha2_ratio", 0.0, 1000.0, 100.0))
_SHRINKAGE = {"mini": _WIDE, "cub": _WIDE, "dogs": _FINE, "meta-tiered": _FINE, "mini2cub": _FINE}


def _paper_space(dataset: str, n_classes: int, heads: Sequence[str]) -> Space:
    return paper_space(n_classes, dataset, heads)


def paper_space(n_classes: int, dataset: str, heads: Sequence[str] = ("sgd",)) -> Space:
    """The paper's ranges (appendix E): β, m, k, n for all, α1 and α2 by dataset; its equations and its head.

    >>> [axis.name for axis in paper_space(64, "mini").axes({})]
    ['beta', 'm', 'k', 'n', 'alpha1', 'alpha2_ratio']
    """
    from fewcal.presets import get_preset

    if n_classes < 2:
        raise InputError(f"the paper's space begins at k=2, and the bank has {n_classes} class")
    axes = (
        Axis("beta", 0.0, 10.0, 0.25),
        Axis("m", 0.0, 3.0, 0.25),
        Axis("k", 2, n_classes - n_classes % 2, 2, integer=True),
        Axis("n", 100, 1000, 50, integer=True),
        *_SHRINKAGE[dataset],
    )
    return Space(f"paper/{dataset}", get_preset("paper").with_changes(head=heads[0]), lambda _: axes)


for _dataset in _SHRINKAGE:
    search_space(f"paper/{_dataset}", f"the paper's ranges for {_dataset}", ("sgd",))(partial(_paper_space, _dataset))


@search_space("ablation", "the narrower ranges of the paper's ablation study", ("sgd",))
def ablation_space(n_classes: int, heads: Sequence[str] = ("sgd",)) -> Space:
    """The ranges of the paper's ablation study (Stanford Dogs), with n = 750 and β = 1."""
    from fewcal.presets import get_preset

    axes = (
        Axis("m", 0.0, 3.0, 0.25),
        Axis("k", 1, min(20, n_classes), 1, integer=True),
        Axis("alpha1", 0.0, 600.0, 100.0),
        Axis("alpha2_ratio", 0.0, 600.0, 100.0),
    )
    return Space("ablation", get_preset("paper").with_changes(beta=1.0, n=750, head=heads[0]), lambda _: axes)
