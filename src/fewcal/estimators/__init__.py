"""GDC for scikit-learn users; names are loaded on first use, and scikit-learn with them."""

from typing import TYPE_CHECKING

from fewcal._utils.lazy import lazy_names

if TYPE_CHECKING:
    from fewcal.estimators.classifier import GDCClassifier
    from fewcal.estimators.gaussianizer import Gaussianizer

__all__ = ["GDCClassifier", "Gaussianizer"]

_HOME = {"GDCClassifier": "fewcal.estimators.classifier", "Gaussianizer": "fewcal.estimators.gaussianizer"}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one
    __getattr__ = lazy_names(__name__, _HOME)
