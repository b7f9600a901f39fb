"""The journal of a study as a file: one line of JSON for each thing that happened, appended under a lock.

Optuna's own file backend appends to a torn last line, which a full disk leaves behind, and so loses the study; and its
lock outlives a killed owner. Here the kernel drops the lock with its owner, a torn tail is cut off before the next
line, and a line that did not fit is taken back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

try:
    import fcntl
except ImportError:  # Windows: one worker alone
    fcntl = None  # type: ignore[assignment]

from fewcal.errors import FewcalError, InputError

Log = dict[str, Any]


class JournalFile(BaseJournalBackend):
    """Appends and reads lines of a file; any number of processes may share it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = JournalFile(Path(folder) / "study.journal")
    ...     file.append_logs([{"op_code": 0}])
    ...     list(file.read_logs(0))
    [{'op_code': 0}]
    """

    def __init__(self, path: Path) -> None:
        # Absolute: whoever works on the study later may stand in another folder.
        self.path = path.resolve()
        self.path.touch()
        self._offsets = [0]  # where each line that was read begins, and where the next one will

    def append_logs(self, logs: list[Log]) -> None:
        """Add lines; all of them, or none and an error."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            with self._locked("r+b", exclusive=True) as file:
                end = _whole_lines(file)
                file.truncate(end)
                try:
                    file.seek(end)
                    _write_all(file, lines)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise
        except OSError as error:
            raise FewcalError(
                f"cannot write {self.path}: {error.strerror or error}; finished trials are kept: make room and --resume"
            ) from error

    def read_logs(self, log_number_from: int) -> Generator[Log, None, None]:
        """The lines from a number on; what has no end yet, or never will, is no line."""
        known = min(log_number_from, len(self._offsets) - 1)
        with self._locked("rb", exclusive=False) as file:
            file.seek(self._offsets[known])
            lines = file.read().split(b"\n")[:-1]
        for number, line in enumerate(lines, known):
            if number + 1 == len(self._offsets):
                self._offsets.append(self._offsets[number] + len(line) + 1)
            if number < log_number_from:
                continue
            yield _record(line, f"line {number + 1} of {self.path}")

    @contextmanager
    def _locked(self, mode: str, exclusive: bool) -> Iterator[Any]:
        try:
            # Without a buffer: what could not be written must not come again when the file is closed.
            opened = self.path.open(mode, buffering=0)
        except FileNotFoundError as error:
            raise FewcalError(f"{self.path} was deleted while the study went on; start it again") from error
        with opened as file:
            if fcntl is not None:
                fcntl.flock(
                    file.fileno(), fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
                )  # until it is closed, or its process ends
            yield file


def _record(line: bytes, name: str) -> Log:
    """A line as a record. What stands before a record on its line is the torn tail of a journal of earlier versions."""
    for text in (line, line[max(0, line.rfind(b'{"op_code"')) :]):
        try:
            log = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(log, dict):
            return log
    raise InputError(f"{name} is damaged; choose another folder")


def _write_all(file: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _whole_lines(file: Any) -> int:
    """Where the last line that was written to its end does end."""
    end: int = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - 65536)
        file.seek(begin)
        last = file.read(end - begin).rfind(b"\n")
        if last >= 0:
            return begin + last + 1
        end = begin
    return 0
