"""The paper's own figures, read from `published.json`: citations, never mixed up with what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import NotRequired, TypedDict

from fewcal.features.featureset import SPLITS

# The paper's datasets as people read them; features of others bear the name of their folder.
DATASETS = {
    "mini": "miniImageNet",
    "cub": "CUB",
    "dogs": "Stanford Dogs",
    "mini2cub": "miniImageNet → CUB",
    "meta-tiered": "meta-tieredImageNet",
}
# Base, validation and novel classes of the paper's splits.
CLASSES = {
    "mini": (64, 16, 20),
    "cub": (100, 50, 50),
    "dogs": (70, 20, 30),
    "mini2cub": (64, 50, 50),
    "meta-tiered": (20, 6, 8),
}
_STAND_INS: ContextVar[frozenset[str]] = ContextVar("stand_ins", default=frozenset())


class Accuracy(TypedDict):
    """In per cent; `plus_minus` as printed, which is no half-width of a 95% interval: see the `note` of the file."""

    accuracy: float
    plus_minus: float


class ComparedMethod(TypedDict):
    """A row of tables 1 to 3; values by "dataset/shots"."""

    method: str
    values: dict[str, Accuracy]


class DCSetting(TypedDict):
    """DC as the paper tuned it for a dataset."""

    dataset: str
    shot: int
    k: int
    alpha: float
    beta: float
    n: int


class Comparison(TypedDict):
    """Tables 1 to 3; the last also says how DC was tuned."""

    source: str
    tasks: int
    rows: list[ComparedMethod]
    dc: NotRequired[list[DCSetting]]


class AblationStep(TypedDict):
    """A row of table 4; `setting` is what `fixed` and `tuned` say, as values."""

    step: str
    fixed: str
    tuned: str
    accuracy: float
    plus_minus: float
    gain: float | None
    setting: dict[str, float]


class WithoutK(TypedDict):
    """All tuned, with all base classes for k."""

    accuracy: float
    source: str
    setting: dict[str, float]


class Ablation(TypedDict):
    """Table 4."""

    rows: list[AblationStep]
    without_k: WithoutK


class Distance(TypedDict):
    """A row of table 5."""

    distance: str
    accuracy: float
    m: float


class Distances(TypedDict):
    """Table 5; `note` says what it does not tell."""

    note: str
    rows: list[Distance]


class Candidate(TypedDict):
    """A row of table 7: parameters and accuracy."""

    dataset: str
    shot: int
    candidate: int
    accuracy: float
    plus_minus: float
    m: float
    k: int
    alpha1: float
    alpha2_ratio: float
    beta: float
    n: int


class Candidates(TypedDict):
    """Table 7."""

    rows: list[Candidate]


class WeightList(TypedDict):
    """A row of tables 8 and 9: shares of the base classes, nearest first."""

    dataset: str
    method: str
    shot: int
    values: list[float]


class Weights(TypedDict):
    """Tables 8 and 9."""

    rows: list[WeightList]


class Published(TypedDict):
    """`published.json`."""

    paper: str
    note: str
    table1: Comparison
    table2: Comparison
    table3: Comparison
    table4: Ablation
    distances: Distances
    candidates: Candidates
    weights: Weights


@cache
def published() -> Published:
    """All of them, by table.

    >>> published()["table1"]["rows"][-1]["values"]["cub/1"]
    {'accuracy': 84.57, 'plus_minus': 0.48}
    """
    found: Published = json.loads(files("fewcal.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return found


def dataset_title(dataset: str) -> str:
    """A dataset's name for readers; inside `stand_ins` it says so of features that have other classes than the paper's.

    >>> dataset_title("cub"), dataset_title("birds")
    ('CUB', 'birds')
    """
    return DATASETS.get(dataset, dataset) + " (stand-in)" * (dataset in _STAND_INS.get())


def stand_in_words(dataset: str, classes: Mapping[str, int]) -> str:
    """How the classes of a feature set, by split, differ from those of the paper's dataset; "" where they do not.

    >>> stand_in_words("meta-tiered", {"base": 17, "val": 6, "novel": 8})
    '17 base, 6 val and 8 novel classes; the paper has 20, 6 and 8'
    >>> stand_in_words("cub", {"base": 100, "novel": 50}), stand_in_words("birds", {"base": 3})
    ('', '')
    """
    own = dict(zip(SPLITS, CLASSES.get(dataset, ()), strict=False))
    if all(own.get(split, count) == count for split, count in classes.items()):
        return ""
    told = [f"{classes[split]} {split}" for split in SPLITS if split in classes]
    paper = [str(own[split]) for split in SPLITS if split in classes]
    return f"{_and(told)} classes; the paper has {_and(paper)}"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


@contextmanager
def stand_ins(classes: Mapping[str, Mapping[str, int]]) -> Iterator[None]:
    """Titles inside say which of these feature sets, with the classes of their splits, are stand-ins.

    >>> with stand_ins({"meta-tiered": {"base": 17}, "cub": {"base": 100}}):
    ...     dataset_title("meta-tiered"), dataset_title("cub")
    ('meta-tieredImageNet (stand-in)', 'CUB')
    """
    found = frozenset(dataset for dataset, own in classes.items() if stand_in_words(dataset, own))
    token = _STAND_INS.set(found)
    try:
        yield
    finally:
        _STAND_INS.reset(token)


def candidate(dataset: str, shot: int, number: int = 1) -> Candidate | None:
    """One of the three candidates of appendix F, if the paper has the dataset."""
    for row in published()["candidates"]["rows"]:
        if (row["dataset"], row["shot"], row["candidate"]) == (dataset, shot, number):
            return row
    return None


def implied_distances(dataset: str, shot: int) -> list[float]:
    """Squared distances (eq. 6) that tables 8 and 9 imply, nearest first; none for datasets that they do not have.

    The tables list shares s = w/(1 + Σw) of w = 1/(1 + d^m), so d = ((1 − Σs)/s − 1)^(1/m) with the m of the dataset.

    >>> [round(implied_distances(*where)[0], 1) for where in (("mini", 1), ("mini", 5), ("meta-tiered", 1))]
    [1.4, 1.4, 12.4]
    """
    row = candidate(dataset, shot)
    for listed in published()["weights"]["rows"]:
        if row is not None and (listed["dataset"], listed["method"], listed["shot"]) == (dataset, "GDC", shot):
            rest = 1 - sum(listed["values"])
            return [(rest / share - 1) ** (1 / row["m"]) for share in listed["values"]]
    return []
