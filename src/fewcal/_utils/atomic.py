"""Files that appear under their name only when they are complete, and JSON that is read or refused with a reason."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError, InputError

# `.NAME.HOST-PID.RANDOM.tmp`: it names its owner after a kill.
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-([0-9]+)\.[0-9a-f]{8}\.tmp")
# A temporary file of another machine is none that anybody still writes after so many seconds.
MAX_WRITE_SECONDS = 24 * 3600


@contextmanager
def atomic_path(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and vanishes when it does not.

    With `mode`, as 0o600, the file has these permissions from the start; else those that the umask leaves.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     [(p.name, p.read_text()) for p in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    path = Path(path)
    # Beside the target, since a rename is atomic only within one file system; a plain open() honours the umask,
    # which tempfile would not.
    temporary = path.with_name(f".{path.name}.{_host()}-{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)  # some writers make files for their owner alone
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write {path}: {reason}; choose another place or make room") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove what writers that were killed left in a folder: temporary files whose process is no more.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     left = Path(folder) / ".a.json.01234567-89.01234567.tmp"
    ...     left.touch()
    ...     os.utime(left, (0, 0))
    ...     sweep(folder)
    ...     left.exists()
    False
    """
    with suppress(OSError):
        for file in Path(folder).iterdir():
            named = _TEMPORARY.fullmatch(file.name)
            if named is None:
                continue
            with suppress(OSError):
                old = time.time() - file.stat().st_mtime > MAX_WRITE_SECONDS
                if old or (named[1] == _host() and not _is_running(int(named[2]))):
                    file.unlink()


def write_text(path: str | os.PathLike[str], text: str, mode: int | None = None) -> None:
    """Write a text in UTF-8; half characters, of file names that are not UTF-8, become escapes."""
    with atomic_path(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | os.PathLike[str], value: object, mode: int | None = None) -> None:
    """Write `value` as JSON for people and programs; what JSON cannot hold is written as text."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", mode)


def read_json(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """The JSON object in a file; what it holds is not checked any further.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", {"a": 1})
    ...     read_json(Path(folder) / "a.json", "write it again")
    {'a': 1}
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # text as deep as no file of ours is
        reason = one_line(error)
        raise FileFormatError(f"{path} cannot be read ({reason}); {remedy}") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path} is not a JSON object; {remedy}")
    return value


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _is_running(pid: int) -> bool:
    """Whether a process of this machine runs; True where the query would end it (Windows)."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
