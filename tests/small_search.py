"""A search of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewcal.tuning import Search, Tuning, tune
from small_features import feature_set

QUICK = Search(trials=8, tasks=20, query=5, final_tasks=20)


def quick(out: Path, search: Search = QUICK, **more: Any) -> Tuning:
    return tune(feature_set(), search, out=out, **({"plots": False} | more))
