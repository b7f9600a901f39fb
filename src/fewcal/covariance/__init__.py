"""The calibrated covariance Σ' and its shrinkage (eq. 5 and 9)."""

from fewcal.covariance.calibrated import (
    COVARIANCES,
    OFF_DIAGONALS,
    PSD,
    SHARES,
    CalibratedCovariance,
    ShrunkCovariance,
    shares,
    shrink_covariance,
)

__all__ = [
    "COVARIANCES",
    "OFF_DIAGONALS",
    "PSD",
    "SHARES",
    "CalibratedCovariance",
    "ShrunkCovariance",
    "shares",
    "shrink_covariance",
]
