"""Features of an unfinished extraction: `.npz` files in a hidden folder beside the target.

Each file holds the batches of some seconds and the run that they belong to. A batch counts where its file is whole:
what a kill loses or a disk damages is computed again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.npz import read_npz
from fewcal._utils.text import one_line
from fewcal.errors import InputError

# Time between two files: what a kill costs at worst.
SAVE_SECONDS = 5.0


class Parts:
    """Rows `(R, D)` that come in batches of fixed borders.

    Attributes
    ----------
    features : `(R, D)`, zeros where no batch is yet
    bad : why an item has no features, by its row
    batch : rows of a batch; resuming takes that of the first start
    """

    def __init__(self, target: Path, identity: Mapping[str, object], shape: tuple[int, int], dtype: str) -> None:
        self.target, self.identity = target, dict(identity)
        self.folder = target.with_name(f".{target.stem}.part")
        self.features = np.zeros(shape, dtype)
        self.bad: dict[int, str] = {}
        self.batch = 0
        self._done: set[int] = set()  # where the batches begin that are there
        self._unsaved: list[int] = []
        self._saved = time.monotonic()

    def open(self, batch: int, resume: bool) -> None:
        """Begin, or go on with what is there."""
        self.batch = batch
        files = sorted(self.folder.glob("*.npz"))
        if files and not resume:
            raise InputError(
                f"{self.target.parent} holds an unfinished run of {self.target.name}; continue it with --resume, or "
                f"remove {self.folder}"
            )
        for file in files:
            try:
                self._load(read_npz(file))
            except InputError:
                raise
            except (KeyError, ValueError):  # a damaged or foreign file counts for nothing
                continue
        self._number = 1 + int(files[-1].stem) if files else 0

    def _load(self, arrays: Mapping[str, np.ndarray]) -> None:
        run = json.loads(str(arrays["run"]))
        check_identity(self.target, self.identity, run["identity"])
        self.batch = run["batch"]
        starts = arrays["starts"].tolist()
        self.features[[i for start in starts for i in self._rows(start)]] = arrays["features"]
        self._mark(starts, dict(zip(arrays["bad"].tolist(), arrays["reasons"].tolist(), strict=True)))

    def left(self) -> list[int]:
        """Return where the batches begin that are to be computed: new ones, and those with something unreadable."""
        whole = self._done - {i // self.batch * self.batch for i in self.bad}
        return [start for start in range(0, len(self.features), self.batch) if start not in whole]

    @property
    def done(self) -> int:
        """Rows of the batches that are there."""
        return sum(len(self._rows(start)) for start in self._done)

    def put(self, start: int, rows: list[int], features: np.ndarray, errors: Mapping[int, str]) -> None:
        """Keep a batch: the features of `rows`, and why the others of its items have none."""
        self.features[rows] = features
        self._mark([start], errors)
        self._unsaved.append(start)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the batches since the last file."""
        if not self._unsaved:
            return
        rows = [i for start in self._unsaved for i in self._rows(start)]
        bad = [i for i in rows if i in self.bad]
        arrays = {
            "run": np.array(json.dumps({"identity": self.identity, "batch": self.batch})),
            "starts": np.array(self._unsaved),
            "features": self.features[rows],
            "bad": np.array(bad, np.int64),
            "reasons": np.array([self.bad[i] for i in bad], np.str_),
        }
        file = self.folder / f"{self._number:06d}.npz"
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        self._number += 1
        self._unsaved, self._saved = [], time.monotonic()

    def remove(self) -> None:
        """Forget the run: its target is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, start: int) -> range:
        return range(start, min(start + self.batch, len(self.features)))

    def _mark(self, starts: Sequence[int], errors: Mapping[int, str]) -> None:
        self._done.update(starts)
        rows = {i for start in starts for i in self._rows(start)}
        self.bad = {i: reason for i, reason in self.bad.items() if i not in rows} | dict(errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.save()
        except InputError:
            if kind is None:  # otherwise the first error counts
                raise


def check_identity(target: Path, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Refuse to go on with rows of another extractor or other items."""
    words = {"extractor": "another extractor", "source": "other pictures or texts", "rows": "other rows"}
    for key, value in wanted.items():
        if found.get(key) != value:
            what = words.get(key, f"{key} {one_line(found.get(key))}")
            raise InputError(f"{target} was begun with {what}; start again at another place, or remove it")
