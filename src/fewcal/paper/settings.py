"""The paper's method as printed, and the named variants that stand beside it in columns or panels of their own.

`PRINTED` is the row of appendix F for the dataset and nothing else: n = 750 points drawn for each support point, the
joint covariance, 200 epochs of SGD, features at their own scale. w = 1/(1 + d^m) and 200 epochs of SGD both depend on
that scale, which the paper does not give; so the same row is also run on centred unit vectors, and with other heads.
Every variant belongs to a group, and verdicts are counted by group: what holds for HGDC says nothing of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from fewcal.methods import Method, make_method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import get_preset, list_presets

Group: TypeAlias = Literal["as printed", "tuned or rescaled", "HGDC"]
GROUPS: tuple[Group, ...] = get_args(Group)
GROUP_WORDS: dict[Group, str] = {
    "as printed": "the paper's method with the paper's values, SGD, features at their own scale",
    "tuned or rescaled": "the paper's method with values tuned on validation, at unit scale, or with another head",
    "HGDC": "the method that this package recommends; nothing is tuned",
}

UNIT: dict[str, bool] = {"center": True, "l2": True}


@dataclass(frozen=True)
class Variant:
    """One way to run a published row: the changes made to it, and the group that its verdicts count in.

    >>> PRINTED.text(paper_params("mini", 1))
    'm=1, k=8, α1=3000, α2=10·α1, β=0.5; n=750 a support point; joint covariance; SGD head; features at their own scale'
    >>> UNIT_SCALE.params(paper_params("cub", 1)).head, CLOSED_FORM.group
    ('sgd', 'tuned or rescaled')
    """

    name: str
    group: Group
    changes: Mapping[str, object] = field(default_factory=dict, hash=False)
    recommended: bool = False

    def params(self, row: GDCParams) -> GDCParams:
        """The row with the changes."""
        return row.with_changes(**self.changes)

    def method(self, row: GDCParams) -> Method:
        """Ready to be evaluated; k is brought down to the number of base classes."""
        return make_method("hgdc") if self.recommended else GDC(self.params(row), cap_k=True)

    def text(self, row: GDCParams) -> str:
        """The setting in words, for captions and records."""
        return "HGDC, nothing tuned" if self.recommended else params_text(self.params(row))


# The clip of b in closed form and L-BFGS: eigenvalues are clipped only where points are drawn as the script drew them.
PRINTED = Variant("as printed", "as printed")
UNIT_SCALE = Variant("unit scale", "tuned or rescaled", UNIT)
CLOSED_FORM = Variant("closed form", "tuned or rescaled", {"head": "closed_form"})
LBFGS = Variant("L-BFGS", "tuned or rescaled", {"head": "lbfgs"})
UNIT_CLOSED = Variant("unit scale, closed form", "tuned or rescaled", {**UNIT, "head": "closed_form"})
HGDC = Variant("HGDC", "HGDC", recommended=True)
VARIANTS = (PRINTED, UNIT_SCALE, CLOSED_FORM, LBFGS, UNIT_CLOSED, HGDC)

_HEADS = {"sgd": "SGD head", "lbfgs": "L-BFGS head", "closed_form": "closed form (n → ∞)"}


def paper_params(dataset: str, shot: int, family: str = "paper", number: int = 1) -> GDCParams:
    """The paper's setting for a dataset; for others, that of miniImageNet.

    >>> paper_params("cub", 5).m, paper_params("birds", 1).alpha1
    (2.0, 3000.0)
    """
    name = f"{family}/{dataset}/{shot}shot" + (f".{number}" if number > 1 else "")
    if name not in list_presets():
        name = f"{family}/mini/{shot}shot"
    return get_preset(name if name in list_presets() else family)


def unit_scale(params: GDCParams) -> GDCParams:
    """The same on centred unit vectors, base classes included, in closed form (which clips b, not eigenvalues)."""
    return params.with_changes(**UNIT, transform_base=True, psd="clip", head="closed_form")


def gdc(params: GDCParams) -> GDC:
    """GDC with at most as many neighbours as there are base classes."""
    return GDC(params, cap_k=True)


def params_text(p: GDCParams) -> str:
    """Parameters of the weighted model in the paper's letters, down to head and scale.

    >>> params_text(unit_scale(paper_params("dogs", 5)))
    'm=1.5, k=12, α1=300, α2=200·α1, β=1; joint covariance; closed form (n → ∞); centred unit vectors'
    """
    beta = f"{p.beta:g}" if isinstance(p.beta, (int, float)) else p.beta
    parts = [f"m={p.m:g}, k={p.k}, α1={p.alpha1:g}, α2={p.alpha2_ratio:g}·α1, β={beta}"]
    if p.trainer.samples:
        parts.append(f"n={p.n} a {'support point' if p.n_per == 'point' else 'class'}")
    parts += [f"{p.cov} covariance", _HEADS.get(str(p.head), f"head {p.head}")]
    scale = {(False, False): "features at their own scale", (True, True): "centred unit vectors"}
    parts.append(scale.get((p.center, p.l2), "centred" if p.center else "unit vectors"))
    if p.cov_weights != "with-support":
        parts.append("covariances weighted by w/Σw")
    if not p.transform_base:
        parts.append("base features not Gaussianized")
    return "; ".join(parts)


def setting_text(setting: Mapping[str, float]) -> str:
    """A setting of a search in the paper's letters.

    >>> setting_text({"beta": 0.5, "k": 4})
    'β=0.5, k=4'
    """
    names = {"beta": "β", "alpha": "α", "alpha1": "α1", "alpha2_ratio": "α2/α1", "delta": "δ"}
    return ", ".join(f"{names.get(k, k)}={v:g}" for k, v in setting.items())
