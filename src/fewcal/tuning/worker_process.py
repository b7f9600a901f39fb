"""A process that computes trials: how it names itself, and whether it still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TypedDict

# Attributes of trials: who computes one, and, before each name, who tried to take it from the queue.
WORKER, CLAIM = "worker", "claim "


class Worker(TypedDict):
    """A process that computes trials."""

    host: str
    pid: int
    born: int | None


def me() -> Worker:
    """This process, as its trials name it; numbers of processes come again, above all in containers."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def alive(worker: Worker) -> bool | None:
    """Whether it runs; one that has ended and was not fetched yet does not. None for one of another machine.

    >>> alive(me())
    True
    """
    if worker["host"] != socket.gethostname():
        return None
    pid, born = int(worker["pid"]), worker.get("born")
    if born is not None and _born(pid) not in (born, None):
        return False  # another one with the same number
    if os.name != "posix":  # where that cannot be asked without ending it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return _stat(pid)[0] != "Z"
    except (OSError, IndexError):  # not Linux, or gone in this moment
        return True


def _stat(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _born(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where nobody knows."""
    try:
        return int(_stat(pid)[19])
    except (OSError, IndexError, ValueError):
        return None
