"""Training of backbones on base classes, by the S2M2 recipe, with validation by few-shot accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fewcal._utils.lazy import lazy_names

if TYPE_CHECKING:
    from fewcal.training.data import PixelSplit, load_pixels
    from fewcal.training.run import train
    from fewcal.training.settings import TrainSettings

__all__ = ["PixelSplit", "TrainSettings", "load_pixels", "train"]

_HOME = {
    "PixelSplit": "fewcal.training.data",
    "TrainSettings": "fewcal.training.settings",
    "load_pixels": "fewcal.training.data",
    "train": "fewcal.training.run",
}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one
    __getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
