"""Standard output and error: whatever their encoding is, and where they are closed or full."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def open_streams() -> None:
    """Let every text be printed: what an encoding does not have is escaped, what is closed takes all in silence."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (for as long as the process runs)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_streams() -> str | None:
    """Why what was printed did not arrive; None where it did, or where nobody listens any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
    except OSError as error:
        _silence()
        return f"cannot write the output: {error.strerror or error}"
    return None


def _silence() -> None:
    """Nothing is left for Python to flush, and to complain about, when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
