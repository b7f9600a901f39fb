"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fewcal.errors import InputError


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
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
