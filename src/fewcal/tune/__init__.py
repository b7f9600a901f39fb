"""Tuning: parameters of GDC searched with Optuna, by the paper's protocol or an honest one.

Names are loaded on first use: those of spaces and protocols are there without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewcal.tune.protocols import PROTOCOLS
    from fewcal.tune.result import Tuning
    from fewcal.tune.run import tune
    from fewcal.tune.search import Search
    from fewcal.tune.spaces import SPACES, search_space, space_names
    from fewcal.tune.workers import Snapshot

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
            raise AttributeError(f"module 'fewcal.tune' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"fewcal.tune.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
