"""The paper's own figures, read from `published.json`: citations, never mixed up with what was measured."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

# The paper's datasets as people read them; features of others bear the name of their folder.
DATASETS = {
    "mini": "miniImageNet",
    "cub": "CUB",
    "dogs": "Stanford Dogs",
    "mini2cub": "miniImageNet → CUB",
    "meta-tiered": "meta-tieredImageNet",
}


@cache
def published() -> dict[str, Any]:
    """All of them, by table.

    >>> published()["table1"]["rows"][-1]["values"]["cub/1"]
    {'accuracy': 84.57, 'plus_minus': 0.48}
    """
    found: dict[str, Any] = json.loads(files("fewcal.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return found


def dataset_title(dataset: str) -> str:
    """A dataset's name for readers.

    >>> dataset_title("cub"), dataset_title("birds")
    ('CUB', 'birds')
    """
    return DATASETS.get(dataset, dataset)


def candidate(dataset: str, shot: int, number: int = 1) -> dict[str, Any] | None:
    """One of the three candidates of appendix F, if the paper has the dataset."""
    for row in published()["candidates"]["rows"]:
        if (row["dataset"], row["shot"], row["candidate"]) == (dataset, shot, number):
            return dict(row)
    return None
