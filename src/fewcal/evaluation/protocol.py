"""The protocol of an evaluation: how many few-shot tasks, of which shape, from which split, by which seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.episodes import EpisodeSpec
from fewcal.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """How tasks are drawn from the classes of a split: their number, and the fields of `EpisodeSpec`.

    >>> Protocol(shot=5).spec.shot
    5
    >>> print(Protocol(tasks=600))
    600 tasks, 5-way 1-shot, 15 queries a class, split novel, seed 0
    >>> print(Protocol(tasks=600, queries=75, dirichlet=2, outliers=0.25))
    600 tasks, 5-way 1-shot, 75 queries, class shares Dirichlet(2), 25% outliers, split novel, seed 0
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    tasks: int = 1000
    seed: int = 0
    split: str = "novel"
    replacement: bool = True
    min_way: int | None = None
    min_shot: int | None = None
    meta_dataset: bool = False
    queries: int | None = None
    dirichlet: float | None = None
    present: int | None = None
    outliers: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.tasks, bool) or not isinstance(self.tasks, int | np.integer) or self.tasks < 1:
            raise InputError(f"tasks is {self.tasks!r}; it must be an integer of at least 1")
        for name, value in {"tasks": int(self.tasks), **dataclasses.asdict(self.spec)}.items():
            object.__setattr__(self, name, value)  # as the specification checked it

    def __str__(self) -> str:
        return f"{self.tasks} tasks, {self.shape}, {self.pool}, split {self.split}, seed {self.seed}"

    @property
    def shape(self) -> str:
        """Ways and shots in words."""
        way = f"{self.way}-way" if self.min_way is None else f"{self.min_way}- to {self.way}-way"
        if self.meta_dataset:
            return f"{way}, shots as Meta-Dataset"
        return f"{way} {self.shot}-shot" if self.min_shot is None else f"{way} {self.min_shot}- to {self.shot}-shot"

    @property
    def pool(self) -> str:
        """The queries of a task in words."""
        number, of = (self.query, " a class") if self.queries is None else (self.queries, "")
        words = [f"{number} {'query' if number == 1 else 'queries'}{of}"]
        words += [] if self.dirichlet is None else [f"class shares Dirichlet({self.dirichlet:g})"]
        words += [] if self.present is None else [f"of {self.present} classes"]
        words += [f"{self.outliers:.0%} outliers"] if self.outliers else []
        return ", ".join(words)

    @property
    def spec(self) -> EpisodeSpec:
        """What the sampler takes."""
        return EpisodeSpec(**{f.name: getattr(self, f.name) for f in dataclasses.fields(EpisodeSpec)})

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)
