"""What methods and heads agree on: a batch of tasks goes in, a head that scores queries comes out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom

T = TypeVar("T")


class Shared:
    """What was computed on one batch of tasks, so that methods with the same settings compute it once.

    `reused_seconds` is the time that entries took which were found ready: added to a method's own time it is what
    the method takes alone, in any order.

    Examples
    --------
    >>> shared = Shared()
    >>> shared.get("square", lambda: 3 * 3), shared.get("square", lambda: 1 // 0)
    (9, 9)
    >>> "square" in shared, len(shared)
    (True, 1)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.reused_seconds = 0.0
        self._clock = clock
        self._entries: dict[Hashable, tuple[object, float]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value under `key`, made now if it is not there; a key belongs to one `make`."""
        if key in self._entries:
            value, seconds = self._entries[key]
            self.reused_seconds += seconds
            return cast(T, value)
        began = self._clock()
        made = make()
        self._entries[key] = made, self._clock() - began
        return made

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """A batch of tasks as a method is fitted on it.

    Attributes
    ----------
    support : Tensor (T, S, D)
        Support points in the method's space.
    labels : Tensor (T, S) int64
        Their classes, 0..N−1, in any numbers of shots.
    n_classes : int
        N.
    random : TaskRandom
        Random numbers of each task.
    shared : Shared
        What other methods computed on the same batch; a new one if there are none.
    """

    support: Tensor
    labels: Tensor
    n_classes: int
    random: TaskRandom
    shared: Shared = field(default_factory=Shared)

    @property
    def shots(self) -> float:
        """Support points of a class, on average."""
        return self.labels.shape[1] / self.n_classes


class Head(ABC):
    """A fitted classifier for each task of a batch."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Scores `(T, Q, N)` of rows `x (T, Q, D)`; their softmax are probabilities."""

    def outlier(self, x: Tensor) -> Tensor | None:
        """How much rows `x (T, Q, D)` look like none of the classes, `(T, Q)`; None for a head without such scores."""
        return None

    @abstractmethod
    def to(self, device: torch.device | str) -> Head:
        """The head on `device`, with no more of the base classes than it needs; itself if it is there already."""
