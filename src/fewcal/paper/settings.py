"""The paper's method as printed, and the variants that every table has beside it.

`PRINTED` is the row of table 7 for the dataset and nothing else: 750 points for each support point, the joint
covariance, 200 epochs of SGD, features at their own scale. The weights 1/(1 + d^m) and SGD depend on that scale, which
the paper does not print. `MATCHED` is the same with the features times one constant (`fewcal.paper.sets`). `UNIT` is
the closed form, the limit n → ∞, on centred unit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fewcal.methods.gdc import GDC
from fewcal.paper.published import candidate
from fewcal.params import GDCParams
from fewcal.presets import get_preset

UNIT_SCALE: dict[str, object] = {"center": True, "l2": True}


@dataclass(frozen=True)
class Variant:
    """A way to run a row of table 7: changes of its parameters, or features times one constant.

    >>> params_text(PRINTED.params(paper_params("mini", 1)))
    'm=1, k=8, α1=3000, α2=10·α1, β=0.5; n=750 a support point; joint covariance; SGD head; features at their own scale'
    """

    name: str
    words: str
    changes: Mapping[str, object] = field(default_factory=dict, hash=False)
    matched: bool = False

    def params(self, row: GDCParams) -> GDCParams:
        """The row with the changes."""
        return row.with_changes(**self.changes)


PRINTED = Variant("as printed", "the paper's method with the paper's values, SGD, features at their own scale")
MATCHED = Variant("paper's scale", "the same, with the features times one constant that gives the paper's distance "
                  "to the nearest base class", matched=True)  # fmt: skip
UNIT = Variant("unit scale", "the paper's values in closed form, centred unit vectors",
               {**UNIT_SCALE, "head": "closed_form", "psd": "clip", "transform_base": True})  # fmt: skip
UNIT_DRAWN = Variant("unit scale, L-BFGS", "the paper's values, 750 points a support point and L-BFGS, centred unit "
                     "vectors", {**UNIT_SCALE, "head": "lbfgs"})  # fmt: skip
TUNED = Variant("tuned", "values tuned by TPE on validation classes, centred unit vectors")
TUNED_SGD = Variant("tuned, SGD", "values tuned by TPE on validation classes, SGD, features at their own scale")
# Rows that no statement of the paper is about.
OTHERS = Variant("other methods", "baselines, and HGDC, the recommendation of this package; no statement is about them")
VARIANTS = {v.name: v for v in (PRINTED, MATCHED, UNIT, UNIT_DRAWN, TUNED, TUNED_SGD, OTHERS)}
# Label of the control: the support alone, in the space and with the head of a variant.
ALONE = "support alone"

_HEADS = {"sgd": "SGD head", "lbfgs": "L-BFGS head", "closed_form": "closed form (n → ∞)"}


def paper_params(dataset: str, shot: int, family: str = "paper", number: int = 1) -> GDCParams:
    """A row of table 7 as parameters; for other datasets that of miniImageNet.

    >>> paper_params("cub", 5).m, paper_params("birds", 1).alpha1
    (2.0, 3000.0)
    """
    row = candidate(dataset, shot, number) or candidate("mini", shot, number)
    return get_preset(family if row is None else f"{family}/{row.name}")


def gdc(params: GDCParams) -> GDC:
    """GDC with at most as many neighbours as there are base classes."""
    return GDC(params, cap_k=True)


def params_text(p: GDCParams) -> str:
    """Parameters of GDC in the paper's letters, down to head and scale.

    >>> params_text(UNIT.params(paper_params("dogs", 5)))
    'm=1.5, k=12, α1=300, α2=200·α1, β=1; joint covariance; closed form (n → ∞); centred unit vectors'
    """
    parts = [f"m={p.m:g}, k={p.k}, α1={p.alpha1:g}, α2={p.alpha2_ratio:g}·α1, β={p.beta:g}"]
    if p.trainer.samples:
        parts.append(f"n={p.n} a {'support point' if p.n_per == 'point' else 'class'}")
    parts += [f"{p.cov} covariance", _HEADS.get(str(p.head), f"head {p.head}")]
    scale = {(False, False): "features at their own scale", (True, True): "centred unit vectors"}
    parts.append(scale.get((p.center, p.l2), "centred" if p.center else "unit vectors"))
    parts += ["covariances weighted by w/Σw"] * (p.cov_weights != "with-support")
    parts += ["base features not Gaussianized"] * (not p.transform_base)
    return "; ".join(parts)


def setting_text(setting: Mapping[str, float]) -> str:
    """A setting of a search in the paper's letters.

    >>> setting_text({"beta": 0.5, "k": 4})
    'β=0.5, k=4'
    """
    names = {"beta": "β", "alpha": "α", "alpha1": "α1", "alpha2_ratio": "α2/α1", "delta": "δ"}
    return ", ".join(f"{names.get(k, k)}={v:g}" for k, v in setting.items())
