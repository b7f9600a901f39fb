"""Evaluation: methods × tasks → accuracies of every task, the same tasks for every method."""

from fewcal.evaluation.protocol import Protocol
from fewcal.evaluation.results import Results
from fewcal.evaluation.run_folder import load_run
from fewcal.evaluation.runner import evaluate
from fewcal.evaluation.stats import Paired
from fewcal.evaluation.summary import STATISTICS, MethodSummary, Statistic, Summary

__all__ = [
    "STATISTICS",
    "MethodSummary",
    "Paired",
    "Protocol",
    "Results",
    "Statistic",
    "Summary",
    "evaluate",
    "load_run",
]
