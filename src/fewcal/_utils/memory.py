"""How much memory there is to be had, where the system says so."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
# A container's limit and what it uses, in version 2 and 1 of control groups.
_GROUPS = tuple(
    (Path("/sys/fs/cgroup", most), Path("/sys/fs/cgroup", used))
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    )
)


def available_memory() -> int | None:
    """Bytes that may still be taken without swapping, of the machine or of the container; None where nobody tells.

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
    return min(found, default=None)
