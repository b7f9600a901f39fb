"""GDC for scikit-learn users."""

from fewcal.estimators.classifier import GDCClassifier
from fewcal.estimators.gaussianizer import Gaussianizer

__all__ = ["GDCClassifier", "Gaussianizer"]
