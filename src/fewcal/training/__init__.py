"""Training of backbones on base classes, by the S2M2 recipe, with validation by few-shot accuracy."""

from fewcal.training.data import PixelSplit, load_pixels
from fewcal.training.run import train
from fewcal.training.settings import TrainSettings

__all__ = ["PixelSplit", "TrainSettings", "load_pixels", "train"]
