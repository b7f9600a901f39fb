"""Made-up few-shot worlds for golden logits, by NumPy alone: they stay the same whatever becomes of fewcal.

Numbers are rounded to multiples of 2⁻¹⁰, so that they are the same on every processor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

WAYS = 5
SHOTS = (1, 3, 5)
TASKS = 2
QUERIES = 6
_GRID = 1024

Cloud = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True, eq=False)
class World:
    """Raw float32 rows of base classes, and tasks of classes that are not among them.

    The first task is of classes like the base classes. Those of the second differ in directions of their own.
    """

    base: np.ndarray  # (C·P, D)
    base_labels: np.ndarray  # (C·P,)
    support: np.ndarray  # (T, N, most shots, D)
    query: np.ndarray  # (T, Q, D)

    def support_of(self, shots: int) -> tuple[np.ndarray, np.ndarray]:
        """The first examples of each class, `(T, N·K, D)`, and their labels `(T, N·K)`."""
        rows = self.support[:, :, :shots].reshape(TASKS, WAYS * shots, -1)
        return rows, np.tile(np.repeat(np.arange(WAYS), shots), (TASKS, 1))


def heavy_tailed() -> World:
    """Features ≥ 0 with zeros and a long tail, as behind a ReLU: 64 base classes of eight kinds, 48 features."""
    rng = np.random.default_rng(481)
    dim, kinds = 48, 8
    kind = rng.normal(size=(kinds, dim))
    mix = np.eye(dim) + 0.6 * rng.normal(size=(dim, dim)) / dim**0.5

    def cloud(centre: np.ndarray, n: int) -> np.ndarray:
        noise = rng.normal(size=(n, dim)) @ mix * rng.chisquare(5, size=(n, 1)) ** 0.5 / 5**0.5
        return 0.3 * np.maximum(centre + 0.6 * noise, 0) ** 2

    own = [kind[c % kinds] + 0.8 * rng.normal(size=dim) for c in range(64)]
    like = [kind[c] + 0.8 * rng.normal(size=dim) for c in range(WAYS)]
    unlike = [0.7 * rng.normal(size=dim) for _ in range(WAYS)]
    return _world(cloud, own, 8, [like, unlike])


def signed() -> World:
    """Features of both signs around an offset, fewer directions than features: 18 base classes, 40 features."""
    rng = np.random.default_rng(402)
    dim, rank = 40, 10
    common, known, other = 0.3 * rng.normal(size=dim), rng.normal(size=(rank, dim)), rng.normal(size=(3, dim))
    scales = np.geomspace(0.2, 1.2, dim)

    def cloud(centre: np.ndarray, n: int) -> np.ndarray:
        return 0.2 * (centre + rng.normal(size=(n, dim)) * scales + 0.3 * rng.normal(size=(n, rank)) @ known)

    def centre(directions: np.ndarray, length: float) -> np.ndarray:
        return common + length * rng.normal(size=len(directions)) @ directions

    own = [centre(known, 0.6) for _ in range(18)]
    like = [centre(known, 0.6) for _ in range(WAYS)]
    unlike = [centre(other, 1.0) for _ in range(WAYS)]
    return _world(cloud, own, 12, [like, unlike])


def _world(cloud: Cloud, own: list[np.ndarray], rows: int, tasks: list[list[np.ndarray]]) -> World:
    base = np.concatenate([cloud(mean, rows) for mean in own])
    support = np.stack([np.stack([cloud(mean, max(SHOTS)) for mean in means]) for means in tasks])
    query = np.stack([np.concatenate([cloud(means[i % WAYS], 1) for i in range(QUERIES)]) for means in tasks])
    return World(_rounded(base), np.repeat(np.arange(len(own)), rows), _rounded(support), _rounded(query))


def _rounded(x: np.ndarray) -> np.ndarray:
    return (np.round(x * _GRID) / _GRID).astype(np.float32)


WORLDS = (heavy_tailed(), signed())


def worlds_checksum() -> str:
    """Eight hexadecimal digits that change with any number of any world."""
    crc = 0
    for world in WORLDS:
        for array in (world.base, world.support, world.query):
            crc = zlib.crc32(np.ascontiguousarray(array), crc)
    return f"{crc:08x}"
