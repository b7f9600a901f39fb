"""Tuning: parameters of GDC searched with Optuna, by the paper's protocol or an honest one.

Names are loaded on first use: those of spaces and protocols are there without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fewcal._utils.lazy import lazy_names

if TYPE_CHECKING:
    from fewcal.tuning.protocols import PROTOCOLS
    from fewcal.tuning.result import Tuning
    from fewcal.tuning.run import tune
    from fewcal.tuning.search import Search
    from fewcal.tuning.spaces import SPACES, search_space, space_names
    from fewcal.tuning.workers import Snapshot

__all__ = ["PROTOCOLS", "SPACES", "Search", "Snapshot", "Tuning", "search_space", "space_names", "tune"]

_HOME = {
    "PROTOCOLS": "fewcal.tuning.protocols",
    "SPACES": "fewcal.tuning.spaces",
    "Search": "fewcal.tuning.search",
    "Snapshot": "fewcal.tuning.workers",
    "Tuning": "fewcal.tuning.result",
    "search_space": "fewcal.tuning.spaces",
    "space_names": "fewcal.tuning.spaces",
    "tune": "fewcal.tuning.run",
}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one
    __getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
