"""A search of a second, and its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from fewcal.tuning import Search, Tuning, tune
from fewcal.tuning.search import SearchData
from fewcal.tuning.trials import TrialRunner
from small_features import feature_set

QUICK = Search(trials=8, tasks=20, query=5, heads=("closed_form",), finalists=3, final_tasks=20)


def quick(out: Path, search: Search = QUICK, **more: Any) -> Tuning:
    return tune(feature_set(), search, out=out, **({"plots": False} | more))


def runner(search: Search = QUICK) -> TrialRunner:
    return SearchData.of(feature_set(), search).runner(search, "cpu")


def in_memory(search: Search) -> Any:
    return optuna.create_study(
        direction="maximize", pruner=search.rules.pruning.pruner(), sampler=search.rules.sampler(0)
    )
