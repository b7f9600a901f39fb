"""Errors as one line and an exit code: 1 a bug in fewcal, 2 wrong options or input, 3 disk, memory or cluster."""

from __future__ import annotations

import errno
import re
from typing import Any

import typer

from fewcal.errors import FewcalError, FileFormatError, InputError

# Typer stands on click or brings a copy of it: its errors are reached through typer.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
# Messages of torch (CPU, GPU) and of the system where it cannot load a library or start a thread.
_NO_MEMORY = re.compile(
    "can.t allocate memory|not enough memory|out of memory|nvalid buffer size|too large to alloc"
    "|annot allocate memory|failed to map segment|can't start new thread"
)


def format_error(error: Exception) -> tuple[str, int]:
    """An error as a message and an exit code.

    >>> format_error(InputError("k=0 is out of range"))
    ('k=0 is out of range', 2)
    """
    if isinstance(error.__context__, EOFError):  # typer turns it into `Abort`
        error = error.__context__
    if isinstance(error, _UsageError):
        return _format_usage_error(error), 2
    if isinstance(error, InputError | FileFormatError):
        is_write_error = isinstance(error, InputError) and isinstance(error.__cause__, OSError)
        return str(error), 3 if is_write_error else 2
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):  # Dask raises a plain `Exception`
        size = re.search(r"allocate ([\d.,]+ ?\w+)", str(error))
        detail = f" ({size[1]} in one piece)" if size else ""
        return f"not enough memory{detail}; use smaller batches, fewer features or a machine with more", 3
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return f"cannot write the output: {error.strerror}", 3  # an unbuffered print
    if isinstance(error, FewcalError | OSError):
        return str(error) or type(error).__name__, 3
    return f"unexpected {type(error).__name__}: {error} (run again with --debug and report it)", 1


def _format_usage_error(error: Any) -> str:
    message: str = error.format_message()
    if message.startswith("Usage: "):  # a command without arguments shows its help
        print(message)
        return ""
    command = error.ctx.command_path if error.ctx is not None else "fewcal"
    link = " See" if message.endswith("?") else "; see"
    return f"{message.rstrip('.')}{link} `{command} --help`"
