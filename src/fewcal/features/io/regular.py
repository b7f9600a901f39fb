"""Regular files only: a pipe or device named like a picture would block its reader."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from fewcal.errors import InputError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe, socket or device is refused without waiting for its other end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is no regular file; give a file or a folder")
    return os.fdopen(descriptor, "rb")


def require_source(path: Path, remedy: str) -> None:
    """Refuse a path where there is neither a regular file nor a folder."""
    if not path.exists():
        raise InputError(f"{path} does not exist; {remedy}")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is no regular file; {remedy}")
