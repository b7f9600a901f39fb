"""Small synthetic data: base classes of unequal size, and tasks near them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.methods import TaskBatch


def single_shots(x: torch.Tensor) -> TaskBatch:
    """A batch in which every point of `x (T, S, D)` is the one shot of a class of its own."""
    t, s, _ = x.shape
    return TaskBatch(x, torch.arange(s).expand(t, s), s, TaskRandom(0, range(t)))


@dataclass(frozen=True, eq=False)
class SmallData:
    """Base rows by class, and one batch of tasks from novel classes, all as raw float32 features."""

    base: list[np.ndarray]
    support: np.ndarray  # (T, S, D)
    labels: np.ndarray  # (T, S)
    query: np.ndarray  # (T, Q, D)
    query_labels: np.ndarray  # (T, Q)
    ways: int

    @property
    def x(self) -> np.ndarray:
        return np.concatenate(self.base)

    @property
    def y(self) -> np.ndarray:
        return np.repeat([f"class {i}" for i in range(len(self.base))], [len(rows) for rows in self.base])

    def bank(self, **settings: object) -> BaseBank:
        return BaseBank(**settings).fit(self.x, self.y)  # type: ignore[arg-type]

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.support), torch.from_numpy(self.labels), torch.from_numpy(self.query)


def make_world(
    seed: int = 0,
    *,
    signed: bool = False,
    dim: int = 12,
    classes: int = 9,
    rows: tuple[int, int] = (16, 30),
    tasks: int = 3,
    ways: int = 3,
    shots: int = 2,
    queries: int = 8,
    spread: float = 0.35,
) -> SmallData:
    """Classes are Gaussian clouds with a common covariance; without `signed` features go through a ReLU."""
    rng = np.random.default_rng(seed)
    mix = np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)) / np.sqrt(dim)

    def cloud(mean: np.ndarray, n: int) -> np.ndarray:
        x = mean + spread * rng.normal(size=(n, dim)) @ mix
        return (x if signed else np.maximum(x, 0)).astype(np.float32)

    base = [cloud(rng.normal(size=dim), int(rng.integers(*rows))) for _ in range(classes)]
    support, query = [], []
    for _ in range(tasks):
        means = rng.normal(size=(ways, dim))
        support.append(np.concatenate([cloud(m, shots) for m in means]))
        query.append(np.concatenate([cloud(m, queries) for m in means]))
    labels = np.tile(np.repeat(np.arange(ways), shots), (tasks, 1))
    return SmallData(
        base, np.stack(support), labels, np.stack(query), np.tile(np.repeat(np.arange(ways), queries), (tasks, 1)), ways
    )
