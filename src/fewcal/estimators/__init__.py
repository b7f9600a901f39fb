"""GDC for scikit-learn users."""

from fewcal.estimators.classifier import Gaussianizer, GDCClassifier

__all__ = ["GDCClassifier", "Gaussianizer"]
