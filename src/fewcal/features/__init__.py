"""Feature sets: the numbers an extractor gave for the base, validation and novel classes, and their files."""

from fewcal.features.featureset import FeatureSet, FeatureSplit, load_split

__all__ = ["FeatureSet", "FeatureSplit", "load_split"]
