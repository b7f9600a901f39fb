"""Features of an unfinished extraction: `.npz` files in a hidden folder beside the target.

Each file holds the batches of some seconds and the run that they belong to. A batch counts where its file is whole and
all its items could be read: what a kill loses or a disk damages is computed again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.npz import read_npz
from fewcal._utils.text import one_line
from fewcal.errors import InputError

# Time between two files: what a kill costs at worst.
SAVE_SECONDS = 5.0


class Parts:
    """Rows `(R, D)` that come in batches of fixed borders, after those of an earlier start where `resume` is set.

    Attributes
    ----------
    features : `(R, D)`, zeros where no batch is yet
    batch : rows of a batch; resuming takes that of the first start
    """

    def __init__(
        self, target: Path, identity: Mapping[str, object], shape: tuple[int, int], dtype: str, batch: int, resume: bool
    ) -> None:
        self.target, self.identity = target, dict(identity)
        self.folder = target.with_name(f".{target.stem}.part")
        self.features = np.zeros(shape, dtype)
        self.batch = batch
        self._whole: set[int] = set()  # where the batches begin that are there
        self._unsaved: list[int] = []
        self._saved = time.monotonic()
        files = sorted(self.folder.glob("*.npz"))
        if files and not resume:
            raise InputError(
                f"{target.parent} holds an unfinished run of {target.name}; continue it with --resume, or "
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
        self.features[self._rows(starts)] = arrays["features"]
        self._whole.update(starts)

    def left(self) -> list[int]:
        """Return where the batches begin that are to be computed."""
        return [start for start in range(0, len(self.features), self.batch) if start not in self._whole]

    def put(self, rows: list[int], features: np.ndarray, start: int, whole: bool) -> None:
        """Keep the features of a batch; a whole one is written with others after some seconds."""
        self.features[rows] = features
        if whole:
            self._unsaved.append(start)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the batches since the last file."""
        if not self._unsaved:
            return
        arrays = {
            "run": np.array(json.dumps({"identity": self.identity, "batch": self.batch})),
            "starts": np.array(self._unsaved),
            "features": self.features[self._rows(self._unsaved)],
        }
        with atomic_path(self.folder / f"{self._number:06d}.npz") as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        self._number += 1
        self._unsaved, self._saved = [], time.monotonic()

    def remove(self) -> None:
        """Forget the run: its target is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, starts: list[int]) -> list[int]:
        return [i for start in starts for i in range(start, min(start + self.batch, len(self.features)))]


def check_identity(target: Path, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Refuse to go on with rows of another extractor or other items."""
    words = {"extractor": "another extractor", "source": "other pictures or texts", "rows": "other rows"}
    for key, value in wanted.items():
        if found.get(key) != value:
            what = words.get(key, f"{key} {one_line(found.get(key))}")
            raise InputError(f"{target} was begun with {what}; start again at another place, or remove it")
