"""Tuning: parameters of HGDC or GDC searched with Optuna on validation classes, and compared with the default."""

from fewcal.methods.settings_file import load_settings
from fewcal.tuning.objective import Objective, make_objective
from fewcal.tuning.result import Tuning
from fewcal.tuning.run import tune
from fewcal.tuning.search import PROTOCOLS, Search
from fewcal.tuning.spaces import SPACES, Space, search_space

__all__ = [
    "PROTOCOLS",
    "SPACES",
    "Objective",
    "Search",
    "Space",
    "Tuning",
    "load_settings",
    "make_objective",
    "search_space",
    "tune",
]
