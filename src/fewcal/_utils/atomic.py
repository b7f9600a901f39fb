"""Files that appear under their name only when they are complete, and JSON that is read or refused with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fewcal._utils.text import one_line
from fewcal.errors import FileFormatError, InputError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and vanishes when it does not.

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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write {path}: {reason}; choose another place or make room") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write `value` as JSON for people and programs; what JSON cannot hold is written as text."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    with atomic_path(path) as temporary:
        # Half characters, which names of files have that are not UTF-8, become escapes that JSON reads back.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


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


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
