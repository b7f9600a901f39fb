"""Tuning: parameters of GDC searched with Optuna, by the paper's protocol or an honest one."""

from fewcal.tuning.protocols import PROTOCOLS
from fewcal.tuning.result import Tuning
from fewcal.tuning.run import tune
from fewcal.tuning.search import Search
from fewcal.tuning.spaces import SPACES, search_space, space_names
from fewcal.tuning.workers import Snapshot

__all__ = ["PROTOCOLS", "SPACES", "Search", "Snapshot", "Tuning", "search_space", "space_names", "tune"]
