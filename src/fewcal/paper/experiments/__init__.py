"""The registry: every table and figure of the paper as a named experiment.

>>> [name for name in EXPERIMENTS if name.startswith("table")]
['table1', 'table2', 'table3', 'table4']
>>> list(FIGURES)
['weights', 'tsne', 'mean-curve', 'drift', 'accuracy-n', 'alphas', 'effect-k']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.paper.experiments import (
    ablation,
    candidates,
    comparison,
    distances,
    drift,
    fidelity,
    mean_curve,
    off_diagonal,
    parameters,
    tsne,
    weights,
)
from fewcal.paper.registry import AnyExperiment, AnyFigure

# In the order of reports; a module that is added here is run, listed and shown.
_MODULES = (
    *(comparison, ablation, distances, candidates, weights, fidelity),
    *(tsne, mean_curve, drift, parameters, off_diagonal),
)
EXPERIMENTS: dict[str, AnyExperiment] = {e.name: e for module in _MODULES for e in module.EXPERIMENTS}
FIGURES: dict[str, AnyFigure] = {e.name: e.figure for e in EXPERIMENTS.values() if e.figure is not None}


def choose(names: Sequence[str]) -> list[AnyExperiment]:
    """Experiments by name; `all` are all of them.

    >>> [e.name for e in choose(["table4", "table1"])]
    ['table1', 'table4']
    """
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise InputError(f"experiment {name!r} is unknown{nearest_names(name, ['all', *EXPERIMENTS])}")
    return [e for e in EXPERIMENTS.values() if "all" in names or e.name in names]


class Description(TypedDict):
    """A row of the list of experiments."""

    name: str
    title: str
    source: str
    datasets: list[str]
    as_printed: str
    says: str
    cost: str


def describe() -> list[Description]:
    """One row for each experiment, for a list."""
    return [
        {
            "name": e.name,
            "title": e.title,
            "source": e.source,
            "datasets": list(e.datasets) or ["any"],
            "as_printed": "yes" if e.as_printed else "no" if e.variants else "no setting in it",
            "says": e.says,
            "cost": e.cost,
        }
        for e in EXPERIMENTS.values()
    ]
