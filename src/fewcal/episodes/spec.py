"""The shape of tasks: ways, shots, queries, and how they are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fewcal.errors import InputError

# Meta-Dataset's limits: support examples of a task, and rows of a class that count for it.
META_SUPPORT, META_CLASS = 500, 100
_LOWEST = {"way": 2, "shot": 1, "query": 1, "seed": 0, "min_way": 2, "min_shot": 1, "queries": 1, "present": 1}


@dataclass(frozen=True)
class EpisodeSpec:
    """The shape of a task and the seed of the list.

    Parameters
    ----------
    way, shot, query : int
        Classes of a task, support examples of a class, queries of a class (on average where shares differ).
    seed : int
    replacement : bool
        Whether tasks may share rows.
    min_way : int or None
        Draw the number of classes from `min_way` to `way`, as far as there are classes; None for `way`.
    min_shot : int or None
        Draw the support examples of each class from `min_shot` to `shot`; None for `shot`.
    meta_dataset : bool
        Draw the size of the support and its class shares by the rule of Meta-Dataset, in place of `shot`.
    queries : int or None
        Queries of a task in all, in place of `query` for each class.
    dirichlet : float or None
        Concentration α of the class shares of the queries; None for equal shares. Shares are rounded to whole queries;
        those that a class has no rows for go to the others.
    present : int or None
        Number of classes that have queries, chosen at random; None for all.
    outliers : float
        Share of the queries that belong to no class of the task.

    Examples
    --------
    >>> EpisodeSpec(way=5, shot=1).rows_per_class
    16
    >>> EpisodeSpec(queries=75, dirichlet=2.0, outliers=0.25).query_counts(5)
    (56, 19)
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    seed: int = 0
    replacement: bool = True
    min_way: int | None = None
    min_shot: int | None = None
    meta_dataset: bool = False
    queries: int | None = None
    dirichlet: float | None = None
    present: int | None = None
    outliers: float = 0.0

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is None and getattr(EpisodeSpec, name) is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InputError(f"{name} is {value!r}; it must be an integer")
            if value < low:
                raise InputError(f"{name} is {value}; it must be at least {low}")
            object.__setattr__(self, name, int(value))
        for name in ("replacement", "meta_dataset"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.seed >= 2**63:
            raise InputError(f"seed is {self.seed}; it must be below 2**63")
        for name, high in (("min_way", self.way), ("min_shot", self.shot), ("present", self.ways[0])):
            if (value := getattr(self, name)) is not None and value > high:
                raise InputError(f"{name} is {value}; it must be at most {high}")
        if self.dirichlet is not None and not (_is_number(self.dirichlet) and 0.1 <= self.dirichlet < math.inf):
            raise InputError(f"dirichlet is {self.dirichlet!r}; it must be at least 0.1, or None for equal shares")
        share = _is_number(self.outliers) and 0 <= self.outliers < 1
        if not share or self.query_counts(self.ways[0])[0] < 1:
            raise InputError(f"outliers is {self.outliers!r}; it must be a share that leaves queries to the classes")
        if not (self.replacement or self.is_balanced):
            raise InputError("replacement=False needs balanced tasks; leave the other settings out")

    @property
    def is_balanced(self) -> bool:
        """Whether every class of every task has `shot` support examples and `query` queries."""
        varied = (self.min_way, self.min_shot, self.queries, self.dirichlet, self.present)
        return varied == (None,) * 5 and not self.meta_dataset and self.outliers == 0

    @property
    def ways(self) -> tuple[int, int]:
        """The fewest and the most classes of a task."""
        return self.min_way or self.way, self.way

    def query_counts(self, way: int) -> tuple[int, int]:
        """Queries of a task of so many classes: of its own classes, and of others."""
        total = self.queries or way * self.query
        outliers = math.floor(total * self.outliers + 0.5)
        return total - outliers, outliers

    @property
    def class_queries(self) -> int:
        """Queries of a class by equal shares, rounded up."""
        low, high = self.ways
        return max(-(-self.query_counts(n)[0] // (self.present or n)) for n in range(low, high + 1))

    @property
    def rows_per_class(self) -> int:
        """K + Q, the rows that each class must have."""
        return self.class_queries + (1 if self.meta_dataset else self.shot)

    @property
    def max_support(self) -> int:
        """The most support examples of a task."""
        return META_SUPPORT if self.meta_dataset else self.way * self.shot


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
