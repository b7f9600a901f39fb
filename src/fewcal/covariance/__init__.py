"""The calibrated covariance Σ' and its shrinkage (eq. 5 and 9)."""

from fewcal.covariance.base import BaseClasses, CovarianceMode
from fewcal.covariance.calibrated import COVARIANCES, OFF_DIAGONALS, SHARES, CalibratedCovariance, shares
from fewcal.covariance.shrinkage import PSD, ShrunkCovariance, shrink_covariance

__all__ = [
    "COVARIANCES",
    "OFF_DIAGONALS",
    "PSD",
    "SHARES",
    "BaseClasses",
    "CalibratedCovariance",
    "CovarianceMode",
    "ShrunkCovariance",
    "shares",
    "shrink_covariance",
]
