"""Figures of the paper, read from `published.json`: citations, apart from all that is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from fewcal.features.featureset import SPLITS
from fewcal.presets import PaperRow, paper_rows

# The paper's datasets, in the order of its tables.
DATASETS = {
    "dogs": "Stanford Dogs",
    "cub": "CUB",
    "mini": "miniImageNet",
    "mini2cub": "miniImageNet → CUB",
    "meta-tiered": "meta-tieredImageNet",
}
# Base, validation and novel classes of the paper's splits.
CLASSES = {
    "dogs": (70, 20, 30),
    "cub": (100, 50, 50),
    "mini": (64, 16, 20),
    "mini2cub": (64, 50, 50),
    "meta-tiered": (20, 6, 8),
}
# An accuracy in per cent, and what the paper prints after its ±.
Cited: TypeAlias = tuple[float, float | None]


@cache
def published() -> dict[str, Any]:
    """All of `published.json`.

    >>> published()["table1"]["GDC"]["cub/1"]
    [84.57, 0.48]
    """
    found: dict[str, Any] = json.loads(files("fewcal.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return found


def citation(table: str, label: str, dataset: str, shot: int) -> Cited | None:
    """What a table of the paper has in the row of this label for a dataset and a number of shots."""
    if table == "table7":
        number = label.removeprefix("candidate ")
        row = candidate(dataset, shot, int(number)) if number.isdigit() else None
        return None if row is None else (row.accuracy, row.plus_minus)
    found = published()[table].get(label, {}).get(f"{dataset}/{shot}")
    return None if found is None else (found[0], found[1])


def candidate(dataset: str, shot: int, number: int = 1) -> PaperRow | None:
    """One of the three candidates of table 7; None for datasets and shots that it does not have."""
    return next((r for r in paper_rows() if (r.dataset, r.shot, r.candidate) == (dataset, shot, number)), None)


def implied_distances(dataset: str, shot: int) -> list[float]:
    """Squared distances (eq. 6) that tables 8 and 9 imply, nearest first; none for other datasets.

    The tables list shares s = w/(1 + Σw) of w = 1/(1 + d^m), so that d = ((1 − Σs)/s − 1)^(1/m).

    >>> [round(implied_distances(*where)[0], 1) for where in (("mini", 1), ("mini", 5), ("meta-tiered", 1))]
    [1.4, 1.4, 12.4]
    """
    row, shares = candidate(dataset, shot), published()["weights"]["GDC"].get(f"{dataset}/{shot}", [])
    return [] if row is None else [((1 - sum(shares)) / share - 1) ** (1 / row.m) for share in shares]


def stand_in_note(dataset: str, classes: Mapping[str, int]) -> str:
    """How the classes of features, by split, differ from those of the paper's dataset; "" where they do not.

    >>> stand_in_note("meta-tiered", {"base": 17, "val": 6, "novel": 8})
    '17/6/8 classes for base/val/novel; meta-tieredImageNet has 20/6/8'
    >>> stand_in_note("cub", {"base": 100, "novel": 50}), stand_in_note("birds", {"base": 3})
    ('', '')
    """
    own = dict(zip(SPLITS, CLASSES.get(dataset, ()), strict=False))
    splits = [s for s in SPLITS if s in classes]
    if all(own.get(s, classes[s]) == classes[s] for s in splits):
        return ""
    here, paper = ("/".join(str(of[s]) for s in splits) for of in (classes, own))
    return f"{here} classes for {'/'.join(splits)}; {DATASETS[dataset]} has {paper}"
