"""One owner at a time for a folder or a file that a long command writes, by `filelock`.

The system lets go of a lock when its process ends, however it ends, so the successor of a killed process is never kept
out. The text in the lock file only names the owner. The file goes when its owner is done.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fewcal._utils.atomic import sweep
from fewcal.errors import FewcalError, FewcalWarning, InputError

LOCK_NAME = ".fewcal.lock"


class OutputLock:
    """A lock that is held; `check` raises if what it protects is gone."""

    def __init__(self, file: Path, subject: Path) -> None:
        self.file, self.subject, self.identity = file, subject, _identity(file)

    def check(self) -> None:
        """Raise where the folder was deleted or replaced meanwhile: what is written now would be incomplete."""
        if self.identity != _identity(self.file):
            raise FewcalError(
                f"{self.subject} was deleted or replaced while this command wrote to it; what it holds is incomplete: "
                "remove it and start again"
            )


@contextmanager
def folder_lock(folder: str | os.PathLike[str], wait: float = 0.0) -> Iterator[OutputLock]:
    """Own a folder, which is made if it is missing; `wait` is for how many seconds another owner is waited for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with folder_lock(Path(parent) / "run"):
    ...         try:
    ...             with folder_lock(Path(parent) / "run"):
    ...                 pass
    ...         except InputError as error:
    ...             print("in use" in str(error))
    ...     [p.name for p in Path(parent).iterdir()]
    True
    []
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100  (resolve would follow links, which may change)
    missing = not folder.exists()
    try:
        with _locked(folder / LOCK_NAME, folder, wait) as lock:
            yield lock
    finally:
        if missing:  # nothing came of it
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def file_lock(target: str | os.PathLike[str]) -> Iterator[OutputLock]:
    """Own the file `target`, which need not be there; others may own other files of its folder."""
    target = Path(os.path.abspath(target))  # noqa: PTH100
    with _locked(target.with_name(f".{target.name}.lock"), target, 0.0) as lock:
        yield lock


def is_leftover(path: Path) -> bool:
    """Whether a file is the lock of an owner that was killed, which counts for nothing.

    >>> is_leftover(Path("run/.fewcal.lock")), is_leftover(Path("run/config.json"))
    (True, False)
    """
    return path.name == LOCK_NAME


@contextmanager
def _locked(file: Path, subject: Path, wait: float) -> Iterator[OutputLock]:
    lock = FileLock(file)
    try:
        _acquire(lock, file, wait)
    except Timeout as error:
        raise InputError(
            f"{subject} is in use by {_owner(file)}; wait until it ends, or choose another place (a lock of a process "
            "that has ended does not count)"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"cannot write {subject}: {file.parent} is a file; choose a new folder") from error
    except NotImplementedError:
        warnings.warn(
            f"the file system of {subject} has no locks; do not write there with two commands at a time",
            FewcalWarning,
            stacklevel=3,
        )
    except OSError as error:
        raise InputError(f"cannot write {subject}: {error.strerror or error}; choose another place") from error
    _write_owner(file)
    sweep(subject if subject.is_dir() else subject.parent)
    held = OutputLock(file, subject)
    try:
        yield held
    finally:
        ours = held.identity is not None and held.identity == _identity(file)
        if ours and os.name == "posix":  # while it is held: a process that waits for it sees that it is the wrong one
            with suppress(OSError):
                file.unlink()
        lock.release()
        if ours and os.name != "posix":  # where a file that another process has open cannot be removed
            with suppress(OSError):
                file.unlink()


def _acquire(lock: FileLock, file: Path, wait: float) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except FileNotFoundError:  # its owner removed an empty folder between our two steps
            continue
        return


def _identity(file: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = file.stat(follow_symlinks=False)
        return status.st_dev, status.st_ino
    return None


def _write_owner(file: Path) -> None:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "command": " ".join(sys.argv)[:200]}
    with suppress(OSError):  # a full disk, a system where locked files cannot be written: it holds without a name
        file.write_text(json.dumps(owner), encoding="utf-8")


def _owner(file: Path) -> str:
    """The owner as its own note names it."""
    try:
        note = json.loads(file.read_bytes()[:4096])
        return f"process {int(note['pid'])} on {note['host']} since {note['since']} ({note['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
