"""Search spaces: functions that turn an Optuna trial into a method.

`@search_space` registers a function; its name and summary appear in `fewcal tune --help`. Ranges of parameters come
from their declarations (`HGDC.accepts`, `GDCParams`), those of the paper from its appendix E.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from fewcal._utils.names import nearest_names
from fewcal._utils.parameters import Parameter, parameters_of
from fewcal._utils.types import JSON
from fewcal.errors import InputError
from fewcal.heads import HEADS
from fewcal.methods import GDC, HGDC, Method
from fewcal.params import GDCParams
from fewcal.presets import get_preset

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

AUTO = "auto"
Suggest: TypeAlias = Callable[..., Method]


@dataclass(frozen=True)
class Space:
    """A search space.

    Attributes
    ----------
    name, summary : str
    suggest : callable(trial, classes) or callable(trial, classes, heads) -> Method
        The method of a trial, beside so many base classes; with `heads` if the space has some.
    heads : tuple of str
        The classifiers to choose from that are trained on calibrated classes.
    first : mapping
        Suggestions of the first trial; empty: the sampler proposes them.
    """

    name: str
    summary: str
    suggest: Suggest
    heads: tuple[str, ...] = ()
    first: Mapping[str, JSON] = field(default_factory=dict)

    def method(self, trial: BaseTrial, classes: int) -> Method:
        """The method of a trial, which may be finished."""
        return self.suggest(trial, classes, self.heads) if self.heads else self.suggest(trial, classes)


SPACES: dict[str, Space] = {}


def search_space(
    name: str, summary: str, heads: Sequence[str] = (), first: Mapping[str, JSON] | None = None
) -> Callable[[Suggest], Suggest]:
    """Register a function `suggest` as a space; see `Space`."""

    def register(suggest: Suggest) -> Suggest:
        SPACES[name] = Space(name, summary, suggest, tuple(heads), first or {})
        return suggest

    return register


def find_space(space: str | Space, head: str | None = None) -> Space:
    """A registered space by its name, or a space as it is, with one head if `head` is given."""
    if isinstance(space, str):
        if space not in SPACES:
            raise InputError(f"space {space!r} is unknown{nearest_names(space, SPACES)}")
        space = SPACES[space]
    if head is None:
        return space
    if not space.heads:
        raise InputError(f"space {space.name!r} has no heads; leave head={head!r} out, or use space 'gdc'")
    if head not in HEADS:
        raise InputError(f"head {head!r} is unknown{nearest_names(head, HEADS)}")
    return replace(space, heads=(head,))


def suggest_parameter(trial: BaseTrial, name: str, accepted: Parameter) -> JSON:
    """A value for a parameter from its declared search range, or "auto" where that is accepted."""
    found = accepted.search
    if found is None:
        raise InputError(f"parameter {name!r} declares no search range; suggest a value for it")
    if AUTO in accepted.also and trial.suggest_categorical(f"{name} {AUTO}", [True, False]):
        return AUTO
    if accepted.integer:
        return trial.suggest_int(name, int(found.low), int(found.high), step=int(found.step or 1), log=found.log)
    return trial.suggest_float(name, found.low, found.high, step=found.step, log=found.log)


# ---- HGDC -----------------------------------------------------------------------------------------------------------


_HGDC = {name: accepted for name, accepted in HGDC.accepts.items() if accepted.search is not None}
_DEFAULT = HGDC().settings
_FIRST: dict[str, JSON] = {f"{n} {AUTO}": _DEFAULT[n] == AUTO for n, accepted in _HGDC.items() if AUTO in accepted.also}
_FIRST |= {name: value for name, value in _DEFAULT.items() if value != AUTO}


@search_space("hgdc", "the parameters of HGDC, the recommended model; the first trial is the default", first=_FIRST)
def suggest_hgdc(trial: BaseTrial, classes: int) -> HGDC:
    """HGDC with every parameter that declares a search range."""
    return HGDC(**{name: suggest_parameter(trial, name, accepted) for name, accepted in _HGDC.items()})  # type: ignore[arg-type]


# ---- GDC ------------------------------------------------------------------------------------------------------------


@search_space("gdc", "GDC for any features", heads=("closed_form", "lbfgs"))
def suggest_gdc(trial: BaseTrial, classes: int, heads: Sequence[str]) -> GDC:
    """GDC with β up to 2, centring, unit length, a scale of distances, α on log scales and any covariance."""
    head = trial.suggest_categorical("head", heads) if len(heads) > 1 else heads[0]
    choices: dict[str, Sequence[JSON]] = {
        "center": (True, False),
        "l2": (True, False),
        "cov": ("pooled", "joint", "independent"),
        "distance_scale_of": ("one", "bank")[:classes],  # distances between base classes need two
    }
    ranges = ("beta", "m", "distance_scale", "strength", "alpha1", "alpha2_ratio", *HEADS[str(head)].searched)
    declared = parameters_of(GDCParams)
    return _gdc(
        head=head,
        cov_weights="bases-only",
        k=trial.suggest_int("k", 1, classes, log=True),
        **{name: trial.suggest_categorical(name, values) for name, values in choices.items()},  # type: ignore[arg-type]
        **{name: suggest_parameter(trial, name, declared[name]) for name in ranges},
    )


# Appendix E: α1 and α2/α1 by dataset.
_WIDE = ((0.0, 10_000.0, 1000.0), (0.0, 0.1, 1.0, 10.0, 100.0))
_FINE = ((0.0, 1000.0, 100.0), None)
SHRINKAGE = {"mini": _WIDE, "cub": _WIDE, "dogs": _FINE, "meta-tiered": _FINE, "mini2cub": _FINE}


def suggest_paper(dataset: str, trial: BaseTrial, classes: int, heads: Sequence[str]) -> GDC:
    """The paper's ranges for a dataset (appendix E), with its equations."""
    if classes < 2:
        raise InputError(f"the paper's space begins at k=2, but the bank has {classes} class; use space 'gdc'")
    alpha1, ratios = SHRINKAGE[dataset]
    return _gdc(
        head=heads[0],
        beta=trial.suggest_float("beta", 0.0, 10.0, step=0.25),
        m=trial.suggest_float("m", 0.0, 3.0, step=0.25),
        k=trial.suggest_int("k", 2, classes - classes % 2, step=2),
        n=trial.suggest_int("n", 100, 1000, step=50),
        alpha1=trial.suggest_float("alpha1", alpha1[0], alpha1[1], step=alpha1[2]),
        alpha2_ratio=(
            trial.suggest_float("alpha2_ratio", 0.0, 1000.0, step=100.0)
            if ratios is None
            else trial.suggest_categorical("alpha2_ratio", ratios)
        ),
    )


for _dataset in SHRINKAGE:
    search_space(f"paper/{_dataset}", f"the paper's ranges for {_dataset}", ("sgd",))(partial(suggest_paper, _dataset))


@search_space("ablation", "the ranges of the paper's ablation study", ("sgd",))
def suggest_ablation(trial: BaseTrial, classes: int, heads: Sequence[str]) -> GDC:
    """The ranges of the paper's ablation study (Stanford Dogs), with n = 750 and β = 1."""
    return _gdc(
        head=heads[0],
        beta=1.0,
        m=trial.suggest_float("m", 0.0, 3.0, step=0.25),
        k=trial.suggest_int("k", 1, min(20, classes)),
        alpha1=trial.suggest_float("alpha1", 0.0, 600.0, step=100.0),
        alpha2_ratio=trial.suggest_float("alpha2_ratio", 0.0, 600.0, step=100.0),
    )


def _gdc(**changes: object) -> GDC:
    return GDC(get_preset("paper").with_changes(**changes))
