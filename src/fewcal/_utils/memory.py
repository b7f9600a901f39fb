"""How much memory there is left, where the system has such figures."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from fewcal.errors import InputError

try:
    import resource
except ImportError:  # Windows: no limit of this kind
    resource = None  # type: ignore[assignment]

# With less, loading PyTorch, SciPy and their BLAS may abort or hang, which cannot be caught.
LEAST_ADDRESS_SPACE = 1_600_000_000
_MEMINFO, _OWN = Path("/proc/meminfo"), Path("/proc/self/statm")
# A container's limit and what it uses, in version 2 and 1 of control groups.
_GROUPS = tuple(
    (Path("/sys/fs/cgroup", most), Path("/sys/fs/cgroup", used))
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    )
)


def available_memory() -> int | None:
    """Bytes that may still be taken without swapping, of the machine, the container or the process; None where the
    system has no such figures.

    >>> available_memory() != 0
    True
    """
    found = []
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    for most, used in _GROUPS:
        try:
            found.append(max(int(most.read_text()) - int(used.read_text()), 1))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    if (limit := address_space()) is not None:
        try:
            found.append(max(limit - int(_OWN.read_text().split()[0]) * resource.getpagesize(), 1))
        except (OSError, ValueError, IndexError):
            found.append(limit)
    return min(found, default=None)


def address_space() -> int | None:
    """Bytes that this process may map in all (`ulimit -v`); None without a limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def require_memory(need: int, what: str, remedy: str) -> None:
    """Refuse what cannot fit: where memory is promised more than once, asking for it may end the whole process.

    >>> require_memory(10, "ten bytes", "take nine")
    """
    left = available_memory()
    if left is not None and need > left:
        raise InputError(f"{what} takes {need / 1e9:.3g} GB, and {left / 1e9:.3g} GB of memory are left; {remedy}")


def release_memory() -> None:
    """Return freed memory to the system, where the C library keeps it (glibc does, after large pictures).

    >>> release_memory()
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
