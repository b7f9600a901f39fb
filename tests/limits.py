"""Limits of this process: a disk that is full, a memory that is small; and how long a test waits for others."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds after which a test that waits for another process is broken; on a busy machine minutes may be in order.
PATIENCE = 300.0


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell: no file grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
