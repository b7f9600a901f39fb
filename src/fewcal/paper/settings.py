"""The paper's settings, and the scale that they are studied at.

They assume features at the paper's scale, about 1.4 from the nearest base class; w = 1/(1 + d^m) and 200 epochs of SGD
both depend on it. So the paper's settings are measured twice: on features as they come, and "at unit scale", centred
and L2-normalised after the power transform.
"""

from __future__ import annotations

from collections.abc import Mapping

from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import get_preset, list_presets

UNIT = {"center": True, "l2": True}
SCALES: dict[str, dict[str, bool]] = {"features as they come": {}, "unit scale": UNIT}


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


def setting_text(setting: Mapping[str, float]) -> str:
    """A setting in the paper's letters.

    >>> setting_text({"beta": 0.5, "k": 4})
    'β=0.5, k=4'
    """
    names = {"beta": "β", "alpha1": "α1", "alpha2_ratio": "α2/α1", "delta": "δ"}
    return ", ".join(f"{names.get(k, k)}={v:g}" for k, v in setting.items())
