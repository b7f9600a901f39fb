"""fewcal: few-shot classification by distribution calibration.

Names are loaded on first use, so that the compute core imports with torch and NumPy alone.

>>> import fewcal
>>> fewcal.__version__.count(".")
2
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fewcal._version import __version__

# Public name -> module that defines it.
_EXPORTS = {
    "BaseBank": "fewcal.bank",
    "FactorGaussian": "fewcal.factor_gaussian",
    "GDCClassifier": "fewcal.estimators",
    "GDCParams": "fewcal.params",
    "GDCSampler": "fewcal.estimators.sampler",
    "Gaussianization": "fewcal.gaussianize",
    "Gaussianizer": "fewcal.estimators",
    "FeatureSet": "fewcal.features",
    "Protocol": "fewcal.evaluation",
    "evaluate": "fewcal.evaluation",
    "get_preset": "fewcal.presets",
    "list_presets": "fewcal.presets",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fewcal' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
