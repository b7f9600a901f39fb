"""Estimators for scikit-learn users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fewcal.estimators.few_shot import FewShotClassifier
from fewcal.estimators.gaussianizer import Gaussianizer
from fewcal.estimators.gdc import GDCClassifier
from fewcal.estimators.saved import read_meta

if TYPE_CHECKING:
    import torch

    from fewcal._utils.types import StrPath
    from fewcal.estimators.base import TaskClassifier

__all__ = ["FewShotClassifier", "GDCClassifier", "Gaussianizer", "load_classifier"]


def load_classifier(path: StrPath, device: str | torch.device | None = None) -> TaskClassifier:
    """Read a classifier of either kind."""
    gdc = read_meta(Path(path)).get("kind") == GDCClassifier.file_kind
    return GDCClassifier.load(path, device=device) if gdc else FewShotClassifier.load(path, device=device)
