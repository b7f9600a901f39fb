"""The protocol of an evaluation: how many N-way K-shot tasks, from which split, by which seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fewcal._utils.types import JSONObject
from fewcal.episodes import EpisodeSpec
from fewcal.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """How tasks are drawn: `tasks` N-way K-shot tasks with Q queries a class, from one split, by one seed.

    >>> Protocol(shot=5).spec.shot
    5
    >>> print(Protocol(tasks=600))
    600 tasks, 5-way 1-shot, 15 queries a class, split novel, seed 0
    """

    way: int = 5
    shot: int = 1
    query: int = 15
    tasks: int = 1000
    seed: int = 0
    split: str = "novel"
    replacement: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.tasks, bool) or not isinstance(self.tasks, int | np.integer) or self.tasks < 1:
            raise InputError(f"tasks is {self.tasks!r}; it must be an integer of at least 1")
        object.__setattr__(self, "tasks", int(self.tasks))
        _ = self.spec  # validates the rest

    def __str__(self) -> str:
        return (
            f"{self.tasks} tasks, {self.way}-way {self.shot}-shot, {self.query} queries a class, split {self.split}, "
            f"seed {self.seed}"
        )

    @property
    def spec(self) -> EpisodeSpec:
        """The same as the sampler wants it."""
        return EpisodeSpec(self.way, self.shot, self.query, self.seed, self.replacement)

    def to_dict(self) -> JSONObject:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)
