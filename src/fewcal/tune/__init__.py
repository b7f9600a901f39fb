"""Tuning: parameters of GDC searched with Optuna, by the paper's protocol or an honest one."""

from fewcal.tune.run import Tuning, tune
from fewcal.tune.search import Search
from fewcal.tune.spaces import space_names
from fewcal.tune.workers import Snapshot

__all__ = ["Search", "Snapshot", "Tuning", "space_names", "tune"]
