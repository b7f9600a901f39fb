"""The registry: every table and figure of the paper as a named experiment, and which one computes each.

>>> [name for name in EXPERIMENTS if name.startswith("table")]
['table1', 'table2', 'table3', 'table4', 'table5', 'table7']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fewcal._utils.names import nearest_names
from fewcal.errors import InputError
from fewcal.paper import comparisons, curves, fidelity, points, shares
from fewcal.paper.blocks import Experiment

# In the order of reports.
EXPERIMENTS: dict[str, Experiment] = {
    e.name: e for module in (comparisons, shares, points, curves, fidelity) for e in module.EXPERIMENTS
}


class Item(NamedTuple):
    """A table, figure or passage of the paper, what computes it ("": nothing), its datasets there, and a note."""

    name: str
    experiment: str
    datasets: tuple[str, ...] = ()
    note: str = ""


ITEMS = (
    *(Item(f"Table {i}", f"table{i}") for i in range(1, 6)),
    Item("Table 6", "", note="the categories of meta-tieredImageNet, which `fewcal data prepare` follows"),
    Item("Table 7", "table7"),
    Item("Table 8", "weights", ("meta-tiered",)),
    Item("Table 9", "weights", ("mini",)),
    Item("Figure 1", "tsne"),
    Item("Figure 2, left", "mean-curve"),
    Item("Figure 2, right", "drift"),
    Item("Figure 3, left", "accuracy-n"),
    Item("Figure 3, right", "alphas"),
    Item("Figure 4", "tsne"),
    Item("Figure 5", "weights"),
    Item("Section 4.5, effect of k", "effect-k"),
    Item("Appendices A and E, off-diagonal sizes", "off-diagonal"),
)


def choose(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name; `all` are all of them.

    >>> [e.name for e in choose(["table4", "table1"])]
    ['table1', 'table4']
    """
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise InputError(f"experiment {name!r} is unknown{nearest_names(name, ['all', *EXPERIMENTS])}")
    return [e for e in EXPERIMENTS.values() if "all" in names or e.name in names]


def describe() -> list[dict[str, str | list[str]]]:
    """One row for each experiment, for a list."""
    return [
        {
            "name": e.name,
            "title": e.title,
            "source": e.source,
            "datasets": list(e.datasets) or ["any"],
            "variants": [v.name for v in e.variants],
            "claim": e.claim,
            "cost": e.cost,
        }
        for e in EXPERIMENTS.values()
    ]
