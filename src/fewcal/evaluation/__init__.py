"""Evaluation: methods × tasks → accuracies of every task, the same tasks for every method."""

from fewcal.evaluation.runner import Protocol, Results, evaluate

__all__ = ["Protocol", "Results", "evaluate"]
