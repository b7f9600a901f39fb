"""Estimators for scikit-learn users."""

from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.estimators.gaussianizer import Gaussianizer
from fewcal.estimators.gdc import GDCClassifier

__all__ = ["FewShotClassifier", "GDCClassifier", "Gaussianizer"]
