"""Processes of their own that begin at once: they come from one that has loaded what is heavy."""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *("fewcal.apply.studio.server", "fewcal.apply.studio.app", "fewcal.estimators.classifier"),
        *("fewcal.tuning", "optuna", "hypothesis", "pytest"),
        "torch",  # which modules of fewcal load when they use it first
    ]
)
