"""Few-shot methods, one short file each, behind one interface over batched tasks."""

from __future__ import annotations

from typing import Any

from fewcal.errors import InputError
from fewcal.methods.base import Head, Method
from fewcal.methods.cosine import CosineClassifier
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC
from fewcal.methods.logistic import GaussianizedLogisticRegression, LogisticRegression
from fewcal.methods.ncm import NearestCentroid
from fewcal.methods.simpleshot import SimpleShot
from fewcal.params import GDCParams, nearest_names

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        NearestCentroid,
        SimpleShot,
        LogisticRegression,
        GaussianizedLogisticRegression,
        CosineClassifier,
        DC,
        GDC,
    )
}

__all__ = ["METHODS", "Head", "Method", "make_method"]


def make_method(name: str, preset: str | GDCParams | None = None, **settings: Any) -> Method:
    """A method by its name, with parameters; `preset` is for GDC.

    >>> make_method("dc", k=4).settings["k"]
    4
    """
    if name not in METHODS:
        raise InputError(f"method {name!r} is unknown{nearest_names(name, METHODS)}")
    if name == "gdc":
        from fewcal.presets import get_preset

        params = preset if isinstance(preset, GDCParams) else get_preset(preset or "default")
        return GDC(params.with_changes(**settings), cap_k="k" not in settings)
    if preset is not None:
        raise InputError(f"presets are for gdc; method {name!r} takes its own parameters")
    try:
        return METHODS[name](**settings)
    except TypeError:
        known = METHODS[name]().settings
        wrong = [s for s in settings if s not in known]
        raise InputError(f"method {name!r} has no parameter {wrong[0]!r}{nearest_names(wrong[0], known)}") from None
