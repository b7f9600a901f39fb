"""GDC for scikit-learn users; names are loaded on first use, and scikit-learn with them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewcal.estimators.classifier import GDCClassifier
    from fewcal.estimators.gaussianizer import Gaussianizer

__all__ = ["GDCClassifier", "Gaussianizer"]

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one

    def __getattr__(name):
        if name == "GDCClassifier":
            from fewcal.estimators.classifier import GDCClassifier as found
        elif name == "Gaussianizer":
            from fewcal.estimators.gaussianizer import Gaussianizer as found
        else:
            raise AttributeError(f"module 'fewcal.estimators' has no attribute {name!r}")
        return found
