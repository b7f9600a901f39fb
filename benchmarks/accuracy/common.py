"""What the accuracy benchmarks share: feature folders, cells (way x shot), paired differences, recorded tables."""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.evaluation import Protocol
from fewcal.evaluation.engine import Engine, Job
from fewcal.evaluation.stats import calibration_error, paired
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import Method

sys.path.insert(0, str(Path(__file__).parent.parent))
from record import Table, add_record_option  # noqa: F401

QUERIES = 15
# Support rows of a task up to which all tasks are run; beyond, fewer, so that a cell costs about the same.
_FULL_SUPPORT = 25


def feature_folders(*paths: Path) -> list[Path]:
    """The feature folders that `paths` are or hold, by name within each."""
    found: list[Path] = []
    for path in paths:
        inside = path.iterdir() if path.is_dir() else ()
        here = [path] if (path / "base.npz").is_file() else sorted(p for p in inside if (p / "base.npz").is_file())
        if not here:
            raise SystemExit(f"no feature folders in {path}: each needs base.npz, val.npz and novel.npz")
        found += here
    return found


@dataclass(frozen=True)
class Cell:
    """N ways and K shots.

    >>> str(Cell(20, 5)), Cell(5, 1).tasks(1000), Cell(20, 5).tasks(1000), Cell(20, 20).tasks(1000)
    ('20x5', 1000, 250, 62)
    """

    way: int
    shot: int

    def __str__(self) -> str:
        return f"{self.way}x{self.shot}"

    def tasks(self, most: int) -> int:
        """How many tasks to run: fewer where the support is large."""
        return max(min(most, most * _FULL_SUPPORT // (self.way * self.shot)), 1)

    def fits(self, split: FeatureSplit) -> bool:
        """Are there classes and rows enough for such tasks?"""
        rows = split.rows_per_class()
        return len(rows) >= self.way and int(rows.min()) >= self.shot + QUERIES


ALL_CELLS = tuple(Cell(way, shot) for way in (5, 20) for shot in (1, 5, 10, 20))


def parse_cells(text: str) -> list[Cell]:
    """Cells of a command line: `5x1,20x5` or `all`.

    >>> [str(cell) for cell in parse_cells("5x1,20x5")], len(parse_cells("all"))
    (['5x1', '20x5'], 8)
    """
    if text == "all":
        return list(ALL_CELLS)
    cells = []
    for part in text.split(","):
        way, cross, shot = part.strip().partition("x")
        if not (cross and way.isdigit() and shot.isdigit() and int(way) > 1 and int(shot) > 0):
            raise InputError(
                f"--cells has {part!r}; write cells as WAYxSHOT with commas between them, such as 5x1,20x5"
            )
        cells.append(Cell(int(way), int(shot)))
    return cells


@dataclass(frozen=True)
class Points:
    """A mean in points of accuracy with the half-width of its 95% interval.

    >>> print(Points(1.234, 0.5))
    +1.23 ± 0.50
    """

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if math.isnan(self.half) else f" ± {self.half:.2f}")


def difference(a: np.ndarray, b: np.ndarray) -> Points:
    """a − b of accuracies `(T,)` on the same tasks; where one has fewer, those it has."""
    n = min(len(a), len(b))
    found = paired(a[:n], b[:n])
    return Points(100 * found.difference, 100 * found.ci95)


def average(points: Iterable[Points]) -> Points:
    """The mean of independent differences, such as those of several cells, each with the same weight.

    >>> print(average([Points(1.0, 0.3), Points(3.0, 0.4)]))
    +2.00 ± 0.25
    """
    each = list(points)
    return Points(
        sum(p.mean for p in each) / len(each),
        math.sqrt(sum(p.half**2 for p in each if p.half == p.half)) / len(each),
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """Accuracies `(T,)` of a method on the tasks of a cell, in 0..1, and its calibration error."""

    accuracy: np.ndarray
    ece: float


def run_cells(
    features: FeatureSet,
    cells: Sequence[Cell],
    methods: Mapping[str, Method],
    tasks: int,
    seed: int,
    split: str,
    limits: Mapping[str, int] | None = None,
) -> Iterator[tuple[Cell, dict[str, Outcome]]]:
    """Run methods on the same tasks of each cell that fits, with one bank for all; slow ones on the first `limits`."""
    base, rows = features.base, features.split(split)
    bank = BaseBank().fit(base.features, base.require_labels())
    for cell in (c for c in cells if c.fits(rows)):
        count = cell.tasks(tasks)
        spec = Protocol(cell.way, cell.shot, QUERIES, count, seed, split=split).spec
        job = Job(None, rows.features, rows.require_labels(), {}, spec, None, "cpu", uuid.uuid4().hex)
        engine, found = Engine(job, bank), dict[str, Outcome]()
        for name, method in methods.items():
            block = engine.with_methods({name: method}).run(0, min(count, (limits or {}).get(name, count)))
            right = block.correct[name].sum(axis=1) / (cell.way * QUERIES)
            found[name] = Outcome(right, calibration_error(block.bins[name]))
        yield cell, found
