"""Training of backbones on base classes, by the S2M2 recipe, with validation by few-shot accuracy."""

from fewcal.features.training.data import PixelSplit, load_pixels
from fewcal.features.training.loop import train
from fewcal.features.training.settings import TrainSettings

__all__ = ["PixelSplit", "TrainSettings", "load_pixels", "train"]
