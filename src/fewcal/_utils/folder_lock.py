"""One owner at a time for a folder or a file that a long command writes.

The owner keeps a lock file open and locked (`flock`). The kernel lets go of it when the process ends, however it ends,
so the successor of a killed process is never kept out; the text in the file only tells who the owner is. The file
goes when its owner is done.
"""

from __future__ import annotations

import errno
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

from fewcal.errors import FewcalError, FewcalWarning, InputError

try:
    import fcntl
except ImportError:  # Windows: no lock of this kind
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".fewcal.lock"
# Seconds between two attempts of `wait`.
_LOOK = 0.05
# What a file system says that knows no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class OutputLock:
    """A lock that is held; `check` says whether what it protects is still there."""

    def __init__(self, file: Path, subject: Path, descriptor: int) -> None:
        self.file, self.subject, self.descriptor = file, subject, descriptor

    def check(self) -> None:
        """Raise where the folder was deleted or replaced meanwhile: what is written now would be incomplete."""
        if not _same_file(self.descriptor, self.file):
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
    deadline = time.monotonic() + wait
    while (descriptor := _attempt(file, subject)) is None:
        if time.monotonic() >= deadline:
            raise InputError(
                f"{subject} is in use by {_owner(file)}; wait until it ends, or choose another place (a lock of a "
                "process that has ended does not count)"
            )
        time.sleep(_LOOK)
    try:
        yield OutputLock(file, subject, descriptor)
    finally:
        # Removed while it is held: whoever opened it before sees by `_same_file` that it is the wrong one.
        if _same_file(descriptor, file):
            with suppress(OSError):
                file.unlink()
        os.close(descriptor)


def _attempt(file: Path, subject: Path) -> int | None:
    """The descriptor of the locked file, or None where another owner holds it."""
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:  # its owner removed an empty folder between our two steps
            continue
        except FileExistsError as error:
            raise InputError(f"cannot write {subject}: {file.parent} is a file; choose a new folder") from error
        except OSError as error:
            raise InputError(f"cannot write {subject}: {error.strerror or error}; choose another place") from error
        try:
            taken = _flock(descriptor, subject)
        except BaseException:
            os.close(descriptor)
            raise
        if not taken:
            os.close(descriptor)
            return None
        if _same_file(descriptor, file):
            _write_owner(descriptor)
            return descriptor
        os.close(descriptor)  # its owner removed it between our two steps


def _flock(descriptor: int, subject: Path) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InputError(f"cannot lock {subject}: {error.strerror or error}; choose another place") from error
        warnings.warn(
            f"the file system of {subject} knows no locks; do not write there with two commands at a time",
            FewcalWarning,
            stacklevel=2,
        )
    return True


def _same_file(descriptor: int, file: Path) -> bool:
    try:
        ours, there = os.fstat(descriptor), os.stat(file, follow_symlinks=False)  # noqa: PTH116
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _write_owner(descriptor: int) -> None:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "command": " ".join(sys.argv)[:200]}
    with suppress(OSError):  # a full disk: the lock holds without a name on it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(file: Path) -> str:
    """The owner as its own note names it."""
    try:
        note = json.loads(file.read_bytes()[:4096])
        return f"process {int(note['pid'])} on {note['host']} since {note['since']} ({note['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
