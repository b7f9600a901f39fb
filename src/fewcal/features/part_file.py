"""Features on their way to a file: an array that grows batch by batch, and a record of what it holds.

    .NAME.part.npy    the array, written batch by batch without a memory map: a full disk is an error, not a signal
    .NAME.part.json   what the rows depend on, a checksum of every batch that is there, and what could not be read

A batch counts only if its bytes are those that were written; what a kill or a damaged disk leaves is computed again.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError, InputError


class PartFile:
    """Rows `(R, D)` that come in batches of fixed borders."""

    def __init__(self, target: Path, identity: Mapping[str, object], shape: tuple[int, int], dtype: str) -> None:
        self.target, self.identity, self.shape, self.dtype = target, dict(identity), shape, np.dtype(dtype)
        self.array_file = target.with_name(f".{target.stem}.part.npy")
        self.state_file = target.with_name(f".{target.stem}.part.json")
        self.batch = 0
        self.sums: dict[int, int] = {}  # by where a batch begins
        self.bad: dict[int, str] = {}
        self._file: BinaryIO | None = None
        self._begin = len(self._header())  # of the rows in the file

    def open(self, batch: int, resume: bool) -> None:
        """Begin, or go on with what is there, whose batch size then counts."""
        there = self.state_file.exists() and self.array_file.exists()
        if there and not resume:
            raise InputError(
                f"{self.target.parent} holds an unfinished run of {self.target.name}; continue it with --resume, "
                f"or remove {self.state_file}"
            )
        self.batch = batch
        try:
            self._continue() if there else self._start()
        except OSError as error:
            raise InputError(f"cannot write {self.array_file}: {error.strerror or error}") from error

    def _start(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.array_file.open("w+b", buffering=0)
        self._file.write(self._header())

    def _continue(self) -> None:
        state = read_json(self.state_file, "remove it and start again")
        try:
            check_identity(self.target, self.identity, state["identity"])
            self.batch = int(state["batch"])
            if self.batch < 1:
                raise ValueError(f"batch {self.batch}")
            self.bad = {int(i): str(m) for i, m in state["bad"].items()}
            if any(not 0 <= i < self.shape[0] for i in self.bad):
                raise ValueError("rows that are not there")
            self._file = self.array_file.open("r+b", buffering=0)
            if self._file.read(self._begin) != self._header():
                raise ValueError("its array has another shape")
            if "sums" in state:
                known = {int(start): int(value) for start, value in state["sums"].items()}
                self.sums = {start: value for start, value in known.items() if self._sum(start) == value}
            else:  # of an earlier version: it says how far it came, and no more
                self.sums = {start: self._sum(start) for start in range(0, int(state["done"]), self.batch)}
        except InputError:
            raise
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            reason = one_line(error)
            raise FileFormatError(f"{self.state_file} is damaged ({reason}); remove it and start again") from error

    @property
    def done(self) -> int:
        """Rows of the batches that are there."""
        return sum(min(self.batch, self.shape[0] - start) for start in self.sums)

    def left(self) -> list[int]:
        """Where the batches begin that are still to do: those with something unreadable, and all that are new."""
        again = {i // self.batch * self.batch for i in self.bad}
        return [s for s in range(0, self.shape[0], self.batch) if s not in self.sums or s in again]

    def put(self, start: int, stop: int, rows: list[int], features: np.ndarray, errors: Mapping[int, str]) -> None:
        """Write a batch: the features of `rows`, and why the others of its items have none."""
        assert self._file is not None
        block = np.zeros((stop - start, self.shape[1]), self.dtype)
        block[[i - start for i in rows]] = features
        data = block.tobytes()
        self.sums.pop(start, None)
        try:
            self._file.seek(self._begin + start * self._row)
            written = memoryview(data)
            while written:
                written = written[self._file.write(written) :]
        except OSError as error:
            raise InputError(
                f"cannot write {self.array_file}: {error.strerror or error}; make room and continue with --resume"
            ) from error
        self.sums[start] = zlib.crc32(data)
        for i in range(start, stop):
            self.bad.pop(i, None)
        self.bad |= errors

    def save(self) -> None:
        """First the numbers, then the claim that they are there."""
        assert self._file is not None
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.array_file}: {error.strerror or error}") from error
        state = {"identity": self.identity, "batch": self.batch, "done": self.done}
        bad, sums = dict(sorted(self.bad.items())), dict(sorted(self.sums.items()))
        write_json(self.state_file, state | {"bad": bad, "sums": sums})

    def array(self) -> np.ndarray:
        """All rows, once every batch is there."""
        return np.asarray(np.memmap(self.array_file, self.dtype, "r", self._begin, self.shape))

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """Nothing is left to continue."""
        self.close()
        for leftover in (self.array_file, self.state_file):
            leftover.unlink(missing_ok=True)

    def _header(self) -> bytes:
        out = io.BytesIO()
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(out, described)
        return out.getvalue()

    @property
    def _row(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def _sum(self, start: int) -> int:
        """The checksum of a batch as it stands in the file; one that is cut short has another."""
        assert self._file is not None
        self._file.seek(self._begin + start * self._row)
        size = (min(start + self.batch, self.shape[0]) - start) * self._row
        data = bytearray()
        while len(data) < size and (piece := self._file.read(size - len(data))):
            data += piece
        return zlib.crc32(data) if len(data) == size else -1


def check_identity(target: Path, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Refuse to go on with rows of another extractor or other items."""
    words = {"extractor": "another extractor", "source": "other pictures or texts", "rows": "other rows"}
    for key, value in wanted.items():
        if found.get(key) != value:
            what = words.get(key, f"{key} {one_line(found.get(key))}")
            raise InputError(f"{target} was begun with {what}; start again at another place, or remove it")
