"""Tuning: parameters of GDC searched with Optuna, by the paper's protocol or an honest one.

Names are loaded on first use: those of spaces and protocols are there without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewcal.tuning.protocols import PROTOCOLS
    from fewcal.tuning.result import Tuning
    from fewcal.tuning.run import tune
    from fewcal.tuning.search import Search
    from fewcal.tuning.spaces import SPACES, search_space, space_names
    from fewcal.tuning.workers import Snapshot

__all__ = ["PROTOCOLS", "SPACES", "Search", "Snapshot", "Tuning", "search_space", "space_names", "tune"]

_HOME = {
    "PROTOCOLS": "protocols",
    "SPACES": "spaces",
    "Search": "search",
    "Snapshot": "workers",
    "Tuning": "result",
    "search_space": "spaces",
    "space_names": "spaces",
    "tune": "run",
}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for a public one

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module 'fewcal.tuning' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"fewcal.tuning.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
